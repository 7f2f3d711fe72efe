//! Reasons for which a client stops early, with messages for its user.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use nix::errno::Errno;

use crate::traffic::sockets::{Dial, raise_descriptors};

/// Why a client stopped early.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stop {
    /// The user interrupted it.
    #[error("interrupted")]
    Interrupted,
    /// There is no file descriptor for another connection.
    #[error(
        "no file descriptors left: this process may have {limit}, one per connection: use fewer connections, or raise \
         the limit (ulimit -n)"
    )]
    Descriptors {
        /// The limit of this process.
        limit: u64,
    },
    /// A source address cannot be used.
    #[error("cannot send from {from}: {}: it must be an address of this host", error.desc())]
    Source {
        /// The address.
        from: IpAddr,
        /// The system's error.
        error: Errno,
    },
    /// The server refuses the connection.
    #[error("{0} refuses connections: does a server listen there?")]
    Refused(SocketAddr),
    /// No port is free for another connection.
    #[error(
        "ports exhausted: every local port ({range}) to {to} is in use or in TIME_WAIT: give several source \
         addresses (--source), close by reset (--close reset), or widen net.ipv4.ip_local_port_range"
    )]
    Ports {
        /// The server.
        to: SocketAddr,
        /// The range of the system's local ports.
        range: String,
    },
    /// A connection timed out.
    #[error("{0} does not answer")]
    Unanswered(SocketAddr),
    /// The server sent nothing for too long.
    #[error("no answer from {to} for {seconds:.1} s")]
    Silent {
        /// The server.
        to: SocketAddr,
        /// How long, in seconds.
        seconds: f64,
    },
    /// The server uses another protocol.
    #[error("{to} answers in another protocol ({began:?}): {wanted} is needed")]
    Protocol {
        /// The server.
        to: SocketAddr,
        /// The first bytes of its answer.
        began: String,
        /// The kind of server that the client needs.
        wanted: &'static str,
    },
    /// Many consecutive requests failed.
    #[error("{times} requests in a row to {to} failed, the last because {last}")]
    Failing {
        /// The server.
        to: SocketAddr,
        /// The number of requests.
        times: u64,
        /// Why the last one failed.
        last: Failure,
    },
    /// A stream broke.
    #[error("the stream to {to} broke: {error}")]
    Broken {
        /// The server.
        to: SocketAddr,
        /// The system's error.
        error: String,
    },
    /// The receiver of a stream reports another number of bytes than were sent.
    #[error("{to} received {taken} bytes of {total}: it is no `fairlane load server`")]
    Miscounted {
        /// The server.
        to: SocketAddr,
        /// Bytes by its report.
        taken: u64,
        /// Bytes that were sent.
        total: u64,
    },
    /// The server has no receiver of datagrams.
    #[error("{0} refuses datagrams: does `fairlane load server` run there?")]
    DatagramsRefused(SocketAddr),
    /// The receiver of datagrams does not report what arrived.
    #[error("{0} does not report what arrived: is it a `fairlane load server`, and may UDP pass?")]
    Uncounted(SocketAddr),
    /// A system call failed: a message.
    #[error("{0}")]
    System(String),
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The server sent RST.
    #[error("the connection was reset")]
    Reset,
    /// The server sent FIN.
    #[error("the connection ended before the response")]
    Closed,
    /// The timeout expired.
    #[error("there was no answer in time")]
    TimedOut,
    /// The response has an HTTP error status.
    #[error("of HTTP status {0}")]
    Status(u16),
}

impl Stop {
    /// The reason for an error of dialling.
    pub(super) fn dialling(error: Dial, to: SocketAddr, source: Option<IpAddr>) -> Stop {
        match error {
            Dial::Socket(Errno::EMFILE) => Stop::Descriptors { limit: raise_descriptors() },
            Dial::Socket(error) => Stop::System(format!("cannot make a socket: {}", error.desc())),
            Dial::Bind(error) => Stop::Source { from: source.unwrap_or(to.ip()), error },
            Dial::Connect(error) => Stop::connecting(error, to),
        }
    }

    /// The reason for an error of connecting.
    pub(super) fn connecting(error: Errno, to: SocketAddr) -> Stop {
        match error {
            Errno::ECONNREFUSED => Stop::Refused(to),
            Errno::EADDRNOTAVAIL | Errno::EADDRINUSE => {
                let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
                Stop::Ports { to, range: range.split_whitespace().collect::<Vec<_>>().join(" to ") }
            }
            Errno::ETIMEDOUT => Stop::Unanswered(to),
            error => Stop::System(format!("cannot connect to {to}: {}", error.desc())),
        }
    }

    /// The reason for an answer that does not start as `wanted` requires.
    pub(super) fn protocol(to: SocketAddr, answer: &[u8], wanted: &'static str) -> Stop {
        let began = String::from_utf8_lossy(&answer[..answer.len().min(32)]).trim_end().to_owned();
        Stop::Protocol { to, began, wanted }
    }
}
