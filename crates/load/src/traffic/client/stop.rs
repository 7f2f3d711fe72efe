//! Why a client stopped before its time was up, as sentences for its user.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
};

use nix::errno::Errno;

use crate::traffic::sockets::{Dial, raise_descriptors};

/// Why a client stopped before its time was up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Stop {
    /// Its user wanted it to.
    #[error("interrupted")]
    Interrupted,
    /// There is no socket for another connection.
    #[error(
        "no file descriptors left: this process may have {limit}, a connection each: ask for fewer connections, or raise \
         the limit (ulimit -n)"
    )]
    Descriptors {
        /// How many this process may have.
        limit: u64,
    },
    /// Connections cannot come from this address.
    #[error("cannot send from {from}: {}: it must be an address of this machine", error.desc())]
    Source {
        /// The address.
        from: IpAddr,
        /// The system's error.
        error: Errno,
    },
    /// Nobody listens.
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
        /// The first and the last that the system gives.
        range: String,
    },
    /// A connection was not made in time.
    #[error("{0} does not answer")]
    Unanswered(SocketAddr),
    /// There was no answer at all for too long.
    #[error("no answer from {to} for {seconds:.1} s")]
    Silent {
        /// The server.
        to: SocketAddr,
        /// For how long.
        seconds: f64,
    },
    /// The server speaks something else.
    #[error("{to} answers in another protocol ({began:?}): {wanted} is needed")]
    Protocol {
        /// The server.
        to: SocketAddr,
        /// How its answer began.
        began: String,
        /// Whom the client can talk with.
        wanted: &'static str,
    },
    /// One request after another failed.
    #[error("{times} requests in a row to {to} failed, the last because {last}")]
    Failing {
        /// The server.
        to: SocketAddr,
        /// How many.
        times: u64,
        /// Why the last one did.
        last: Failure,
    },
    /// A stream ended before its time.
    #[error("the stream to {to} broke off: {error}")]
    Broken {
        /// The server.
        to: SocketAddr,
        /// The system's error.
        error: String,
    },
    /// The receiver of a stream counted something else than what was sent.
    #[error("{to} took {taken} bytes of {total}: it is no `fairlane load server`")]
    Miscounted {
        /// The server.
        to: SocketAddr,
        /// Bytes it says it took.
        taken: u64,
        /// Bytes that were sent.
        total: u64,
    },
    /// Nobody takes datagrams.
    #[error("{0} refuses datagrams: does `fairlane load server` run there?")]
    DatagramsRefused(SocketAddr),
    /// The receiver of datagrams does not say what came of them.
    #[error("{0} does not say what came: is it a `fairlane load server`, and may UDP pass?")]
    Uncounted(SocketAddr),
    /// This machine's system refused something: a sentence.
    #[error("{0}")]
    System(String),
}

/// Why a request came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// By RST.
    #[error("the connection was reset")]
    Reset,
    /// By FIN.
    #[error("the connection ended before the response")]
    Closed,
    /// Nothing came.
    #[error("there was no answer in time")]
    TimedOut,
    /// What came said so.
    #[error("of HTTP status {0}")]
    Status(u16),
}

impl Stop {
    /// Why there is no connection.
    pub(super) fn dialling(error: Dial, to: SocketAddr, source: Option<IpAddr>) -> Stop {
        match error {
            Dial::Socket(Errno::EMFILE) => Stop::Descriptors { limit: raise_descriptors() },
            Dial::Socket(error) => Stop::System(format!("cannot make a socket: {}", error.desc())),
            Dial::Bind(error) => Stop::Source { from: source.unwrap_or(to.ip()), error },
            Dial::Connect(error) => Stop::connecting(error, to),
        }
    }

    /// Why a connection was not made.
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

    /// The server's answer is not as `wanted` would begin it.
    pub(super) fn protocol(to: SocketAddr, answer: &[u8], wanted: &'static str) -> Stop {
        let began = String::from_utf8_lossy(&answer[..answer.len().min(32)]).trim_end().to_owned();
        Stop::Protocol { to, began, wanted }
    }
}
