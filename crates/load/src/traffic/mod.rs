//! Traffic between a client and a server: measures throughput and latency of a network path.
//!
//! One [`server`] serves every [`Pattern`], and HTTP clients, on one port: it distinguishes them by the first byte of a request
//! ([`wire`]). The [`client`] starts a request when one ends (closed loop), or at a rate (open loop). In open loop the latency counts
//! from when a request was *due*, so that the wait for a stalled server is included (coordinated omission; Tene, "How NOT to Measure
//! Latency", 2013).
//!
//! Every thread serves its own sockets by epoll. A request needs no allocation.

pub mod client;
pub mod http;
pub mod server;
mod sockets;
mod tally;
mod wire;

use serde::{Deserialize, Serialize};

pub use tally::{Arrived, Failures, Interval, Tally};
pub use wire::HEADER;

/// The traffic pattern of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Connects, sends a request, receives the response, closes: netperf's TCP_CRR.
    Crr(Sizes),
    /// Alternating requests and responses on connections that stay open: netperf's TCP_RR.
    Rr(Sizes),
    /// HTTP requests to any server.
    Http {
        /// The `Host` header's value.
        host: String,
        /// The path with its query, starting with `/`.
        path: String,
        /// Whether connections stay open (HTTP/1.1), or each carries one request (HTTP/1.0).
        keep_alive: bool,
    },
    /// Bytes to the server as fast as it reads them: netperf's TCP_STREAM.
    Stream,
    /// Bytes from the server as fast as it sends them: netperf's TCP_MAERTS.
    Maerts,
    /// Datagrams to the server, which reports how many arrived.
    Udp {
        /// Payload bytes of a datagram, 8 to 65507.
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
    /// At least [`HEADER`].
    pub request: u32,
    /// At least 1.
    pub response: u32,
}
