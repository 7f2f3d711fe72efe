//! Debian packages, fetched by APT and unpacked in the cache; they are not installed.
//!
//! Each package has a directory of its name, with its files and the SHA-256 of their archive, by which a newer version is
//! noticed. Cached packages are used without a network.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Progress, cache,
    contents::{entries, hash},
    error::{Error, IoContext},
    program::{self, output},
};

/// The kernel of every guest and host that is not User-Mode Linux. This package depends on the newest kernel's package, which is
/// fetched in its place.
pub(crate) const KERNEL: &str = "linux-image-amd64";

/// Xen, its tools, Python to read each domain's CPU time, which no tool does, `ip`, `tc` and `ethtool`, and the libraries of all
/// these.
pub(crate) const XEN: [&str; 39] = [
    "ethtool",
    "iproute2",
    "libbpf1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libelf1",
    "libexpat1",
    "libgcc-s1",
    "liblzma5",
    "libmd0",
    "libmnl0",
    "libnl-3-200",
    "libnl-route-3-200",
    "libpython3.11-minimal",
    "libtinfo6",
    "libuuid1",
    "libxencall1",
    "libxendevicemodel1",
    "libxenevtchn1",
    "libxenforeignmemory1",
    "libxengnttab1",
    "libxenhypfs1",
    "libxenmisc4.17",
    "libxenstore4",
    "libxentoolcore1",
    "libxentoollog1",
    "libxtables12",
    "libyajl2",
    "libzstd1",
    "python3.11-minimal",
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "xen-utils-common",
    "xenstore-utils",
    "zlib1g",
    "libncurses6",
    "libbz2-1.0",
    "liblzo2-2",
];

/// HAProxy, for a guest that is a load balancer, and its libraries that no other list has.
pub(crate) const PROXY: [&str; 10] = [
    "haproxy",
    "libcrypt1",
    "libgcrypt20",
    "libgpg-error0",
    "liblua5.3-0",
    "liblz4-1",
    "libopentracing-c-wrapper0",
    "libopentracing1",
    "libstdc++6",
    "libsystemd0",
];

/// Open MPI, for a guest that takes part in a parallel computation, and its libraries that no other list has.
pub(crate) const MPI: [&str; 8] = [
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libhwloc15",
    "libmunge2",
    "libopenmpi3",
    "libpmix2",
    "openmpi-bin",
    "openmpi-common",
];

