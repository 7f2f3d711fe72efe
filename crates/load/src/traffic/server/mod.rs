//! The server for all patterns and for other clients' HTTP requests, on one TCP and UDP port.

mod connection;
mod counters;
mod datagrams;
mod worker;

use std::{
    io,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, Scope, ScopedJoinHandle},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};
use serde::{Deserialize, Serialize};

use super::sockets;
use crate::{about, seconds, within};
use counters::Counters;
use worker::Incoming;

pub use counters::Served;

/// The capacity of each thread's queue of connections from the acceptor.
const QUEUE: usize = 1024;
/// File descriptors reserved for other uses than connections.
const RESERVED: u64 = 64;
/// How long a child process may take from fork to exec.
const FORK_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the end of the run is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Parameters of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The address to listen on; port zero picks one.
    pub at: SocketAddr,
    /// The number of serving threads, 1 to 256.
    pub threads: usize,
    /// Which threads accept connections.
    pub acceptors: Acceptors,
    /// How long to serve, in seconds; none: until stopped.
    pub seconds: Option<f64>,
    /// The length of an interval, in seconds.
    pub interval: f64,
    /// Seconds after which a connection without progress is closed.
    pub patience: f64,
}

/// Which threads accept connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptors {
    /// One thread, which passes them to the serving threads in turn.
    One,
    /// Every serving thread, each with its own listener (SO_REUSEPORT).
    Each,
}

/// The counts of an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// The counts by thread; the last thread receives datagrams.
    pub threads: Vec<Served>,
}

/// A server's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The duration, in seconds.
    pub seconds: f64,
    /// The counts by thread; the last thread receives datagrams.
    pub threads: Vec<Served>,
    /// CPU time of this process, in seconds.
    pub processor: f64,
}

/// The shared state of a run's threads.
struct Run {
    over: AtomicBool,
    /// Set by the acceptor when it has no file descriptor left.
    crowded: AtomicBool,
    start: Instant,
    /// Nanoseconds.
    patience: u64,
}

/// Serves until the time is up or `over` is set. Calls `started` with its address, and `sink` with each interval when it is over.
///
/// # Errors
/// If a parameter is out of range, the port is in use, or a socket fails permanently.
pub fn run(
    spec: &Spec,
    over: &AtomicBool,
    started: impl FnOnce(SocketAddr),
    mut sink: impl FnMut(&Interval),
) -> io::Result<Outcome> {
    let interval = seconds("interval", spec.interval)?;
    let patience = seconds("patience", spec.patience)?;
    let end = spec.seconds.map(|value| seconds("seconds", value)).transpose()?;
    within("threads", spec.threads, 1, 256)?;
    let most = sockets::raise_descriptors().saturating_sub(RESERVED).max(16) as usize / spec.threads;
    let (listeners, datagrams) = listen(spec)?;
    let at = listeners[0].local_addr()?;
    let run = &Run {
        over: AtomicBool::new(false),
        crowded: AtomicBool::new(false),
        start: Instant::now(),
        patience: patience.as_nanos() as u64,
    };
    let counters: Vec<Arc<Counters>> = (0..=spec.threads).map(|_| Arc::default()).collect();
    let processor = sockets::processor_time();
    started(at);
    thread::scope(|scope| {
        let threads = start(scope, run, spec, listeners, most, &counters)?;
        let counters_of_datagrams = &counters[spec.threads];
        scope.spawn(move || datagrams::run(run, &datagrams, counters_of_datagrams));
        let served = || counters.iter().map(|counters| counters.served()).collect::<Vec<_>>();
        let (mut before, mut boundary, mut begun) = (served(), interval, Duration::ZERO);
        loop {
            let now = run.start.elapsed();
            let ended = end.is_some_and(|end| now >= end) || over.load(Ordering::Relaxed);
            let broken = threads.iter().any(|thread| thread.is_finished());
            if now >= boundary || ended || broken {
                let after = served();
                let threads = after.iter().zip(&before).map(|(after, before)| *after - *before).collect();
                sink(&Interval { t: now.as_secs_f64(), seconds: (now - begun).as_secs_f64(), threads });
                (before, boundary, begun) = (after, now + interval, now);
            }
            if ended || broken {
                break;
            }
            thread::sleep(POLL_INTERVAL.min(boundary.saturating_sub(now)));
        }
        run.over.store(true, Ordering::Relaxed);
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("a server's thread")).collect();
        ends.into_iter().collect::<Result<(), Errno>>().map_err(failed)?;
        Ok(Outcome {
            seconds: run.start.elapsed().as_secs_f64(),
            threads: served(),
            processor: sockets::processor_time() - processor,
        })
    })
}

/// Starts the serving threads, each with at most `most` connections, and the acceptor if it is a separate thread.
fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: &'scope Run,
    spec: &Spec,
    listeners: Vec<TcpListener>,
    most: usize,
    counters: &'scope [Arc<Counters>],
) -> io::Result<Vec<ScopedJoinHandle<'scope, Result<(), Errno>>>> {
    let mut listeners = listeners.into_iter();
    let (mut queues, mut threads) = (Vec::new(), Vec::new());
    for counters in &counters[..spec.threads] {
        let incoming = match spec.acceptors {
            Acceptors::Each => Incoming::Listener(listeners.next().expect("a listener per thread")),
            Acceptors::One => {
                let (sender, queue) = mpsc::sync_channel(QUEUE);
                let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
                queues.push((sender, wakeup.clone()));
                Incoming::Queue(queue, wakeup)
            }
        };
        threads.push(scope.spawn(move || worker::run(run, incoming, most, counters)));
    }
    if let Some(listener) = listeners.next() {
        threads.push(scope.spawn(move || worker::accept(run, &listener, &queues)));
    }
    Ok(threads)
}

fn failed(error: Errno) -> io::Error {
    about("the server failed")(error.into())
}

/// Listens on a port whose listener was just closed. A child process that another thread starts has the old listener open as well
/// from fork until exec, so this retries for a while.
fn listen_again(at: SocketAddr) -> Result<TcpListener, Errno> {
    let end = Instant::now() + FORK_TIMEOUT;
    loop {
        match sockets::listen(at, true) {
            Err(Errno::EADDRINUSE) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            listener => return listener,
        }
    }
}

/// Opens the listeners, one per thread or one for all, and the socket for datagrams, all on one port.
fn listen(spec: &Spec) -> io::Result<(Vec<TcpListener>, UdpSocket)> {
    let named = |error: Errno| about(format_args!("cannot listen at {}", spec.at))(error.into());
    let shared = spec.acceptors == Acceptors::Each && spec.threads > 1;
    // First without SO_REUSEPORT: this fails if another server has the port, which would otherwise share the connections.
    let only = sockets::listen(spec.at, false).map_err(named)?;
    let at = only.local_addr()?;
    let listeners = if shared {
        drop(only);
        (0..spec.threads).map(|_| listen_again(at)).collect::<Result<_, _>>().map_err(named)?
    } else {
        vec![only]
    };
    let datagrams = UdpSocket::bind(at).map_err(about(format_args!("cannot listen at UDP {at}")))?;
    Ok((listeners, datagrams))
}
