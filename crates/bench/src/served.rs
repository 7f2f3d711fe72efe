//! Fairlane as a program of its own, which the bench starts beside its peers: to be stopped and continued like them, or to run under
//! callgrind.
//!
//! To count, a bridge runs until its guests have sent a segment of frames. Then whole rounds are counted, each of which finds full
//! rings: between two rounds the guests, on the other core, have time to fill them. Time is virtual, so that the emulation's speed
//! decides nothing. There is no worker, as valgrind 3.19 does not know the system call it sleeps in (`epoll_pwait2`): descriptors are
//! looked at in each turn until the guests send.

use crate::backend::{Backend, Uplink, bridge};
use crate::process::Process;
use crate::{machine, testpmd};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use fairlane_core::PortId;
use fairlane_core::time::Nanos;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_engine::worker::Work;
use fairlane_engine::{Bridge, Round, UPLINK};
use fairlane_port::{Burst, Poller};
use std::cell::Cell;
use std::hint::black_box;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// The function whose instructions are counted, and the one after which they are dumped, as patterns for callgrind.
pub(crate) const COUNTED: &str = "*counted_round*";
pub(crate) const DUMPED: &str = "*counted_segment*";

/// How long Fairlane may take to start.
const STARTUP: Duration = Duration::from_secs(20);

/// Segments that are counted.
pub(crate) const SEGMENTS: usize = 2;

/// Time for the guests to fill the rings, natively a thousand times what they need.
const REFILL: Duration = Duration::from_millis(2);

/// The numbers of a vhost-user port's descriptors: its listener, and its connection.
const DESCRIPTORS: [u32; 2] = [0, 8];

/// How far each reading advances the virtual clock: some 32 frames' time.
const STEP: Nanos = Nanos::from_micros(1);

/// How often a backend that serves is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Options of such a program.
#[derive(Args)]
pub(crate) struct Serve {
    /// Serve these sockets, for the bench itself.
    #[arg(long = "serve", hide = true, num_args = 1.., value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// Where the frames of `--serve` go.
    #[arg(long, hide = true, requires = "sockets", default_value = "sink")]
    to: To,
    /// Serve until so many frames were counted in each segment.
    #[arg(long, hide = true, requires = "sockets", value_name = "FRAMES")]
    count: Option<u64>,
}

/// Where guests' frames go.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum To {
    /// To a sink.
    Sink,
    /// To each other.
    Guests,
}

/// The words that start Fairlane for guests at these sockets; it counts so many frames, or serves until it is killed.
///
/// # Errors
/// This program is not to be found.
pub(crate) fn words(sockets: &[PathBuf], to: To, count: Option<u64>) -> Result<Vec<String>> {
    let to = to.to_possible_value().expect("no value is hidden").get_name().to_owned();
    let mut words = vec![std::env::current_exe()?.display().to_string(), "--to".to_owned(), to];
    words.extend(count.map(|count| format!("--count={count}")));
    words.push("--serve".to_owned());
    words.extend(sockets.iter().map(|socket| socket.display().to_string()));
    Ok(words)
}

/// Starts Fairlane for guests at these sockets, on the backends' core.
///
/// # Errors
/// It does not start.
pub(crate) fn start(sockets: &[PathBuf], to: To, real_time: bool) -> Result<Process> {
    let mut process = Process::start(&words(sockets, to, None)?, &[])?;
    process.ready("its sockets were there", STARTUP, || sockets.iter().all(|socket| socket.exists()))?;
    // The worker starts after its sockets are there.
    let deadline = Instant::now() + STARTUP;
    let workers = loop {
        let workers = process.threads("fairlane-worker");
        if !workers.is_empty() {
            break workers;
        }
        ensure!(Instant::now() < deadline, "Fairlane has no worker");
        thread::sleep(REFILL);
    };
    if real_time {
        workers.iter().try_for_each(|thread| machine::make_poller(thread))?;
    }
    Ok(process)
}

impl Serve {
    /// Runs the backend, if this process is one.
    ///
    /// # Errors
    /// It cannot serve the sockets, dropped frames, or its guests did not fill their rings.
    pub(crate) fn run(&self) -> Option<Result<()>> {
        let serve = || match self.count {
            Some(frames) => self.count(frames),
            None => self.serve(),
        };
        (!self.sockets.is_empty()).then(serve)
    }

