//! A link in virtual time: ports with frames to send, a scheduler, and the fluid server that it is compared with.

use fairlane_core::PortId;
use fairlane_core::sched::{After, Cost, Next, Scheduler, SchedulerKind, Share, build};
use fairlane_core::time::{Nanos, SECOND};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use std::collections::VecDeque;

/// Proptest settings with this many cases, the same in every run.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(2), ..ProptestConfig::default() }
}

/// A link rate at which a byte takes 80 ns.
pub(crate) const LINK: u64 = 100_000_000;

/// Bytes of the largest regular service: a budget of 16 KiB and one frame of the largest size.
pub(crate) const MOST: u64 = 16_384 + 65_550;

pub(crate) const IDLE_TIMEOUT: Nanos = Nanos::from_millis(10);

pub(crate) fn share(weight: u32) -> Share {
    Share::of_weight(weight)
}

/// The frames that a port's guest sends.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    /// Frames of these sizes over and over, without end.
    Endless(Vec<u64>),
    /// The frames in the queue, and no more.
    Finite(VecDeque<u64>),
}

#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub load: Load,
    pub bytes: u64,
    pub frames: u64,
    /// Dominant time of all services, in nanoseconds.
    pub time: u64,
}

impl Guest {
    fn peek(&self) -> Option<u64> {
        match &self.load {
            Load::Endless(sizes) => Some(sizes[self.frames as usize % sizes.len()]),
            Load::Finite(frames) => frames.front().copied(),
        }
    }
}

/// One service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Service {
    pub port: usize,
    pub start: Nanos,
    pub end: Nanos,
    pub bytes: u64,
}

/// The outcome of one decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Served(Service),
    Waits(Nanos),
    Idle,
}

pub(crate) struct Sim {
    pub scheduler: Box<dyn Scheduler>,
    pub now: Nanos,
    pub guests: Vec<Guest>,
    /// The link's rate in bits a second.
    pub rate: u64,
    /// Backend time per frame, in nanoseconds.
    pub frame_nanos: u64,
}

impl Sim {
    pub(crate) fn new(kind: SchedulerKind, rate: u64) -> Sim {
        let scheduler = build(kind, Some(rate), IDLE_TIMEOUT);
        Sim { scheduler, now: Nanos(0), guests: Vec::new(), rate, frame_nanos: 0 }
    }

    pub(crate) fn fair() -> Sim {
        Sim::new(SchedulerKind::Fair, LINK)
    }

    pub(crate) fn add(&mut self, share: Share, load: Load) -> usize {
        let port = self.guests.len();
        self.guests.push(Guest { load, bytes: 0, frames: 0, time: 0 });
        self.configure(port, share);
        if self.guests[port].peek().is_some() {
            self.scheduler.activate(PortId(port as u32), self.now);
        }
        port
    }

    /// Adds a port that always has frames of this size.
    pub(crate) fn flood(&mut self, share: Share, size: u64) -> usize {
        self.add(share, Load::Endless(vec![size]))
    }

    pub(crate) fn configure(&mut self, port: usize, share: Share) {
        self.scheduler.configure(PortId(port as u32), share, self.now);
    }

    /// Puts frames into a finite port's ring.
    pub(crate) fn send(&mut self, port: usize, frames: impl IntoIterator<Item = u64>) {
        let Load::Finite(ring) = &mut self.guests[port].load else { panic!("an endless port sends by itself") };
        ring.extend(frames);
        self.scheduler.activate(PortId(port as u32), self.now);
    }

    /// Asks the scheduler once and serves the port it chooses.
    pub(crate) fn step(&mut self) -> Step {
        let (port, budget) = match self.scheduler.next(self.now) {
            Next::Serve(port, budget) => (port, budget),
            Next::WaitUntil(at) => return Step::Waits(at),
            Next::Idle => return Step::Idle,
        };
        let guest = &mut self.guests[port.index()];
        let mut cost = Cost::default();
        while cost.frames == 0 || (cost.bytes < budget.bytes && cost.frames < u64::from(budget.frames)) {
            let Some(size) = guest.peek() else { break };
            if let Load::Finite(frames) = &mut guest.load {
                frames.pop_front();
            }
            guest.frames += 1;
            cost.frames += 1;
            cost.segments += size.div_ceil(1_514);
            cost.bytes += size;
        }
        guest.bytes += cost.bytes;
        cost.uplink_bytes = cost.bytes;
        cost.nanos = cost.frames * self.frame_nanos;
        let time = (cost.bytes * 8 * SECOND / self.rate).max(cost.nanos);
        guest.time += time;
        let after = if guest.peek().is_some() { After::Backlogged } else { After::Empty };
        let start = self.now;
        self.now += Nanos(time);
        self.scheduler.charge(port, cost, after, self.now);
        Step::Served(Service { port: port.index(), start, end: self.now, bytes: cost.bytes })
    }

