//! Kernels and initramfs images of the emulated hosts, built from Debian packages.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

use crate::{
    Progress, cache,
    error::{Error, IoContext},
    image::{self, Image},
    kernel::Kernel,
    libraries::Libraries,
    modules, mpi, packages, program,
    tools::Tools,
    topology::Backend,
};

/// The directory of Xen's own programs, in its package and in the image: its libraries expect them there.
pub(crate) const XEN_PROGRAMS: &str = "usr/lib/xen-4.17/bin";
/// The guests' kernel and initramfs, in the image of dom0 or a KVM host.
pub(crate) const GUEST_KERNEL: &str = "/boot/vmlinux";
/// As [`GUEST_KERNEL`].
pub(crate) const GUEST_INITRAMFS: &str = "/boot/initramfs";

/// The program in dom0's image that prints the domains' CPU time.
pub(crate) const CPU_TIME: &str = "/usr/lib/fairlane/cpu_time.py";

/// The replacement of nice(1) in dom0.
pub(crate) const NICE: &str = "/usr/lib/fairlane/nice.py";

/// The program in dom0's image that replaces the running Fairlane.
pub(crate) const REPLACE: &str = "/usr/lib/fairlane/replace.py";

/// Python in dom0, which has no site packages to look for.
pub(crate) const PYTHON: [&str; 3] = ["/usr/bin/python3.11", "-I", "-S"];

/// The emulator that runs a KVM host's guests, in the host's image.
pub(crate) const KVM_QEMU: &str = "/usr/bin/qemu-system-x86_64";

/// A guest's disk: a link to the device that its driver creates.
pub(crate) const GUEST_DISK: &str = "/disk";

// The doctor runs `ss`, which needs `tcp_diag` for the limit of a listener's queue.
const GUEST_MODULES: [&str; 4] = ["xen_netfront", "xen_blkfront", "af_packet", "tcp_diag"];
/// The modules that the hostile frontend needs: it is a program in the guest.
const HOSTILE_MODULES: [&str; 2] = ["xen_evtchn", "xen_gntalloc"];
const DOM0_MODULES: [&str; 13] = [
    "tcp_diag",
    "xen_evtchn",
    "xen_gntdev",
    "xen_gntalloc",
    "xen_privcmd",
    "xenfs",
    "xen_blkback",
    "null_blk",
    "bridge",
    "e1000",
    "nvme",
    "sch_tbf",
    "af_packet",
];

const BARE_MODULES: [&str; 6] = ["veth", "bridge", "e1000", "sch_tbf", "af_packet", "tcp_diag"];

const KVM_GUEST_MODULES: [&str; 5] = ["virtio_pci", "virtio_net", "virtio_blk", "af_packet", "tcp_diag"];
const KVM_MODULES: [&str; 13] = [
    "tcp_diag",
    "kvm_amd",
    "tun",
    "vhost_net",
    "bridge",
    "e1000",
    "nvme",
    "sch_tbf",
    "sch_ingress",
    "ifb",
    "cls_u32",
    "act_mirred",
    "af_packet",
];
/// The firmware that QEMU needs to boot an uncompressed kernel on a PC.
const FIRMWARE: [(&str, &str); 3] = [
    ("seabios", "usr/share/seabios/bios-256k.bin"),
    ("qemu-system-data", "usr/share/qemu/kvmvapic.bin"),
    ("qemu-system-data", "usr/share/qemu/pvh.bin"),
];

/// Fetches the packages of the emulated hosts and builds their images; removes images that were not used for a day.
///
/// # Errors
/// [`Error::Missing`] with what to do, if the host lacks a program, a package or a network.
pub fn setup(progress: Progress) -> Result<(), Error> {
    program::find_qemu()?;
    let agent = image::agent()?;
    packages::fetch(&all_packages().collect::<Vec<_>>(), progress)?;
    progress("building the images of the Xen host");
    XenImages::build(&agent, Backend::Kernel, Tools::default())?;
    progress("building the images of native Linux");
    BareImages::build(&agent, Tools::default())?;
    progress("building the images of the KVM host");
    KvmImages::build(&agent, Backend::Kernel, Tools::default())?;
    cache::tidy(&cache::directory()?)
}

fn all_packages() -> impl Iterator<Item = &'static str> {
    [packages::KERNEL]
        .into_iter()
        .chain(packages::XEN)
        .chain(packages::KVM)
        .chain(packages::PROXY)
        .chain(packages::MPI)
        .chain(packages::DOCTOR)
}

/// What [`setup`] would have to fetch or would fail on, one message each; empty if nothing is missing. Needs no network.
pub fn check() -> Vec<String> {
    let missing = all_packages().filter_map(|package| packages::files(package).err());
    let programs = [program::find_qemu().err(), image::agent().err()];
    programs.into_iter().flatten().chain(missing).map(|error| error.to_string()).collect()
}

/// The directory of cached files.
///
/// # Errors
/// [`Error::Missing`] if the environment names no home, [`Error::Io`] if it cannot be created.
pub fn directory() -> Result<PathBuf, Error> {
    cache::directory()
}

