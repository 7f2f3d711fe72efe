//! A server for every pattern and for anybody's HTTP requests, on one port of TCP and of UDP.

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
use worker::Door;

pub use counters::Served;

/// Connections that an acceptor may have handed over and nobody taken yet, a thread.
const HANDED: usize = 1024;
/// Descriptors kept for other than connections.
const SPARE: u64 = 64;
/// How long a program may be on its way from fork to exec.
const FORKED: Duration = Duration::from_millis(500);
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// Orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Where to listen; port zero picks one.
    pub at: SocketAddr,
    /// Threads that serve, 1 to 256.
    pub threads: usize,
    /// Who accepts.
    pub acceptors: Acceptors,
    /// How long to serve, in seconds; none is until it is told to end.
    pub seconds: Option<f64>,
    /// Seconds an interval.
    pub interval: f64,
    /// Seconds after which a connection that does not get on is closed.
    pub patience: f64,
}

/// Who accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceptors {
    /// One thread for all, which hands them to those that serve.
    One,
    /// Every thread for itself, on a listener of its own (SO_REUSEPORT).
    Each,
}

/// What was served in an interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// What was served in it, by thread; the last is who counts datagrams.
    pub threads: Vec<Served>,
}

/// What was served in all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How long, in seconds.
    pub seconds: f64,
    /// By thread; the last is who counts datagrams.
    pub threads: Vec<Served>,
    /// Seconds of processor time this process used meanwhile.
    pub processor: f64,
}

/// One run, as its threads see it.
struct Run {
    over: AtomicBool,
    /// Whether the acceptor has found no descriptor left.
    crowded: AtomicBool,
    start: Instant,
    /// Nanoseconds.
    patience: u64,
}

/// Serves until the time is up or `over` is set; tells `started` where, and `sink` each interval when it is over.
///
/// # Errors
/// Orders out of range, a port in use, a socket that fails for good.
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
    let most = sockets::raise_descriptors().saturating_sub(SPARE).max(16) as usize / spec.threads;
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
        let threads = begin(scope, run, spec, listeners, most, &counters)?;
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
            thread::sleep(LOOK.min(boundary.saturating_sub(now)));
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

/// Starts the threads that serve and, where one accepts for all of them, that one. Each has at most so many connections.
fn begin<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: &'scope Run,
    spec: &Spec,
    listeners: Vec<TcpListener>,
    most: usize,
    counters: &'scope [Arc<Counters>],
) -> io::Result<Vec<ScopedJoinHandle<'scope, Result<(), Errno>>>> {
    let mut listeners = listeners.into_iter();
    let (mut hands, mut threads) = (Vec::new(), Vec::new());
    for counters in &counters[..spec.threads] {
        let door = match spec.acceptors {
            Acceptors::Each => Door::Listener(listeners.next().expect("a listener a thread")),
            Acceptors::One => {
                let (hand, inbox) = mpsc::sync_channel(HANDED);
                let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
                hands.push((hand, bell.clone()));
                Door::Inbox(inbox, bell)
            }
        };
        threads.push(scope.spawn(move || worker::run(run, door, most, counters)));
    }
    if let Some(listener) = listeners.next() {
        threads.push(scope.spawn(move || worker::accept(run, &listener, &hands)));
    }
    Ok(threads)
}

fn failed(error: Errno) -> io::Error {
    about("the server cannot go on")(error.into())
}

/// Listens where a listener was closed just before. A program that this process starts at the same time has it open as well,
/// from its fork until it is executed.
fn listen_again(at: SocketAddr) -> Result<TcpListener, Errno> {
    let end = Instant::now() + FORKED;
    loop {
        match sockets::listen(at, true) {
            Err(Errno::EADDRINUSE) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
            listener => return listener,
        }
    }
}

/// The listeners, one a thread or one for all, and the socket for datagrams, all of one port.
fn listen(spec: &Spec) -> io::Result<(Vec<TcpListener>, UdpSocket)> {
    let named = |error: Errno| about(format_args!("cannot listen at {}", spec.at))(error.into());
    let shared = spec.acceptors == Acceptors::Each && spec.threads > 1;
    // Two servers that share a port by mistake would each miss a part: this fails if another has it.
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
