//! Network interfaces of the host: their state, and notifications of changes (netdevice(7), rtnetlink(7)).

use crate::Status;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The request of ethtool(8) (linux/sockios.h), and its command that reads the number of queues (linux/ethtool.h).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// A request about the interface of this name, if the name is valid (`dev_valid_name` in linux/net/core/dev.c; a '%'
/// would be a pattern).
pub(crate) fn request(name: &str) -> Option<libc::ifreq> {
    let valid = (1..libc::IFNAMSIZ).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%:".contains(&byte));
    let mut request = blank();
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    valid.then_some(request)
}

fn blank() -> libc::ifreq {
    // SAFETY: an ifreq consists of bytes and numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The outcome of a system call that returns a negative number on failure.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A new socket.
pub(crate) fn socket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointer is passed.
    let fd = check(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) })?;
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option of a socket, whose value points to nothing, or to what the call reads.
pub(crate) fn set<T>(socket: impl AsFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` has `len` bytes, which the call reads.
    check(unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value, len) }).map(drop)
}

/// Reads an option of a socket, whose value consists of numbers. What the kernel does not write is as in `value`.
pub(crate) fn get<T: Copy>(socket: impl AsFd, level: libc::c_int, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `value` has `len` bytes to be written, and is numbers.
    check(unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), level, option, to, &raw mut len) }).map(|_| value)
}

/// The present state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether an administrator set it up.
    pub up: bool,
    /// The largest packet in one of its frames, in bytes.
    pub mtu: u32,
}

/// Reads and changes the interfaces of the network namespace in which it was opened.
pub(crate) struct Interfaces(OwnedFd);

impl Interfaces {
    /// Opens a socket for the requests.
    ///
    /// # Errors
    /// The error of `socket`.
    pub(crate) fn open() -> io::Result<Interfaces> {
        socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map(Interfaces)
    }

    /// Makes a request; the result is in the same structure.
    fn call(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests of this module read and write an ifreq, which `request` is.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), what as _, &raw mut *request) }).map(drop)
    }

    /// The index of the interface that a request names.
    ///
    /// # Errors
    /// ENODEV if there is none.
    pub(crate) fn index(&self, mut request: libc::ifreq) -> io::Result<libc::c_int> {
        self.call(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the call wrote a number there.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    /// Whether the interface that a request names carries Ethernet frames.
    ///
    /// # Errors
    /// ENODEV if there is none.
    pub(crate) fn is_ethernet(&self, mut request: libc::ifreq) -> io::Result<bool> {
        self.call(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the call wrote an address there, whose family is the hardware type.
        Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family } == libc::ARPHRD_ETHER)
    }

    /// The Ethernet address of the interface that a request names.
    ///
    /// # Errors
    /// ENODEV if there is none.
    pub(crate) fn address(&self, mut request: libc::ifreq) -> io::Result<[u8; 6]> {
        self.call(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: the call wrote an address there.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|at| address[at] as u8))
    }

    /// The number of hardware queues that the interface which a request names receives through. One, if its driver does
    /// not tell.
    pub(crate) fn queues(&self, mut request: libc::ifreq) -> u32 {
        // `struct ethtool_channels` of linux/ethtool.h: the command, four maxima, then what is in use: receive,
        // transmit, other, combined.
        let mut channels = [0u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
        match self.call(SIOCETHTOOL, &mut request) {
            Ok(()) => (channels[5] + channels[8]).max(1),
            Err(_) => 1,
        }
    }

    fn flags(&self, mut request: libc::ifreq) -> io::Result<libc::c_short> {
        self.call(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the call wrote the flags.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    /// Sets an interface up if it is down.
    ///
    /// # Errors
    /// EPERM if that needs CAP_NET_ADMIN.
    pub(crate) fn set_up(&self, mut request: libc::ifreq) -> io::Result<()> {
        let flags = self.flags(request)?;
        let up = libc::IFF_UP as libc::c_short;
        if flags & up != 0 {
            return Ok(());
        }
        request.ifr_ifru.ifru_flags = flags | up;
        self.call(libc::SIOCSIFFLAGS, &mut request)
    }

    /// The state of the interface with this index, whatever its present name.
    ///
    /// # Errors
    /// ENODEV if it is gone.
    pub(crate) fn state(&self, index: libc::c_int) -> io::Result<State> {
        let mut request = blank();
        request.ifr_ifru.ifru_ifindex = index;
        self.call(libc::SIOCGIFNAME, &mut request)?;
        let up = self.flags(request)? & libc::IFF_UP as libc::c_short != 0;
        self.call(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the call wrote the MTU.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(State { up, mtu: mtu as u32 })
    }

    /// Whether the interface with this index carries frames. Reads its MTU too, if it exists.
    pub(crate) fn status(&self, index: libc::c_int, mtu: &mut u32) -> Status {
        match self.state(index) {
            Ok(state) => {
                *mtu = state.mtu;
                if state.up { Status::Up } else { Status::Waiting }
            }
            Err(_) => Status::Disabled("the interface was deleted: restart when it exists again".into()),
        }
    }
}

/// Readable whenever an interface changes.
pub(crate) struct Changes(OwnedFd);

impl Changes {
    /// Opens a socket for changes in the present network namespace from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open() -> io::Result<Changes> {
        let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        // SAFETY: a sockaddr_nl consists of numbers, for which zero is a value.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as _;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` has `len` bytes, which the call reads.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Changes(socket))
    }

    /// Discards all messages. [`Interfaces`] has the state.
    pub(crate) fn drain(&self) {
        let mut message = [0u8; 256];
        // SAFETY: `message` has so many bytes of space; the rest of a longer message is dropped. If the system had no
        // room for messages (ENOBUFS) there are none to read.
        while unsafe { libc::recv(self.0.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), 0) } > 0 {}
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
