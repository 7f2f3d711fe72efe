//! What is run on a machine under measurement: network traffic, and the work that competes with it.
//!
//! One program a file; each takes its orders as data and answers with what it measured:
//! - [`udp`], [`tcp`]: load, counted at the receiver; [`transfer`]: transfers one after another; [`digest`]: whether
//!   bytes arrive as they were sent;
//! - [`traffic`]: requests, connections, streams and datagrams between a client and a server that serves anybody;
//! - [`ping`], [`delay`]: how long a packet takes, there and back or one way;
//! - [`busy`], [`disk`]: a share of a processor, a disk's operations;
//! - [`processors`]: what the time of processors is spent on meanwhile.
//!
//! A sender makes an offered load and says what it sent. A receiver cuts time into intervals on its own
//! monotonic clock and says, for each source and interval, what arrived. Guests share no clock: a receiver
//! reports [`Progress::Started`] when its clock starts, and whoever listens notes that moment on its own.
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

/// Orders of a server that answers whoever comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServeSpec {
    /// The port to bind; zero picks one.
    pub port: u16,
    /// How long to serve, in seconds.
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

/// A duration from a number of seconds.
///
/// # Errors
/// What is negative, not finite or longer than a day, by its name.
pub fn seconds(name: &str, value: f64) -> io::Result<Duration> {
    if value > 0.0 && value <= 86_400.0 {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(invalid(format!("{name} is {value}: a number of seconds above 0 and at most 86400 is needed")))
}

/// Refuses a number outside `range`, naming it.
fn within<T: PartialOrd + std::fmt::Display>(name: &str, value: T, least: T, most: T) -> io::Result<T> {
    if least <= value && value <= most {
        return Ok(value);
    }
    Err(invalid(format!("{name} is {value}: {least} to {most} is possible")))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// Whether an error of a datagram's sending passes by itself: no buffers, or nobody there at the moment.
fn passes(error: Errno) -> bool {
    matches!(error, Errno::ECONNREFUSED | Errno::ENOBUFS | Errno::EHOSTUNREACH | Errno::ENETUNREACH)
}

/// Waits until `socket` can be read, at most until `deadline`; answers whether it can.
///
/// # Errors
/// Those of waiting.
pub fn readable(socket: &impl AsFd, deadline: Instant) -> io::Result<bool> {
    let mut sockets = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    await_any(&mut sockets, deadline)
}

/// Waits until one of `sockets` has what it is polled for, at most until `deadline`; answers whether one has.
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

/// Takes connections until the time is up, calling `started` once it can, and serves each in a thread. One that breaks off
/// is its other end's error.
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

/// Sets an error's message to begin with whom or what it is about.
pub fn about(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}
