//! Network traffic: datagrams and streams, client and server.
//!
//! A sender makes an offered load and says what it sent. A receiver cuts time into intervals on its own
//! monotonic clock and says, for each source and interval, what arrived. Guests share no clock: a receiver
//! reports [`Progress::Started`] when its clock starts, and whoever listens notes that moment on its own.
#![forbid(unsafe_code)]

mod meter;
mod pacer;
pub mod tcp;
pub mod udp;

use std::{io, net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

pub use meter::Meter;
pub use pacer::Pacer;

/// A receiver's orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiveSpec {
    /// The port to bind; zero picks one, told by [`Progress::Started`].
    pub port: u16,
    /// Seconds an interval.
    pub interval: f64,
    /// How long to count, in seconds.
    pub seconds: f64,
}

/// What arrived from one source in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, in seconds since the receiver started counting.
    pub t: f64,
    /// The sender's address and port: one sender's socket, or one connection.
    pub source: SocketAddr,
    /// Payload bytes, without UDP, TCP, IP or Ethernet headers.
    pub bytes: u64,
    /// Datagrams; zero for a stream.
    pub datagrams: u64,
    /// Sequence numbers passed over: lost, unless they came late.
    pub skipped: u64,
    /// Datagrams that came after one with a higher sequence number: reordered or duplicated.
    pub late: u64,
}

impl Sample {
    /// Datagrams lost, taking every late one for one of those passed over.
    pub fn lost(&self) -> u64 {
        self.skipped.saturating_sub(self.late)
    }
}

/// What a receiver tells while it runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The socket is bound to this address and counting has begun: zero of every `t` that follows.
    Started(SocketAddr),
    /// One source's interval.
    Sample(Sample),
}

/// What a receiver counted in all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// How long it counted, in seconds.
    pub seconds: f64,
    /// A total a source; `t` is `seconds`.
    pub sources: Vec<Sample>,
}

/// What a sender handed to its kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// How long it sent, in seconds.
    pub seconds: f64,
    /// Payload bytes.
    pub bytes: u64,
    /// Datagrams; zero for streams.
    pub datagrams: u64,
    /// System calls the kernel answered with an error that passes (no buffers, a port unreachable).
    pub refused: u64,
}

/// The longest a blocked socket keeps a loop from looking at its deadline.
const PATIENCE: Duration = Duration::from_millis(20);

/// A duration from a number of seconds, refusing what is negative, not finite or longer than a day.
fn seconds(name: &str, value: f64) -> io::Result<Duration> {
    if value > 0.0 && value <= 86_400.0 {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(invalid(format!("{name} is {value}: a number of seconds above 0 and at most 86400 is needed")))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