    /// Runs until a time, waiting when the scheduler tells it to. Returns the services.
    pub(crate) fn run_until(&mut self, end: Nanos) -> Vec<Service> {
        let mut services = Vec::new();
        while self.now < end {
            match self.step() {
                Step::Served(service) => services.push(service),
                Step::Waits(at) => {
                    assert!(at > self.now, "the scheduler waits for a past time");
                    self.now = at.min(end);
                }
                Step::Idle => self.now = end,
            }
        }
        services
    }

    /// Runs for this time. Returns the bytes that each port was served.
    pub(crate) fn run_for(&mut self, time: Nanos) -> Vec<u64> {
        let before: Vec<u64> = self.guests.iter().map(|guest| guest.bytes).collect();
        let end = self.now + time;
        self.run_until(end);
        self.guests.iter().zip(before).map(|(guest, before)| guest.bytes - before).collect()
    }
}

/// Generalized processor sharing (Parekh and Gallager 1993): a fluid link, in nanoseconds of link time.
pub(crate) struct Fluid {
    weights: Vec<f64>,
    pub backlog: Vec<f64>,
    pub served: Vec<f64>,
}

impl Fluid {
    pub(crate) fn new(weights: &[u32]) -> Fluid {
        let weights: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
        Fluid { backlog: vec![0.0; weights.len()], served: vec![0.0; weights.len()], weights }
    }

    /// Shares a period among the backlogged ports.
    pub(crate) fn pass(&mut self, mut time: f64) {
        loop {
            let busy: Vec<usize> = (0..self.weights.len()).filter(|port| self.backlog[*port] > 0.0).collect();
            let sum: f64 = busy.iter().map(|port| self.weights[*port]).sum();
            let first_empty = busy.iter().map(|port| self.backlog[*port] * sum / self.weights[*port]);
            let span = first_empty.fold(time, f64::min);
            if busy.is_empty() || time <= 0.0 {
                return;
            }
            for port in busy {
                let part = span * self.weights[port] / sum;
                self.served[port] += part;
                self.backlog[port] -= part;
                if self.backlog[port] < 1e-3 {
                    self.backlog[port] = 0.0;
                }
            }
            time -= span;
        }
    }
}

/// The most bytes by which any window of a port's services exceeds `rate` (bits a second) times its length.
pub(crate) fn worst_excess(services: &[Service], port: usize, rate: u64) -> f64 {
    let mut least: f64 = f64::INFINITY;
    let (mut sum, mut worst) = (0.0, f64::NEG_INFINITY);
    for service in services.iter().filter(|service| service.port == port) {
        let allowed = rate as f64 * service.start.as_secs_f64() / 8.0;
        least = least.min(sum - allowed);
        sum += service.bytes as f64;
        worst = worst.max(sum - allowed - least);
    }
    worst
}

/// The most bytes by which any window between `from` and `to` falls short of `rate` times its length.
pub(crate) fn worst_shortfall(services: &[Service], port: usize, rate: u64, from: Nanos, to: Nanos) -> f64 {
    let due = |at: Nanos| rate as f64 * at.as_secs_f64() / 8.0;
    let (mut sum, mut worst) = (0.0, 0.0_f64);
    let mut most = -due(from);
    for service in services.iter().filter(|service| service.port == port && service.start >= from && service.end <= to)
    {
        worst = worst.max(most - (sum - due(service.end)));
        sum += service.bytes as f64;
        most = most.max(sum - due(service.end));
    }
    worst.max(most - (sum - due(to)))
}