/// The libraries of `ss`, which the doctor runs, that no other list has.
pub(crate) const DOCTOR: [&str; 7] =
    ["libcom-err2", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0", "libtirpc3"];

/// QEMU for a KVM host, its firmware, and its libraries that no other list has.
pub(crate) const KVM: [&str; 38] = [
    "libaio1",
    "libblkid1",
    "libcapstone4",
    "libdaxctl1",
    "libfdt1",
    "libffi8",
    "libfuse3-3",
    "libglib2.0-0",
    "libgmp10",
    "libgnutls30",
    "libhogweed6",
    "libibverbs1",
    "libidn2-0",
    "libjpeg62-turbo",
    "libkmod2",
    "libmount1",
    "libndctl6",
    "libnettle8",
    "libnuma1",
    "libp11-kit0",
    "libpcre2-8-0",
    "libpixman-1-0",
    "libpmem1",
    "libpng16-16",
    "librdmacm1",
    "libsasl2-2",
    "libseccomp2",
    "libselinux1",
    "libslirp0",
    "libssl3",
    "libtasn1-6",
    "libudev1",
    "libunistring2",
    "liburing2",
    "libvdeplug2",
    "qemu-system-data",
    "qemu-system-x86",
    "seabios",
];

/// The name of the file that holds the archive's hash.
const HASH: &str = "sha256";
/// The name of the directory of its files.
const FILES: &str = "files";

/// The directory of a fetched package's files.
///
/// # Errors
/// [`Error::Missing`] if it was not fetched.
pub(crate) fn files(package: &str) -> Result<PathBuf, Error> {
    let place = place(package)?;
    if place.join(HASH).is_file() {
        return Ok(place.join(FILES));
    }
    Err(Error::Missing(format!("the Debian package {package} was not fetched: run `fairlane lab setup`")))
}

/// Fetches the packages that are not in the cache, or not in APT's newest version.
///
/// # Errors
/// [`Error::Missing`] if APT does not know a package or has no network, [`Error::Io`] if the cache cannot be written.
pub(crate) fn fetch(packages: &[&str], progress: Progress) -> Result<(), Error> {
    let known = Known::query(packages)?;
    let mut wanted = BTreeMap::new();
    for package in packages {
        let archive = known.archive(package)?;
        let kept = fs::read_to_string(place(package)?.join(HASH)).unwrap_or_default();
        if kept != archive.sha256 {
            wanted.insert(archive.sha256.as_str(), (*package, archive));
        }
    }
    if wanted.is_empty() {
        return Ok(());
    }
    progress(&format!("fetching {} Debian packages", wanted.len()));
    let parent = cache::directory()?.join("packages");
    fs::create_dir_all(&parent).doing(|| parent.display().to_string())?;
    let work = tempfile::tempdir_in(&parent).doing(|| parent.display().to_string())?;
    let names = wanted.values().map(|(_, archive)| &archive.package);
    output(Command::new("apt-get").args(["download", "--quiet"]).args(names).current_dir(work.path()))
        .map_err(|error| Error::Missing(format!("{error}: a network, and lists by `apt-get update`, are needed")))?;
    for archive in entries(work.path())? {
        let sha256 = hash(&fs::read(&archive).doing(|| archive.display().to_string())?);
        let (package, about) = wanted.remove(sha256.as_str()).ok_or_else(|| {
            Error::Missing(format!("{}: its SHA-256 differs from APT's: fetch it again", archive.display()))
        })?;
        progress(&format!("unpacking {}", about.package));
        unpack(&archive, &sha256, &place(package)?, work.path())?;
    }
    match wanted.into_values().next() {
        Some((package, _)) => Err(Error::Missing(format!("APT fetched no archive of {package}: run it again"))),
        None => Ok(()),
    }
}

fn place(package: &str) -> Result<PathBuf, Error> {
    Ok(cache::directory()?.join("packages").join(package))
}

/// Unpacks an archive in a temporary directory, then renames it to its final place.
fn unpack(archive: &Path, sha256: &str, place: &Path, work: &Path) -> Result<(), Error> {
    let describe = || place.display().to_string();
    let tree = work.join("tree");
    fs::create_dir(&tree).doing(describe)?;
    output(Command::new("dpkg-deb").arg("--extract").args([archive, &tree.join(FILES)]))?;
    fs::write(tree.join(HASH), sha256).doing(describe)?;
    if place.exists() {
        fs::rename(place, work.join(sha256)).doing(describe)?;
    }
    match fs::rename(&tree, place) {
        // Another process was first.
        Err(_) if place.join(HASH).is_file() => fs::remove_dir_all(&tree).doing(describe),
        result => result.doing(describe),
    }
}

/// APT's records of packages.
struct Known(BTreeMap<String, Archive>);

/// APT's record of a package.
struct Archive {
    package: String,
    sha256: String,
    depends: String,
}

impl Known {
    /// Reads the records of the packages, and of the kernel that [`KERNEL`] depends on.
    fn query(packages: &[&str]) -> Result<Known, Error> {
        let apt = program::find("apt-cache", "APT, which fetches Debian packages,", "apt")?;
        let show = |names: &[&str]| {
            let text = output(Command::new(&apt).args(["show", "--no-all-versions"]).args(names));
            text.unwrap_or_default().split("\n\n").filter_map(Archive::read).collect::<Vec<_>>()
        };
        let mut known: Vec<Archive> = show(packages);
        let kernels: Vec<Archive> =
            known.iter().filter_map(|about| about.kernel()).flat_map(|name| show(&[name])).collect();
        known.extend(kernels);
        Ok(Known(known.into_iter().map(|archive| (archive.package.clone(), archive)).collect()))
    }

    fn archive(&self, package: &str) -> Result<&Archive, Error> {
        let about = self.0.get(package);
        let about = about.and_then(|about| about.kernel().map_or(Some(about), |kernel| self.0.get(kernel)));
        about.ok_or_else(|| {
            Error::Missing(format!("APT knows no package {package}: run `apt-get update`, as root, on Debian 12"))
        })
    }
}

impl Archive {
    /// Parses a paragraph of `apt-cache show`.
    fn read(paragraph: &str) -> Option<Archive> {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let depends = field("Depends").unwrap_or_default();
        Some(Archive { package: field("Package")?, sha256: field("SHA256")?, depends })
    }

    /// The kernel's package that [`KERNEL`] depends on; none for other packages.
    fn kernel(&self) -> Option<&str> {
        let first = self.depends.split([' ', ',']).next()?;
        (self.package == KERNEL).then_some(first)
    }
}
