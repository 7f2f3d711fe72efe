//! Opening /dev/net/tun and setting its interface up (linux/if_tun.h).

use super::{Error, HEADER};
use crate::interface::{self, Interfaces, check};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens a tap's descriptor: non-blocking, with virtio's header and all offloads, and sets its interface up.
pub(super) fn open(name: &str) -> Result<File, Error> {
    let mut request = interface::request(name).ok_or_else(|| Error::Name(name.into()))?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let tap = options.open("/dev/net/tun").map_err(Error::Device)?;
    let fd = tap.as_raw_fd();
    let failed = |step| move |error| Error::Step { name: name.into(), step, error };

    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which `request` is.
    check(unsafe { libc::ioctl(fd, libc::TUNSETIFF as _, &raw mut request) }).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::EPERM) => Error::NotAllowed { name: name.into() },
            Some(libc::EBUSY) => Error::Busy { name: name.into() },
            _ => failed("TUNSETIFF (is it an interface of another kind?)")(error),
        }
    })?;
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
