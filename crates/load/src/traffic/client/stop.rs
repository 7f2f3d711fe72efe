//! Why a client stopped before its time was up, as sentences for its user.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use nix::errno::Errno;

use crate::traffic::sockets::{Dial, raise_descriptors};

/// Why there is no connection.
pub fn dialling(error: Dial, to: SocketAddr, source: Option<IpAddr>) -> String {
    let limit = raise_descriptors();
    match error {
        Dial::Socket(Errno::EMFILE) => format!(
            "no file descriptors left: this process may have {limit}, a connection each: ask for fewer connections, or raise \
             the limit (ulimit -n)"
        ),
        Dial::Socket(error) => format!("cannot make a socket: {}", error.desc()),
        Dial::Bind(error) => {
            let source = source.unwrap_or(to.ip());
            format!("cannot send from {source}: {}: it must be an address of this machine", error.desc())
        }
        Dial::Connect(error) => connecting(error, to),
    }
}

/// Why a connection was not made.
pub fn connecting(error: Errno, to: SocketAddr) -> String {
    match error {
        Errno::ECONNREFUSED => format!("{to} refuses connections: does a server listen there?"),
        Errno::EADDRNOTAVAIL | Errno::EADDRINUSE => {
            let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
            let range = range.split_whitespace().collect::<Vec<_>>().join(" to ");
            format!(
                "ports exhausted: every local port ({range}) to {to} is in use or in TIME_WAIT: give several source \
                 addresses (--source), close by reset (--close reset), or widen net.ipv4.ip_local_port_range"
            )
        }
        Errno::ETIMEDOUT => format!("{to} does not answer"),
        error => format!("cannot connect to {to}: {}", error.desc()),
    }
}

/// The server speaks something else.
pub fn protocol(to: SocketAddr, began: &[u8], wanted: &str) -> String {
    let began = String::from_utf8_lossy(&began[..began.len().min(32)]);
    format!("{to} answers in another protocol ({:?}): {wanted} is needed", began.trim_end())
}

/// There was no answer at all for too long.
pub fn silent(to: SocketAddr, seconds: f64) -> String {
    format!("no answer from {to} for {seconds:.1} s")
}

/// One request after another fails.
pub fn failing(to: SocketAddr, last: &str, times: u64) -> String {
    format!("{times} requests in a row to {to} failed, the last because {last}")
}