/// The files that a Xen host boots.
pub(crate) struct XenImages {
    /// The hypervisor, a multiboot kernel.
    pub hypervisor: PathBuf,
    /// dom0's kernel.
    pub kernel: PathBuf,
    /// dom0's initramfs, which contains the guests' initramfs.
    pub dom0: PathBuf,
    /// The kernel's release.
    pub release: String,
}

impl XenImages {
    /// Builds them from the fetched packages, unless they are cached. dom0's initramfs is for one backend.
    ///
    /// # Errors
    /// [`Error::Missing`] if a package was not fetched.
    pub(crate) fn build(agent: &Path, backend: Backend, tools: Tools) -> Result<XenImages, Error> {
        let kernel = Kernel::find()?;
        let hypervisor = packages::files("xen-hypervisor-4.17-amd64")?.join("boot/xen-4.17-amd64.gz");
        let hypervisor = cache::keep(&cache::directory()?, "xen", &unzip(&hypervisor)?)?;
        let unpacked = kernel.unpacked()?;
        let hostile: &[&str] = if tools.hostile { &HOSTILE_MODULES } else { &[] };
        let mut guest =
            Image::new(agent, &modules::resolve(&kernel.modules, &[&GUEST_MODULES[..], hostile].concat())?)?;
        guest.link(&GUEST_DISK[1..], "/dev/xvda");
        if tools.hostile {
            guest.file("bin/hostile", &image::hostile()?)?;
        }
        add_programs(&mut guest, vec![ethtool()?], tools)?;

        // Netback, once loaded, serves every card, so it must not be loaded for Fairlane.
        let netback: &[&str] = if backend == Backend::Kernel { &["xen_netback"] } else { &[] };
        let wanted = [&DOM0_MODULES[..], netback].concat();
        let mut dom0 = Image::new(agent, &modules::resolve(&kernel.modules, &wanted)?)?;
        add_backend(&mut dom0, backend)?;
        for name in ["run/xen", "run/xenstored", "var/lib/xen", "var/lib/xenstored", "var/log/xen", "var/lock", "tmp"] {
            dom0.directory(name);
        }
        dom0.link("var/run", "/run");
        dom0.bytes("etc/xen/scripts/vif-bridge", b"#!/init hotplug\n");
        dom0.bytes("etc/xen/scripts/block", b"#!/init hotplug\n");
        dom0.file(&GUEST_KERNEL[1..], &unpacked)?;
        dom0.bytes(&GUEST_INITRAMFS[1..], &guest.finish());

        let toolstack = packages::files("xen-utils-4.17")?;
        let store = packages::files("xenstore-utils")?;
        let mut programs = network_programs()?;
        for name in ["xl", "xenstored", "xenconsoled", "xen-init-dom0", "libxl-save-helper"] {
            let name = format!("{XEN_PROGRAMS}/{name}");
            programs.push((name.clone(), toolstack.join(name)));
        }
        for name in ["usr/bin/xenstore-read", "usr/bin/xenstore-write"] {
            programs.push((name.to_owned(), store.join(name)));
        }
        add_python(&mut dom0, &mut programs, &toolstack)?;
        // The C library loads it to cancel a thread, without an entry in any program's list of libraries.
        let libgcc = "lib/x86_64-linux-gnu/libgcc_s.so.1";
        dom0.file(libgcc, &packages::files("libgcc-s1")?.join(libgcc))?;
        if tools.doctor {
            dom0.link("bin/xl", &format!("/{XEN_PROGRAMS}/xl"));
        }
        add_programs(&mut dom0, programs, tools.of_host())?;
        Ok(XenImages { hypervisor, kernel: unpacked, dom0: dom0.keep()?, release: kernel.release })
    }
}

/// Adds the parts of Python that the scripts need to read the domains' CPU time from Xen, and the scripts.
fn add_python(dom0: &mut Image, programs: &mut Vec<(String, PathBuf)>, tools: &Path) -> Result<(), Error> {
    const XEN: &str = "usr/lib/xen-4.17/lib/python/xen";
    const ENCODINGS: &str = "usr/lib/python3.11/encodings";
    for name in ["__init__", "aliases", "utf_8"] {
        let name = format!("{ENCODINGS}/{name}.py");
        dom0.file(&name, &packages::files("libpython3.11-minimal")?.join(&name))?;
    }
    for directory in [XEN.to_owned(), format!("{XEN}/lowlevel")] {
        let name = format!("{directory}/__init__.py");
        dom0.file(&name, &tools.join(&name))?;
    }
    dom0.bytes(&CPU_TIME[1..], include_bytes!("machine/cpu_time.py"));
    dom0.bytes(&NICE[1..], include_bytes!("machine/nice.py"));
    dom0.bytes(&REPLACE[1..], include_bytes!("machine/replace.py"));
    let python = &PYTHON[0][1..];
    programs.push((python.to_owned(), packages::files("python3.11-minimal")?.join(python)));
    let module = format!("{XEN}/lowlevel/xc.cpython-311-x86_64-linux-gnu.so");
    programs.push((module.clone(), tools.join(module)));
    Ok(())
}

