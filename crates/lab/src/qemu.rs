//! QEMU: a whole emulated machine, with KVM where that truly boots a guest.

use std::{
    fmt, fs,
    path::{Path, PathBuf, absolute},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use crate::{
    cache,
    error::{Error, IoContext},
    guest::{Backend, Guest, GuestSpec, Kind, Launch, Nic, find_program, output},
    image, modules,
};

/// A small Debian kernel with virtio drivers; this package names the newest.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// The drivers wanted of it.
const DRIVERS: [&str; 3] = ["virtio_pci", "virtio_net", "e1000"];

/// The command that is a QEMU guest. Its console is the first serial line, the agent's the second.
pub fn machine(spec: &GuestSpec, agent: &Path) -> Result<Launch, Error> {
    let program = find_program("qemu-system-x86_64", "QEMU", "qemu-system-x86")?;
    let kernel = Kernel::find()?;
    let initramfs = image::initramfs(agent, &modules::resolve(&kernel.modules, &DRIVERS)?)?;
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

/// Decides once a process, by booting a guest: `/dev/kvm` may exist and be of no use.
fn accelerator(agent: &Path, program: &Path, kernel: &Kernel, initramfs: &Path) -> Accelerator {
    static CHOICE: OnceLock<Accelerator> = OnceLock::new();
    *CHOICE.get_or_init(|| {
        let boots = || {
            fs::File::options().read(true).write(true).open("/dev/kvm").ok()?;
            let log = tempfile::NamedTempFile::new().ok()?;
            let (name, log) = ("kvm-trial".to_owned(), log.path().to_owned());
            let spec = GuestSpec { name, kind: Kind::Qemu, memory_mib: 256, nic: None, log };
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
    let limit = match accelerator {
        Accelerator::Kvm => Duration::from_secs(30),
        Accelerator::Tcg => Duration::from_secs(120),
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
    let mut system = format!("QEMU with {accelerator}");
    if let Some(nic) = &spec.nic {
        let (card, words) = card(spec, nic, accelerator)?;
        arguments.extend(words);
        system += &format!(", {card}");
    }
    let image = format!("{}, {}", kernel.image.display(), initramfs.display());
    Ok(Launch { program: program.to_owned(), arguments, system, image, limit })
}

/// A network card in words, and the options that make it.
fn card(spec: &GuestSpec, nic: &Nic, accelerator: Accelerator) -> Result<(String, Vec<String>), Error> {
    let (queues, mac) = (nic.queues, nic.mac());
    let refuse = |reason: &str| Error::Orders { guest: spec.name.clone(), reason: reason.to_owned() };
    Ok(match (&nic.backend, spec.kind) {
        (Backend::VhostUser(_), Kind::QemuE1000) => {
            return Err(refuse("an e1000 card on a vhost-user backend wanted; that serves virtio cards, a tap both"));
        }
        (Backend::VhostUser(socket), _) => {
            let socket = absolute(socket).doing(|| socket.display().to_string())?;
            let vectors = match accelerator {
                Accelerator::Kvm => 2 * queues + 2,
                // Without KVM, QEMU 7.2 dies of MSI-X on a vhost-user card (SIGSEGV below msix_set_vector_notifiers).
                Accelerator::Tcg => 0,
            };
            let socket = format!("socket,id=card,reconnect=1,path={}", comma_doubled(&socket));
            let network = format!("vhost-user,id=card,chardev=card,queues={queues}");
            let device = format!("virtio-net-pci,netdev=card,mac={mac},mq={},vectors={vectors}", on(queues > 1));
            (
                "virtio on vhost-user".to_owned(),
                vec!["-chardev".to_owned(), socket, "-netdev".to_owned(), network, "-device".to_owned(), device],
            )
        }
        (Backend::Tap(_), _) if queues != 1 => {
            return Err(refuse(&format!("{queues} queues on a tap wanted, and it has one only")));
        }
        (Backend::Tap(tap), kind) => {
            let (model, name) = if kind == Kind::QemuE1000 { ("e1000", "e1000") } else { ("virtio-net-pci", "virtio") };
            // The kernel's own backend tells guests of its work by KVM's means.
            let usable = || fs::File::options().read(true).write(true).open("/dev/vhost-net").is_ok();
            let vhost = model != "e1000" && accelerator == Accelerator::Kvm && usable();
            let network = format!("tap,id=card,ifname={tap},script=no,downscript=no,vhost={}", on(vhost));
            let by = if vhost { "vhost-net" } else { "QEMU" };
            (
                format!("{name} on a tap by {by}"),
                vec!["-netdev".to_owned(), network, "-device".to_owned(), format!("{model},netdev=card,mac={mac}")],
            )
        }
    })
}

fn on(yes: bool) -> &'static str {
    if yes { "on" } else { "off" }
}

/// A path in an option's value: there a comma would end it, and two stand for one.
fn comma_doubled(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A kernel and the modules it may need.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Finds the kernel in the cache, or downloads it there.
    fn find() -> Result<Kernel, Error> {
        let place = cache::directory()?.join("kernel");
        if !place.is_dir() {
            download(&place)?;
        }
        Ok(Kernel { image: place.join("vmlinuz"), modules: place })
    }
}

/// Downloads Debian's kernel and puts its image and the modules needed into the directory `place`.
fn download(place: &Path) -> Result<(), Error> {
    let apt_cache = find_program("apt-cache", "APT, by which the QEMU guests' kernel is fetched,", "apt")?;
    let about = output(Command::new(apt_cache).args(["show", "--no-all-versions", KERNEL_PACKAGE])).unwrap_or_default();
    let package = about
        .lines()
        .find_map(|line| line.strip_prefix("Depends: ")?.split([' ', ',']).next())
        .ok_or_else(|| Error::Missing(format!("APT knows no {KERNEL_PACKAGE}: run `apt-get update`, as root")))?;

    let parent = place.parent().unwrap_or(Path::new("/"));
    let work = tempfile::tempdir_in(parent).doing(|| parent.display().to_string())?;
    output(Command::new("apt-get").args(["download", package]).current_dir(work.path()))?;
    let archive = only_entry(work.path())?;
    let tree = work.path().join("tree");
    output(Command::new("dpkg-deb").arg("-x").args([&archive, &tree]))?;

    let kernel = work.path().join("kernel");
    fs::create_dir(&kernel).doing(|| kernel.display().to_string())?;
    let version = package.trim_start_matches("linux-image-");
    let copy = |from: &Path, name: &Path| {
        fs::copy(from, kernel.join(name)).map(|_| ()).doing(|| format!("copy {}", from.display()))
    };
    copy(&tree.join(format!("boot/vmlinuz-{version}")), Path::new("vmlinuz"))?;
    for module in modules::resolve(&tree.join("lib/modules").join(version), &DRIVERS)? {
        copy(&module, Path::new(module.file_name().unwrap_or_default()))?;
    }
    match fs::rename(&kernel, place) {
        // Another process was faster.
        Err(_) if place.is_dir() => Ok(()),
        result => result.doing(|| place.display().to_string()),
    }
}

fn only_entry(directory: &Path) -> Result<PathBuf, Error> {
    let describe = || directory.display().to_string();
    let entry = fs::read_dir(directory).doing(describe)?.next();
    Ok(entry.ok_or_else(|| std::io::ErrorKind::NotFound.into()).flatten().doing(describe)?.path())
}
