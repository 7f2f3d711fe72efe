//! Non-blocking sockets.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
        socket::{self, AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, setsockopt, sockopt},
        time::TimeValLike,
    },
};

/// A listener on `at`, whose connections have TCP_NODELAY. With `shared`, several listeners may share a port: the kernel distributes
/// connections among them by a hash of their addresses (SO_REUSEPORT, socket(7)).
pub(super) fn listen(at: SocketAddr, shared: bool) -> Result<TcpListener, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(family(at), SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::ReusePort, &shared)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// Starts to connect. The local port is chosen by `connect` and not by `bind`, so that a source address can use all ports for each
/// server (IP_BIND_ADDRESS_NO_PORT, ip(7)).
pub(super) fn dial(to: SocketAddr, source: Option<IpAddr>, reset: bool, no_delay: bool) -> Result<OwnedFd, Dial> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(family(to), SockType::Stream, flags, None).map_err(Dial::Socket)?;
    if reset {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&socket, sockopt::Linger, &linger).map_err(Dial::Socket)?;
    }
    if no_delay {
        setsockopt(&socket, sockopt::TcpNoDelay, &true).map_err(Dial::Socket)?;
    }
    if let Some(source) = source {
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true).map_err(Dial::Socket)?;
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::from((source, 0)))).map_err(Dial::Bind)?;
    }
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(error) => Err(Dial::Connect(error)),
    }
}

/// The step of [`dial`] that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dial {
    /// The socket cannot be created.
    Socket(Errno),
    /// The source address cannot be used.
    Bind(Errno),
    /// The server cannot be reached, or no port is left.
    Connect(Errno),
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Sends as many bytes as the socket takes without blocking.
pub(super) fn send(socket: &impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    again(|| socket::send(socket.as_fd().as_raw_fd(), bytes, flags))
}

/// As [`send`], for two consecutive slices.
pub(super) fn send_both(socket: &impl AsFd, first: &[u8], second: &[u8]) -> Result<usize, Errno> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let slices = [IoSlice::new(first), IoSlice::new(second)];
    again(|| socket::sendmsg::<SockaddrStorage>(socket.as_fd().as_raw_fd(), &slices, &[], flags, None))
}

/// Receives the available bytes; 0 at the end of the stream.
pub(super) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    again(|| socket::recv(socket.as_fd().as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT))
}

fn again(mut call: impl FnMut() -> Result<usize, Errno>) -> Result<usize, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => (),
            result => return result,
        }
    }
}

/// Raises this process's limit of file descriptors to its hard limit; returns the new limit.
pub(super) fn raise_descriptors() -> u64 {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// CPU time of this process in user space and in the kernel, in seconds.
pub(super) fn processor_time() -> f64 {
    let micros = |usage: nix::sys::resource::Usage| {
        (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64
    };
    getrusage(UsageWho::RUSAGE_SELF).map_or(f64::NAN, |usage| micros(usage) / 1e6)
}
