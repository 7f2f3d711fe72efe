//! What the emulated computer is started with: kernels and initramfs images, built from Debian packages.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

use crate::{
    Progress, cache,
    error::{Error, IoContext},
    guest::find_program,
    image::{self, Image},
    kernel::Kernel,
    libraries::Libraries,
    modules, packages,
};

/// The directory of Xen's own programs, in its package and in the image: its libraries look for them there.
pub(crate) const XEN_PROGRAMS: &str = "usr/lib/xen-4.17/bin";
/// The guests' kernel and initramfs, in dom0's image.
pub(crate) const GUEST_KERNEL: &str = "/boot/vmlinuz";
/// As [`GUEST_KERNEL`].
pub(crate) const GUEST_INITRAMFS: &str = "/boot/initramfs";

const GUEST_MODULES: [&str; 3] = ["xen_netfront", "xen_blkfront", "af_packet"];
const DOM0_MODULES: [&str; 11] = [
    "xen_evtchn",
    "xen_gntdev",
    "xen_gntalloc",
    "xen_privcmd",
    "xenfs",
    "xen_netback",
    "xen_blkback",
    "bridge",
    "e1000",
    "sch_tbf",
    "af_packet",
];

/// Fetches what the emulated machines are built from, and builds their images. Says what it does as it does it.
///
/// # Errors
/// [`Error::Missing`] with what to do, where the host lacks a program, a package or a network.
pub fn setup(progress: Progress) -> Result<(), Error> {
    find_qemu()?;
    let agent = image::agent()?;
    let packages: Vec<&str> = [packages::KERNEL].into_iter().chain(packages::XEN).collect();
    packages::fetch(&packages, progress)?;
    progress("building the images of the Xen host");
    XenImages::build(&agent)?;
    Ok(())
}

/// What [`setup`] would have to do or complain of, a line each; nothing where all is there. Asks no network.
pub fn check() -> Vec<String> {
    let packages = [packages::KERNEL].into_iter().chain(packages::XEN);
    let missing = packages.filter_map(|package| packages::files(package).err());
    let programs = [find_qemu().err(), image::agent().err()];
    programs.into_iter().flatten().chain(missing).map(|error| error.to_string()).collect()
}

/// The emulator.
pub(crate) fn find_qemu() -> Result<PathBuf, Error> {
    find_program("qemu-system-x86_64", "QEMU", "qemu-system-x86")
}

/// What a Xen host is started with.
pub(crate) struct XenImages {
    /// The hypervisor, a multiboot kernel.
    pub hypervisor: PathBuf,
    /// dom0's kernel.
    pub kernel: PathBuf,
    /// dom0's initramfs, which holds that of the guests.
    pub dom0: PathBuf,
    /// The kernel's release.
    pub release: String,
}

impl XenImages {
    /// Builds them from the packages that were fetched, or finds them kept.
    ///
    /// # Errors
    /// [`Error::Missing`] where a package was not fetched.
    pub fn build(agent: &Path) -> Result<XenImages, Error> {
        let kernel = Kernel::find()?;
        let hypervisor = packages::files("xen-hypervisor-4.17-amd64")?.join("boot/xen-4.17-amd64.gz");
        let hypervisor = cache::keep(&cache::directory()?, "xen", &unzip(&hypervisor)?)?;
        let guest = Image::new(agent, &modules::resolve(&kernel.modules, &GUEST_MODULES)?)?;

        let mut dom0 = Image::new(agent, &modules::resolve(&kernel.modules, &DOM0_MODULES)?)?;
        for name in ["run/xen", "run/xenstored", "var/lib/xen", "var/lib/xenstored", "var/log/xen", "var/lock", "tmp"] {
            dom0.directory(name);
        }
        dom0.link("var/run", "/run");
        dom0.bytes("etc/xen/scripts/vif-bridge", b"#!/init hotplug\n");
        dom0.bytes("etc/xen/scripts/block", b"#!/init hotplug\n");
        dom0.file(&GUEST_KERNEL[1..], &kernel.image)?;
        dom0.bytes(&GUEST_INITRAMFS[1..], &guest.finish());

        let trees: Vec<PathBuf> =
            packages::XEN.iter().map(|package| packages::files(package)).collect::<Result<_, _>>()?;
        let tools = packages::files("xen-utils-4.17")?.join(XEN_PROGRAMS);
        let network = packages::files("iproute2")?;
        let store = packages::files("xenstore-utils")?.join("usr/bin");
        let xen = ["xl", "xenstored", "xenconsoled", "xen-init-dom0"]
            .map(|name| (format!("{XEN_PROGRAMS}/{name}"), tools.join(name)));
        let store = ["xenstore-read", "xenstore-write"].map(|name| (format!("usr/bin/{name}"), store.join(name)));
        let network =
            [("bin/ip", "bin/ip"), ("bin/tc", "sbin/tc")].map(|(name, from)| (name.to_owned(), network.join(from)));
        let programs: Vec<(String, PathBuf)> = xen.into_iter().chain(store).chain(network).collect();
        // The C library loads it where a thread is cancelled, and names it nowhere.
        dom0.file(
            "lib/x86_64-linux-gnu/libgcc_s.so.1",
            &packages::files("libgcc-s1")?.join("lib/x86_64-linux-gnu/libgcc_s.so.1"),
        )?;
        dom0.programs(&programs, &Libraries::list(&trees)?)?;
        Ok(XenImages { hypervisor, kernel: kernel.image, dom0: dom0.keep()?, release: kernel.release })
    }
}

fn unzip(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let file = File::open(path).and_then(|file| GzDecoder::new(file).read_to_end(&mut bytes));
    file.doing(|| path.display().to_string())?;
    Ok(bytes)
}
