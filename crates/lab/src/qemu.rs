//! QEMU guests, with KVM if that really boots a guest.

use std::{
    fmt, fs,
    path::{Path, absolute},
    sync::OnceLock,
    time::Duration,
};

use fairlane_core::packet::Mac;

use crate::{
    error::{Error, IoContext},
    guest::Guest,
    image::Image,
    images,
    kernel::Kernel,
    launch::Launch,
    modules, program,
    spec::{Backend, GuestSpec, Kind, Nic},
    tools::Tools,
};

/// The kernel modules that guests load.
const DRIVERS: [&str; 4] = ["virtio_pci", "virtio_net", "e1000", "tcp_diag"];

/// The command that starts a QEMU guest. The first serial line is the console, the second is the agent's.
pub(crate) fn machine(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    let program = program::find_qemu()?;
    let kernel = Kernel::find_or_fetch()?;
    let mut image = Image::new(agent, &modules::resolve(&kernel.modules, &DRIVERS)?)?;
    images::add_programs(&mut image, Vec::new(), spec.tools)?;
    let initramfs = image.keep()?;
    let accelerator = accelerator(agent, &program, &kernel, &initramfs);
    command(spec, &program, &kernel, &initramfs, accelerator)
}

#[derive(Clone, Copy, PartialEq)]
enum Accelerator {
    Kvm,
    Tcg,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        })
    }
}