    fn uplink(&self) -> Uplink {
        match self.to {
            To::Sink => Uplink::Sink,
            To::Guests => Uplink::None,
        }
    }

    /// Serves until it is killed, or drops frames that were for the sink. Frames for guests that stand still may be dropped: these
    /// count what they receive.
    fn serve(&self) -> Result<()> {
        let backend = Backend::start(&testpmd::addressed(&self.sockets), self.uplink(), Some(testpmd::BACKEND))?;
        loop {
            thread::sleep(CHECK_INTERVAL);
            if self.to == To::Sink {
                backend.check_drops()?;
            }
        }
    }

    fn count(&self, frames: u64) -> Result<()> {
        let clock = Virtual { real: Monotonic::new(), now: Cell::new(Nanos(0)) };
        let mut work = Work::new(vec![bridge(&testpmd::addressed(&self.sockets), self.uplink())?], Monotonic::new())?;
        let ports = work.bridges[0].ports();
        ports.iter().try_for_each(|port| work.register(0, *port))?;
        let (bridge, mut burst) = (&mut work.bridges[0], Burst::new());
        warm_up(bridge, &mut burst, &clock, frames)?;
        for _ in 0..SEGMENTS {
            let rounds = counted_segment(bridge, &mut burst, &clock, frames);
            let full = rounds[0];
            ensure!(rounds.iter().all(|frames| *frames == full), "rings were not full: {rounds:?} frames a round");
            ensure!(rounds.iter().sum::<u64>() == frames, "{frames} is no multiple of {full} frames");
        }
        Ok(())
    }
}

/// Connects the guests, and forwards until so many frames were.
fn warm_up(bridge: &mut Bridge, burst: &mut Burst, clock: &Virtual<Monotonic>, frames: u64) -> Result<()> {
    let (poller, mut now, mut forwarded) = (Poller::new()?, clock.now(), 0);
    let ports = bridge.ports();
    while forwarded < frames {
        thread::sleep(REFILL);
        for (port, number) in ports.iter().flat_map(|port| DESCRIPTORS.map(|number| (*port, number))) {
            bridge.event(port, number, &poller, &mut now, clock);
        }
        forwarded += bridge.round(burst, clock.now(), clock).frames;
    }
    Ok(())
}

/// Runs counted rounds until so many frames were forwarded. Returns the frames of each.
#[inline(never)]
fn counted_segment(bridge: &mut Bridge, burst: &mut Burst, clock: &Virtual<Monotonic>, frames: u64) -> Vec<u64> {
    let mut rounds = Vec::new();
    while rounds.iter().sum::<u64>() < frames {
        thread::sleep(REFILL);
        while !is_refilled(bridge, clock) {
            thread::sleep(REFILL);
        }
        rounds.push(counted_round(bridge, burst, clock).frames);
    }
    rounds
}

/// Whether every guest has frames, and has taken those that it received. A guest that did not run has not refilled its ring.
fn is_refilled(bridge: &mut Bridge, clock: &Virtual<Monotonic>) -> bool {
    let guests: Vec<PortId> = bridge.ports().into_iter().filter(|port| *port != UPLINK).collect();
    guests
        .into_iter()
        .all(|port| bridge.port(port).is_some_and(|port| port.waiting(clock.now()) && port.ring().waiting == 0))
}

/// What a worker does in a round with frames, except that it looks at descriptors every 50 us.
#[inline(never)]
fn counted_round(bridge: &mut Bridge, burst: &mut Burst, clock: &Virtual<Monotonic>) -> Round {
    let round = bridge.round(burst, clock.now(), clock);
    black_box(bridge.next_event());
    round
}

/// A clock that reads another one, whose cost counts, and advances evenly.
struct Virtual<C> {
    real: C,
    now: Cell<Nanos>,
}

impl<C: Clock> Clock for Virtual<C> {
    fn now(&self) -> Nanos {
        black_box(self.real.now());
        self.now.set(self.now.get() + STEP);
        self.now.get()
    }

    fn worked(&self) -> Nanos {
        black_box(self.real.worked());
        self.now.get()
    }
}
