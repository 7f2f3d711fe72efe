//! Traffic between a client and a server: what a network path carries, and how long a request takes on it.
//!
//! One [`server`] serves every [`Pattern`] on one port, and whoever speaks HTTP: it tells them apart by the first byte
//! of a request ([`wire`]). The [`client`] takes requests as they come (closed loop: the next begins when one ends), or
//! begins them at a rate (open loop) and counts each from when it was *meant* to begin, so that the wait behind a server
//! that stood still is not forgotten (coordinated omission; Tene, "How NOT to Measure Latency", 2013).
//!
//! Every thread turns its own sockets by epoll. Nothing is allocated for a request.

pub mod client;
pub mod http;
pub mod server;
mod sockets;
mod tally;
mod wire;

use serde::{Deserialize, Serialize};

pub use tally::{Arrived, Failures, Interval, Tally};
pub use wire::HEADER;

/// What a client does again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Connects, sends a request, takes the response, closes: netperf's TCP_CRR.
    Crr(Sizes),
    /// Requests and responses in turn on connections that stay: netperf's TCP_RR.
    Rr(Sizes),
    /// HTTP requests, of any server.
    Http {
        /// The `Host` header's value.
        host: String,
        /// The path with its query, from `/` on.
        path: String,
        /// Whether connections stay (HTTP/1.1), or each carries one request (HTTP/1.0).
        keep_alive: bool,
    },
    /// Bytes to the server as fast as it takes them: netperf's TCP_STREAM.
    Stream,
    /// Bytes from the server as fast as it sends them: netperf's TCP_MAERTS.
    Maerts,
    /// Datagrams to the server, which says which of them came.
    Udp {
        /// Payload bytes a datagram, 8 to 65507.
        size: usize,
    },
}

impl Pattern {
    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Pattern::Crr(_) => "crr",
            Pattern::Rr(_) => "rr",
            Pattern::Http { .. } => "http",
            Pattern::Stream => "stream",
            Pattern::Maerts => "maerts",
            Pattern::Udp { .. } => "udp",
        }
    }
}

/// The sizes of a request and its response, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// At least [`HEADER`]: a request says what is asked for.
    pub request: u32,
    /// At least 1.
    pub response: u32,
}
