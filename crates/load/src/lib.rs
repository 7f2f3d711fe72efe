//! Load programs for measurements: network traffic, and competing work.
//!
//! Each file is one program, which takes parameters as data and returns its measurements:
//! - [`udp`], [`tcp`]: load, counted at the receiver; [`transfer`]: sequential transfers; [`digest`]: whether bytes arrive
//!   unchanged;
//! - [`traffic`]: requests, connections, streams and datagrams between a client and a server;
//! - [`ping`], [`delay`]: round-trip times and one-way delays;
//! - [`busy`], [`disk`]: CPU load, disk load;
//! - [`processors`]: the use of the CPUs.
//!
//! A sender reports what it sent. A receiver divides time into intervals on its own monotonic clock and reports what arrived
//! from each source in each interval. Guests share no clock: a receiver reports [`Progress::Started`] when its clock starts, and
//! the host records that moment on its own clock.
#![forbid(unsafe_code)]

pub mod busy;
pub mod delay;
pub mod digest;
pub mod disk;
mod meter;
mod pacer;
pub mod ping;
pub mod processors;
pub mod tcp;
pub mod traffic;
pub mod transfer;
pub mod udp;

use std::{
    io::{self, ErrorKind},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};
use serde::{Deserialize, Serialize};

pub use meter::Meter;
pub use pacer::Pacer;

/// Parameters of a receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReceiveSpec {
    /// The port to bind; zero picks one, reported by [`Progress::Started`].
    pub port: u16,
    /// The length of an interval, in seconds.
    pub interval: f64,
    /// How long to count, in seconds.
    pub seconds: f64,
}

/// Parameters of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeSpec {
    /// The port to bind; zero picks one.
    pub port: u16,
    /// How long to serve, in seconds.
    pub seconds: f64,
}

/// The traffic from one source in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval, in seconds since the receiver started to count.
    pub t: f64,
    /// The sender's address and port: one sender's socket, or one connection.
    pub source: SocketAddr,
    /// Payload bytes, without UDP, TCP, IP or Ethernet headers.
    pub bytes: u64,
    /// Datagrams; zero for a stream.
    pub datagrams: u64,
    /// Skipped sequence numbers: lost, unless they arrived late.
    pub skipped: u64,
    /// Datagrams that arrived after one with a higher sequence number: reordered or duplicated.
    pub late: u64,
}

impl Sample {
    /// Lost datagrams, on the assumption that every late one is a skipped one.
    pub fn lost(&self) -> u64 {
        self.skipped.saturating_sub(self.late)
    }
}

/// An event of a running receiver.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The socket is bound to this address and counting has started, which is the zero of every `t`.
    Started(SocketAddr),
    /// One source's interval.
    Sample(Sample),
}

/// A receiver's totals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// How long it counted, in seconds.
    pub seconds: f64,
    /// The total of each source; `t` is `seconds`.
    pub sources: Vec<Sample>,
}

/// A sender's totals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// How long it sent, in seconds.
    pub seconds: f64,
    /// Payload bytes.
    pub bytes: u64,
    /// Datagrams; zero for streams.
    pub datagrams: u64,
    /// System calls that failed with a transient error (no buffers, port unreachable).
    pub refused: u64,
}

/// The timeout of blocking socket calls, after which a loop checks its deadline.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(20);

/// A duration from a number of seconds.
///
/// # Errors
/// If the value is not above zero, not finite or more than a day, with its name.
pub fn seconds(name: &str, value: f64) -> io::Result<Duration> {
    if value > 0.0 && value <= 86_400.0 {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(invalid(format!("{name} is {value}: a number of seconds above 0 and at most 86400 is needed")))
}

/// Checks that a number is from `least` to `most`; the error has its name.
fn within<T: PartialOrd + std::fmt::Display>(name: &str, value: T, least: T, most: T) -> io::Result<T> {
    if least <= value && value <= most {
        return Ok(value);
    }
    Err(invalid(format!("{name} is {value}: {least} to {most} is possible")))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Whether an error of sending a datagram is transient: no buffers, or the destination is unreachable.
fn is_transient(error: Errno) -> bool {
    matches!(error, Errno::ECONNREFUSED | Errno::ENOBUFS | Errno::EHOSTUNREACH | Errno::ENETUNREACH)
}

/// Waits until `socket` is readable or until `deadline`; returns whether it is readable.
///
/// # Errors
/// Those of ppoll(2).
pub fn readable(socket: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    let mut sockets = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    await_any(&mut sockets, deadline)
}

/// Waits until one of `sockets` is ready or until `deadline`; returns whether one is ready.
fn await_any(sockets: &mut [PollFd], deadline: Instant) -> io::Result<bool> {
    loop {
        let wait = TimeSpec::from_duration(deadline.saturating_duration_since(Instant::now()));
        match ppoll(sockets, Some(wait), None) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Accepts connections until the time is up and serves each in a thread; calls `started` when it is ready. Errors of a connection
/// are ignored.
fn serve_each(
    spec: &ServeSpec,
    started: impl FnOnce(SocketAddr),
    serve: fn(TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let duration = seconds("seconds", spec.seconds)?;
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, spec.port)).map_err(about(format_args!("TCP port {}", spec.port)))?;
    listener.set_nonblocking(true)?;
    let end = Instant::now() + duration;
    started(listener.local_addr()?);
    while readable(&listener, end)? && Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                thread::spawn(move || serve(stream));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds what an error is about to its message.
pub fn about(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
