//! Opening /dev/net/tun and setting its interface up (linux/if_tun.h).

use super::{Error, HEADER, steering};
use crate::interface::{self, Interfaces, check};
use crate::store::{self, Stored};
use crate::turns;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;

/// Queues of a tap.
pub(super) const QUEUES: usize = 16;

/// What is read and written: frames with virtio's header.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// An open tap.
pub(super) struct Device {
    queues: Arc<Queues>,
    _lock: Arc<UnixListener>,
}

/// A descriptor for each queue.
struct Queues(Vec<File>);

impl Stored for Queues {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(File::as_fd).collect()
    }
}

impl Device {
    /// A descriptor for each of its queues: one, if the interface was created with one.
    #[inline]
    pub(super) fn queues(&self) -> &[File] {
        &self.queues.0
    }
}

/// Opens a tap's descriptors, or goes on with those of the former process: non-blocking, with virtio's header and all
/// offloads, and with its interface set up. Frames that arrived between the two wait in them.
pub(super) fn open(name: &str) -> Result<Device, Error> {
    let request = interface::request(name).ok_or_else(|| Error::Name(name.into()))?;
    let lock = lock(name)?;
    let kept = |fds: Vec<OwnedFd>| {
        let queues: Vec<File> = fds.into_iter().map(File::from).collect();
        let is_usable = (1..=turns::MOST).contains(&queues.len()) && queues.iter().all(|queue| is_of(queue, request));
        is_usable.then_some(Queues(queues))
    };
    let queues = store::several(&format!("tap {name}"), kept, || attach_all(name, request).map(Queues))?;
    set_up(name, request, &queues.0[0])?;
    Ok(Device { queues, _lock: lock })
}

/// Attaches all queues.
fn attach_all(name: &str, request: libc::ifreq) -> Result<Vec<File>, Error> {
    let several = || (0..QUEUES).map(|_| attach(name, request, FLAGS | libc::IFF_MULTI_QUEUE)).collect();
    let queues: Vec<File> = match several() {
        // An interface that was created with one queue has no more.
        Err(Error::Step { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => {
            return Ok(vec![attach(name, request, FLAGS)?]);
        }
        queues => queues?,
    };
    if let Err(error) = steering::by_destination(&queues[0]) {
        tracing::info!(tap = name, %error, "frames are not steered by destination: a flood may delay frames for other guests");
    }
    Ok(queues)
}

/// Keeps other processes from the interface: the kernel lets several attach queues to it.
fn lock(name: &str) -> Result<Arc<UnixListener>, Error> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::Busy { name: name.into() },
        _ => Error::Step { name: name.into(), step: "bind", error },
    };
    store::named_listener(&format!("tap {name} lock"), || {
        let address = SocketAddr::from_abstract_name(format!("fairlane tap {name}")).map_err(failed)?;
        UnixListener::bind_addr(&address).map_err(failed)
    })
}

/// Sets the format of frames, the offloads, and the interface up.
fn set_up(name: &str, request: libc::ifreq, tap: &File) -> Result<(), Error> {
    let fd = tap.as_raw_fd();
    let failed = |step| move |error| Error::Step { name: name.into(), step, error };
    let size = HEADER as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    check(unsafe { libc::ioctl(fd, libc::TUNSETVNETHDRSZ as _, &raw const size) })
        .map_err(failed("TUNSETVNETHDRSZ"))?;
    let little: libc::c_int = 1;
    // SAFETY: TUNSETVNETLE reads an int.
    check(unsafe { libc::ioctl(fd, libc::TUNSETVNETLE as _, &raw const little) }).map_err(failed("TUNSETVNETLE"))?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: TUNSETOFFLOAD takes its argument as a number.
    check(unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD as _, offloads as libc::c_ulong) })
        .map_err(failed("TUNSETOFFLOAD"))?;
    let control = Interfaces::open().map_err(failed("socket"))?;
    control.set_up(request).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Error::Down { name: name.into() },
        _ => failed("SIOCSIFFLAGS")(error),
    })
}

/// Opens a descriptor, and attaches it to the interface.
fn attach(name: &str, mut request: libc::ifreq, flags: libc::c_int) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tap = options.open("/dev/net/tun").map_err(Error::Device)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which `request` is.
    let attached = check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) });
    attached.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Error::NotAllowed { name: name.into() },
        Some(libc::EBUSY) => Error::Busy { name: name.into() },
        _ => Error::Step { name: name.into(), step: "TUNSETIFF (is it an interface of another kind?)", error },
    })?;
    Ok(tap)
}

/// Whether a descriptor is attached to this interface, as [`attach`] does.
fn is_of(tap: &File, request: libc::ifreq) -> bool {
    let mut present = request;
    // SAFETY: TUNGETIFF writes an ifreq, which `present` is. Other kinds of descriptors refuse it.
    let known = check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNGETIFF as _, &raw mut present) });
    // SAFETY: the call wrote flags there.
    let flags = unsafe { present.ifr_ifru.ifru_flags };
    known.is_ok() && present.ifr_name == request.ifr_name && libc::c_int::from(flags) & FLAGS == FLAGS
}
