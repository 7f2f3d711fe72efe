//! User-Mode Linux: a guest kernel as a process, near native speed, without root.

use std::path::{Path, PathBuf};

use crate::{
    error::Error,
    guest::{GuestSpec, Machine, find_program, output},
    image, modules,
};

const MODULES: &str = "/usr/lib/uml/modules";

/// The command that is a User-Mode Linux guest. Its console is standard output, the agent's standard input.
pub fn machine(spec: &GuestSpec, agent: &Path, home: &Path) -> Result<Machine, Error> {
    let kernel = find_program("linux.uml", "User-Mode Linux", "user-mode-linux")?;
    let version = output(&kernel, &["--version"])?;
    let tree = PathBuf::from(MODULES).join(version.trim());
    if !tree.is_dir() {
        let tree = tree.display();
        return Err(Error::Missing(format!(
            "{tree}, the kernel's modules, is not there: install user-mode-linux anew"
        )));
    }
    let initramfs = image::initramfs(agent, &modules::resolve(&tree, &["virtio_net"])?)?;
    let mut arguments = vec![
        format!("mem={}M", spec.memory_mib),
        format!("initrd={}", initramfs.display()),
        format!("uml_dir={}/", home.display()),
        format!("umid={}", spec.name),
        // The kernel's console writes to standard output; the agent's serial line is standard input, a socket.
        "con=null con0=null,fd:1 ssl=null ssl0=fd:0 console=tty0 panic=-1".to_owned(),
        spec.wishes("ttyS0"),
    ];
    if let Some(nic) = &spec.nic {
        if nic.queues != 1 {
            let reason = format!("{} queues wanted, and User-Mode Linux has one only", nic.queues);
            return Err(Error::Orders { guest: spec.name.clone(), reason });
        }
        arguments.push(format!("virtio_uml.device={}:1", nic.socket.display()));
    }
    let arguments = arguments.iter().flat_map(|words| words.split(' ')).map(str::to_owned).collect();
    let image = format!("User-Mode Linux {}, {}", version.trim(), initramfs.display());
    Ok(Machine { program: kernel, arguments, image, limit: std::time::Duration::from_secs(30) })
}