/// The files that the emulated host boots as native Linux.
pub(crate) struct BareImages {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub initramfs: PathBuf,
    /// The kernel's release.
    pub release: String,
}

impl BareImages {
    /// Builds them; as [`XenImages::build`].
    pub(crate) fn build(agent: &Path, tools: Tools) -> Result<BareImages, Error> {
        let kernel = Kernel::find()?;
        let mut image = Image::new(agent, &modules::resolve(&kernel.modules, &BARE_MODULES)?)?;
        // The names of network namespaces are there.
        image.directory("run");
        image.link("var/run", "/run");
        add_programs(&mut image, network_programs()?, tools)?;
        Ok(BareImages { kernel: kernel.unpacked()?, initramfs: image.keep()?, release: kernel.release })
    }
}

/// The files that a KVM host boots.
pub(crate) struct KvmImages {
    /// Its kernel, which its guests boot too.
    pub kernel: PathBuf,
    /// Its initramfs, which contains the guests' initramfs.
    pub host: PathBuf,
    /// The kernel's release.
    pub release: String,
}

impl KvmImages {
    /// Builds them; as [`XenImages::build`].
    pub(crate) fn build(agent: &Path, backend: Backend, tools: Tools) -> Result<KvmImages, Error> {
        let kernel = Kernel::find()?;
        let unpacked = kernel.unpacked()?;
        let mut guest = Image::new(agent, &modules::resolve(&kernel.modules, &KVM_GUEST_MODULES)?)?;
        guest.link(&GUEST_DISK[1..], "/dev/vda");
        add_programs(&mut guest, Vec::new(), tools)?;
        let mut host = Image::new(agent, &modules::resolve(&kernel.modules, &KVM_MODULES)?)?;
        add_backend(&mut host, backend)?;
        host.file(&GUEST_KERNEL[1..], &unpacked)?;
        host.bytes(&GUEST_INITRAMFS[1..], &guest.finish());
        for (package, name) in FIRMWARE {
            host.file(name, &packages::files(package)?.join(name))?;
        }
        let mut programs = network_programs()?;
        let qemu = &KVM_QEMU[1..];
        programs.push((qemu.to_owned(), packages::files("qemu-system-x86")?.join(qemu)));
        add_programs(&mut host, programs, tools.of_host())?;
        Ok(KvmImages { kernel: unpacked, host: host.keep()?, release: kernel.release })
    }
}

/// Adds Fairlane to a host's image if it is the backend.
fn add_backend(host: &mut Image, backend: Backend) -> Result<(), Error> {
    if backend == Backend::Fairlane {
        host.file("bin/fairlane", &image::fairlane()?)?;
        host.directory("run/fairlane");
    }
    Ok(())
}

/// Adds programs and tools to a guest's or host's image. All come from packages, whatever its kernel is.
///
/// # Errors
/// [`Error::Missing`] if a package was not fetched.
pub(crate) fn add_programs(guest: &mut Image, mut programs: Vec<(String, PathBuf)>, tools: Tools) -> Result<(), Error> {
    if programs.is_empty() && tools == Tools::default() {
        return Ok(());
    }
    let mut packages: Vec<&str> = packages::XEN.iter().chain(&packages::KVM).copied().collect();
    if tools.doctor {
        guest.file("fairlane", &image::fairlane()?)?;
        programs.push(("bin/ss".to_owned(), packages::files("iproute2")?.join("bin/ss")));
        packages.extend(packages::DOCTOR);
    }
    if tools.proxy {
        programs.push(("bin/haproxy".to_owned(), packages::files("haproxy")?.join("usr/sbin/haproxy")));
        packages.extend(packages::PROXY);
    }
    if tools.mpi {
        programs.extend(mpi::add(guest)?);
        packages.extend(packages::MPI);
    }
    guest.programs(&programs, &libraries(&packages)?)
}

/// The programs that configure a host's network, at the paths where a program without a PATH looks for them.
fn network_programs() -> Result<Vec<(String, PathBuf)>, Error> {
    let files = packages::files("iproute2")?;
    let own = [("bin/ip", "bin/ip"), ("bin/tc", "sbin/tc")].map(|(name, from)| (name.to_owned(), files.join(from)));
    Ok(own.into_iter().chain([ethtool()?]).collect())
}

/// ethtool, which configures the offloads of a card.
fn ethtool() -> Result<(String, PathBuf), Error> {
    Ok(("bin/ethtool".to_owned(), packages::files("ethtool")?.join("sbin/ethtool")))
}

fn libraries(packages: &[&str]) -> Result<Libraries, Error> {
    let trees: Vec<PathBuf> = packages.iter().map(|package| packages::files(package)).collect::<Result<_, _>>()?;
    Libraries::list(&trees)
}

fn unzip(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).and_then(|file| GzDecoder::new(file).read_to_end(&mut bytes));
    file.doing(|| path.display().to_string())?;
    Ok(bytes)
}
