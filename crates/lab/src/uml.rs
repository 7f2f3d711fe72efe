//! User-Mode Linux guests: a kernel as an unprivileged process, at near native speed.

use std::{
    path::{Path, PathBuf, absolute},
    process::Command,
    time::Duration,
};

use crate::{
    cache,
    error::{Error, IoContext},
    image::Image,
    images,
    launch::Launch,
    modules,
    program::{self, output},
    spec::{Backend, GuestSpec},
};

const MODULES: &str = "/usr/lib/uml/modules";

/// Preloaded into the kernel, which otherwise does not run on newer processors (`uml/xstate.c`).
const XSTATE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xstate.so"));
/// Its name in the kernel's directory: the path of the cache may have a space, which separates preloaded files.
const XSTATE_NAME: &str = "xstate.so";

/// The command that starts a User-Mode Linux guest. Standard output is its console, standard input its agent's line.
pub(crate) fn machine(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    let kernel = program::find("linux.uml", "User-Mode Linux", "user-mode-linux")?;
    let version = output(Command::new(&kernel).arg("--version"))?;
    let tree = PathBuf::from(MODULES).join(version.trim());
    if !tree.is_dir() {
        let tree = tree.display();
        return Err(Error::Missing(format!(
            "{tree}, the directory of the kernel's modules, is missing: reinstall user-mode-linux"
        )));
    }
    let mut image = Image::new(agent, &modules::resolve(&tree, &["virtio_net"])?)?;
    images::add_programs(&mut image, Vec::new(), spec.tools)?;
    let initramfs = image.keep()?;
    // The kernel's console writes to standard output; the agent's serial line is standard input, a socket.
    let consoles = "con=null con0=null,fd:1 ssl=null ssl0=fd:0 console=tty0 panic=-1";
    let of_agent = spec.agent_arguments("ttyS0");
    let mut arguments = vec![format!("LD_PRELOAD=./{XSTATE_NAME}"), kernel.display().to_string()];
    arguments.extend(consoles.split(' ').chain(of_agent.split(' ')).map(str::to_owned));
    arguments.extend([
        format!("mem={}M", spec.memory_mib),
        format!("initrd={}", word(spec, &initramfs)?),
        "uml_dir=./".to_owned(),
        format!("umid={}", spec.name),
    ]);
    let refuse = |wanted: String| Error::Spec {
        guest: spec.name.clone(),
        reason: format!("{wanted} requested; User-Mode Linux supports one only"),
    };
    if spec.cpus != 1 {
        return Err(refuse(format!("{} CPUs", spec.cpus)));
    }
    if let Some(nic) = &spec.nic {
        if nic.queues != 1 {
            return Err(refuse(format!("{} queues", nic.queues)));
        }
        arguments.push(match &nic.backend {
            Backend::VhostUser(socket) => {
                let socket = absolute(socket).doing(|| socket.display().to_string())?;
                format!("virtio_uml.device={}:1", word(spec, &socket)?)
            }
            Backend::VhostUserClient(_) => {
                let reason = "User-Mode Linux connects to its card's backend, and does not listen".to_owned();
                return Err(Error::Spec { guest: spec.name.clone(), reason });
            }
            Backend::Tap(name) => format!("vec0:transport=tap,ifname={name},gro=1"),
        });
    }
    let system = format!("User-Mode Linux {}", version.trim());
    Ok(Launch {
        program: "env".into(),
        arguments,
        links: vec![(XSTATE_NAME.to_owned(), cache::keep(&cache::directory()?, "xstate", XSTATE)?)],
        system,
        image: initramfs.display().to_string(),
        limit: Duration::from_secs(120),
    })
}

/// A path as one word of the kernel's command line, where spaces separate words and colons separate parts of a word.
fn word<'p>(spec: &GuestSpec, path: &'p Path) -> Result<&'p str, Error> {
    path.to_str().filter(|path| !path.contains([' ', ':'])).ok_or_else(|| Error::Spec {
        guest: spec.name.clone(),
        reason: format!("{}: a path without spaces and colons is needed", path.display()),
    })
}