/// Decides once per process, by booting a guest: `/dev/kvm` may exist and not work.
fn accelerator(agent: &Path, program: &Path, kernel: &Kernel, initramfs: &Path) -> Accelerator {
    static CHOICE: OnceLock<Accelerator> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let boots = || {
            fs::File::options().read(true).write(true).open("/dev/kvm").ok()?;
            let log = tempfile::NamedTempFile::new().ok()?;
            let (name, log) = ("kvm-trial".to_owned(), log.path().to_owned());
            let (cpus, tools) = (1, Tools::default());
            let spec =
                GuestSpec { name, kind: Kind::Qemu, cpus, memory_mib: 256, tools, nic: None, monitor: None, log };
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
    // One CPU for each pair of queues.
    let cpus = spec.cpus.max(spec.nic.as_ref().map_or(1, |nic| nic.queues.into()));
    let limit = match accelerator {
        Accelerator::Kvm => Duration::from_secs(30),
        Accelerator::Tcg => Duration::from_secs(120),
    };
    let mut arguments: Vec<String> = [
        "-nodefaults -no-user-config -display none -no-reboot -cpu max",
        // A vhost-user backend maps the guest's memory, which must be shared.
        "-machine",
        &format!("q35,accel={accelerator},memory-backend=memory"),
        "-object",
        &format!("memory-backend-memfd,id=memory,size={}M,share=on", spec.memory_mib),
        &format!("-m {}M -smp {cpus}", spec.memory_mib),
        "-chardev",
        &format!("file,id=console,append=on,path={}", comma_doubled(&log)),
        "-device isa-serial,chardev=console",
        // Standard input is a connected socket.
        "-chardev socket,id=agent,fd=0",
        "-device isa-serial,chardev=agent",
    ]
    .iter()
    .flat_map(|words| words.split(' ').map(str::to_owned))
    .collect();
    arguments.extend(["-kernel".to_owned(), kernel.image.display().to_string()]);
    arguments.extend(["-initrd".to_owned(), initramfs.display().to_string()]);
    // A kernel that checks its timer panics if this host is too busy to emulate the ticks in time.
    let line = format!("console=ttyS0 panic=-1 no_timer_check {}", spec.agent_arguments("ttyS1"));
    arguments.extend(["-append".to_owned(), line]);
    if let Some(monitor) = &spec.monitor {
        let monitor = absolute(monitor).doing(|| monitor.display().to_string())?;
        let listens = format!("unix:{},server=on,wait=off", comma_doubled(&monitor));
        arguments.extend(["-qmp".to_owned(), listens]);
    }
    let mut system = format!("QEMU with {accelerator}");
    if let Some(nic) = &spec.nic {
        let (card, words) = card(spec, nic, accelerator)?;
        arguments.extend(words);
        system += &format!(", {card}");
    }
    let image = format!("{}, {}", kernel.image.display(), initramfs.display());
    Ok(Launch { program: program.to_owned(), arguments, links: Vec::new(), system, image, limit })
}

/// A network card in words, and its options.
fn card(spec: &GuestSpec, nic: &Nic, accelerator: Accelerator) -> Result<(String, Vec<String>), Error> {
    let (queues, mac) = (nic.queues, Mac(nic.mac));
    let refuse = |reason: &str| Error::Spec { guest: spec.name.clone(), reason: reason.to_owned() };
    let vectors = match accelerator {
        Accelerator::Kvm => 2 * queues + 2,
        // Without KVM, QEMU 7.2 crashes with MSI-X on a vhost-user card (SIGSEGV below msix_set_vector_notifiers). A card on a tap
        // has none either, as backends are compared by guests with the same card.
        Accelerator::Tcg => 0,
    };
    let model = if vectors == 0 { "virtio without MSI-X" } else { "virtio" };
    let virtio = format!("virtio-net-pci,netdev=card,mac={mac},vectors={vectors},packed={}", on(nic.packed));
    Ok(match (&nic.backend, spec.kind) {
        (Backend::VhostUser(_) | Backend::VhostUserClient(_), Kind::QemuE1000) => {
            return Err(refuse("an e1000 card cannot have a vhost-user backend, only a tap"));
        }
        (Backend::VhostUser(socket) | Backend::VhostUserClient(socket), _) => {
            let role = match nic.backend {
                Backend::VhostUserClient(_) => "server=on,wait=off",
                _ => "reconnect=1",
            };
            let socket = absolute(socket).doing(|| socket.display().to_string())?;
            let socket = format!("socket,id=card,{role},path={}", comma_doubled(&socket));
            let network = format!("vhost-user,id=card,chardev=card,queues={queues}");
            let device = format!("{virtio},mq={}", on(queues > 1));
            (
                format!("{model} on vhost-user"),
                vec!["-chardev".to_owned(), socket, "-netdev".to_owned(), network, "-device".to_owned(), device],
            )
        }
        (Backend::Tap(_), _) if queues != 1 => {
            return Err(refuse(&format!("a card on a tap has one queue pair, not {queues}")));
        }
        (Backend::Tap(tap), kind) => {
            let (device, name) = match kind {
                Kind::QemuE1000 => (format!("e1000,netdev=card,mac={mac}"), "e1000"),
                _ => (virtio, model),
            };
            // vhost-net notifies guests through KVM.
            let usable = || fs::File::options().read(true).write(true).open("/dev/vhost-net").is_ok();
            let vhost = kind != Kind::QemuE1000 && accelerator == Accelerator::Kvm && usable();
            let network = format!("tap,id=card,ifname={tap},script=no,downscript=no,vhost={}", on(vhost));
            let by = if vhost { "vhost-net" } else { "QEMU" };
            (format!("{name} on a tap by {by}"), vec!["-netdev".to_owned(), network, "-device".to_owned(), device])
        }
    })
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

/// A path as part of an option's value, where a comma is written twice.
pub(crate) fn comma_doubled(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// What a comparison of backends shows must not be the guests' cards.
    #[test]
    fn the_card_does_not_depend_on_the_backend() {
        let device = |backend: Backend, accelerator| {
            let nic = Nic {
                backend,
                mac: [2, 0, 0, 0, 0, 1],
                address: Ipv4Addr::LOCALHOST,
                prefix: 8,
                queues: 1,
                packed: false,
            };
            let spec = GuestSpec {
                name: "guest".to_owned(),
                kind: Kind::Qemu,
                cpus: 1,
                memory_mib: 128,
                tools: Tools::default(),
                nic: None,
                monitor: None,
                log: "log".into(),
            };
            let (_, words) = card(&spec, &nic, accelerator).unwrap();
            let at = words.iter().position(|word| word == "-device").unwrap();
            words[at + 1].replace(",mq=off", "")
        };
        for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
            let tap = device(Backend::Tap("tap0".to_owned()), accelerator);
            assert_eq!(device(Backend::VhostUser("socket".into()), accelerator), tap);
            assert!(tap.starts_with("virtio-net-pci,") && tap.contains(",vectors="), "{tap}");
        }
    }
}
