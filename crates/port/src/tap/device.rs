//! Opening /dev/net/tun and setting its interface up (linux/if_tun.h).

use super::{Error, HEADER};
use crate::interface::{self, Interfaces, check};
use crate::store;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// What is read and written: frames with virtio's header.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Opens a tap's descriptor, or goes on with that of the former process: non-blocking, with virtio's header and all
/// offloads, and with its interface set up. Frames that arrived between the two wait in it.
pub(super) fn open(name: &str) -> Result<Arc<File>, Error> {
    let request = interface::request(name).ok_or_else(|| Error::Name(name.into()))?;
    let tap = store::file(&format!("tap {name}"), |tap| is_of(tap, request), || attach(name, request))?;
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
    })?;
    Ok(tap)
}

/// Opens a descriptor, and attaches it to the interface.
fn attach(name: &str, mut request: libc::ifreq) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tap = options.open("/dev/net/tun").map_err(Error::Device)?;
    request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
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
