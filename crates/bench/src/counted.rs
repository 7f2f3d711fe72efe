//! Fairlane as a program of its own whose instructions are counted: the bench starts itself under callgrind.
//!
//! A bridge runs until its guests have sent a segment of frames. Then whole rounds are counted, each of which finds full rings:
//! between two rounds the guests, on the other core, have time to fill them. Time is virtual, so that the emulation's speed decides
//! nothing. There is no worker, as valgrind 3.19 does not know the system call it sleeps in (`epoll_pwait2`): descriptors are looked
//! at in each turn until the guests send.

use crate::backend::{Uplink, bridge};
use crate::testpmd;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use fairlane_core::time::Nanos;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_engine::worker::Work;
use fairlane_engine::{Bridge, Round};
use fairlane_port::{Burst, Poller};
use std::cell::Cell;
use std::hint::black_box;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// The function whose instructions are counted, and the one after which they are dumped, as patterns for callgrind.
pub(crate) const COUNTED: &str = "*counted_round*";
pub(crate) const DUMPED: &str = "*counted_segment*";

/// Segments that are counted.
pub(crate) const SEGMENTS: usize = 2;

/// Time for the guests to fill the rings, natively a thousand times what they need.
const REFILL: Duration = Duration::from_millis(2);

/// The numbers of a vhost-user port's descriptors: its listener, and its connection.
const DESCRIPTORS: [u32; 2] = [0, 8];

/// How far each reading advances the virtual clock: some 32 frames' time.
const STEP: Nanos = Nanos::from_micros(1);

/// The backend whose instructions are counted.
#[derive(Args)]
pub(crate) struct Options {
    /// Serve these sockets until enough rounds are counted; for the bench itself.
    #[arg(long = "counted", hide = true, num_args = 1.., value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// What the guests of `--counted` do.
    #[arg(long, hide = true, requires = "sockets", default_value = "sink")]
    to: To,
    /// Frames of a segment of `--counted`.
    #[arg(long, hide = true, requires = "sockets", default_value_t = 1)]
    frames: u64,
}

/// Where guests' frames go.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum To {
    Sink,
    Guests,
}

impl Options {
    /// Runs the backend, if this process is one.
    ///
    /// # Errors
    /// It cannot serve the sockets, or its guests did not fill their rings.
    pub(crate) fn run(&self) -> Option<Result<()>> {
        (!self.sockets.is_empty()).then(|| self.serve())
    }

    fn serve(&self) -> Result<()> {
        let uplink = match self.to {
            To::Sink => Uplink::Sink,
            To::Guests => Uplink::None,
        };
        let clock = Virtual { real: Monotonic::new(), now: Cell::new(Nanos(0)) };
        let mut work = Work::new(vec![bridge(&testpmd::addressed(&self.sockets), uplink)?], Monotonic::new())?;
        let ports = work.bridges[0].ports();
        ports.iter().try_for_each(|port| work.register(0, *port))?;
        let (bridge, mut burst) = (&mut work.bridges[0], Burst::new());
        warm_up(bridge, &mut burst, &clock, self.frames)?;
        for _ in 0..SEGMENTS {
            let rounds = counted_segment(bridge, &mut burst, &clock, self.frames);
            let full = rounds[0];
            ensure!(rounds.iter().all(|frames| *frames == full), "rings were not full: {rounds:?} frames a round");
            ensure!(rounds.iter().sum::<u64>() == self.frames, "{} is no multiple of {full} frames", self.frames);
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
        rounds.push(counted_round(bridge, burst, clock).frames);
    }
    rounds
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
