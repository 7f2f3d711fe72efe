//! QEMU: a whole emulated machine, with KVM where that truly boots a guest.

use std::{
    fs,
    path::{Path, absolute},
    sync::OnceLock,
    time::Duration,
};

use crate::{
    error::{Error, IoContext},
    guest::{Backend, Guest, GuestSpec, Launch, find_program},
    image::Image,
    kernel::Kernel,
    modules,
};

/// The drivers wanted of the kernel.
const DRIVERS: [&str; 2] = ["virtio_pci", "virtio_net"];

/// The command that is a QEMU guest. Its console is the first serial line, the agent's the second.
pub fn machine(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    let program = find_program("qemu-system-x86_64", "QEMU", "qemu-system-x86")?;
    let kernel = Kernel::find_or_fetch()?;
    let initramfs = Image::new(agent, &modules::resolve(&kernel.modules, &DRIVERS)?)?.keep()?;
    let accelerator = accelerator(agent, &program, &kernel, &initramfs);
    command(spec, &program, &kernel, &initramfs, accelerator)
}

#[derive(Clone, Copy, PartialEq)]
enum Accelerator {
    Kvm,
    Tcg,
}

/// Decides once a process, by booting a guest: `/dev/kvm` may exist and be of no use.
fn accelerator(agent: &Path, program: &Path, kernel: &Kernel, initramfs: &Path) -> Accelerator {
    static CHOICE: OnceLock<Accelerator> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let boots = || {
            fs::File::options().read(true).write(true).open("/dev/kvm").ok()?;
            let log = tempfile::NamedTempFile::new().ok()?;
            let (name, log) = ("kvm-trial".to_owned(), log.path().to_owned());
            let spec = GuestSpec { name, kind: crate::Kind::Qemu, memory_mib: 256, nic: None, log };
            let machine = command(&spec, program, kernel, initramfs, Accelerator::Kvm).ok()?;
            Guest::start(&spec.name, &spec.log, agent, Launch { limit: Duration::from_secs(10), ..machine }).ok()
        };
        if boots().is_some() { Accelerator::Kvm } else { Accelerator::Tcg }
    })
}

fn command(
    spec: &GuestSpec,
    program: &Path,
    kernel: &Kernel,
    initramfs: &Path,
    accelerator: Accelerator,
) -> Result<Launch, Error> {
    let log = absolute(&spec.log).doing(|| spec.log.display().to_string())?;
    let queues = spec.nic.as_ref().map_or(1, |nic| nic.queues);
    let (accelerator, limit, vectors) = match accelerator {
        Accelerator::Kvm => ("kvm", Duration::from_secs(30), 2 * queues + 2),
        // Without KVM, QEMU 7.2 dies of MSI-X on a vhost-user card (SIGSEGV below msix_set_vector_notifiers).
        Accelerator::Tcg => ("tcg", Duration::from_secs(120), 0),
    };
    let mut arguments: Vec<String> = [
        "-nodefaults -no-user-config -display none -no-reboot -cpu max",
        // The card's backend maps the guest's memory: it must be shared.
        "-machine",
        &format!("q35,accel={accelerator},memory-backend=memory"),
        "-object",
        &format!("memory-backend-memfd,id=memory,size={}M,share=on", spec.memory_mib),
        &format!("-m {}M -smp {queues}", spec.memory_mib),
        "-chardev",
        &format!("file,id=console,append=on,path={}", comma_doubled(&log)),
        "-device isa-serial,chardev=console",
        // Standard input is a socket that is connected already.
        "-chardev socket,id=agent,fd=0",
        "-device isa-serial,chardev=agent",
    ]
    .iter()
    .flat_map(|words| words.split(' ').map(str::to_owned))
    .collect();
    arguments.extend(["-kernel".to_owned(), kernel.image.display().to_string()]);
    arguments.extend(["-initrd".to_owned(), initramfs.display().to_string()]);
    arguments.extend(["-append".to_owned(), format!("console=ttyS0 panic=-1 {}", spec.wishes("ttyS1"))]);
    if let Some(nic) = &spec.nic {
        let Backend::VhostUser(socket) = &nic.backend else {
            let reason =
                "a tap wanted, and only User-Mode Linux guests have that; others have a vhost-user card".to_owned();
            return Err(Error::Orders { guest: spec.name.clone(), reason });
        };
        let socket = absolute(socket).doing(|| socket.display().to_string())?;
        arguments.extend([
            "-chardev".to_owned(),
            format!("socket,id=card,reconnect=1,path={}", comma_doubled(&socket)),
            "-netdev".to_owned(),
            format!("vhost-user,id=card,chardev=card,queues={queues}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=card,mac={},mq={},vectors={vectors}", nic.mac(), on(queues > 1)),
        ]);
    }
    let system = format!("QEMU with {accelerator}");
    let image = format!("{}, {}", kernel.image.display(), initramfs.display());
    Ok(Launch { program: program.to_owned(), arguments, system, image, limit })
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

/// A path in an option's value: there a comma would end it, and two stand for one.
pub fn comma_doubled(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
