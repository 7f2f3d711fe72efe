//! Opening /dev/net/tun and setting an interface up (linux/if_tun.h, netdevice(7)).

use super::{Error, HEADER};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// A tap's descriptor: non-blocking, with virtio's header, all offloads, its interface up.
pub(super) fn open(name: &str) -> Result<File, Error> {
    let mut request = request(name).ok_or_else(|| Error::Name(name.into()))?;
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
    up(request).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => Error::Down { name: name.into() },
        _ => failed("SIOCSIFFLAGS")(error),
    })?;
    Ok(tap)
}

/// Sets an interface up unless it is.
fn up(mut request: libc::ifreq) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(socket)?;
    // SAFETY: `socket` was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: SIOCGIFFLAGS reads the name of an ifreq and writes its flags.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) })?;
    // SAFETY: the call before wrote the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let up = libc::IFF_UP as libc::c_short;
    if flags & up != 0 {
        return Ok(());
    }
    request.ifr_ifru.ifru_flags = flags | up;
    // SAFETY: SIOCSIFFLAGS reads an ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })
}

/// A request about the interface of this name, if it can be one (`dev_valid_name` in linux/net/core/dev.c; a '%' would be a
/// pattern).
fn request(name: &str) -> Option<libc::ifreq> {
    let valid = (1..libc::IFNAMSIZ).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%:".contains(&byte));
    // SAFETY: an ifreq is bytes and numbers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    valid.then_some(request)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
