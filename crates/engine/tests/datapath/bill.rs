//! What guests are charged of the worker's time, whatever their frames cost, on a clock that advances as frames are forwarded.

use crate::support::{Ledger, Link, Turns, frame, mac, weight};
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::switch::Config;
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::Clock;
use fairlane_port::drain::Drain;
use fairlane_port::{Batch, Burst, Port, Put, Room, Sink, Source, Wrapper, memory};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time and the worker's CPU time.
#[derive(Clone, Default)]
pub(crate) struct Busy(Arc<[AtomicU64; 2]>);

impl Busy {
    /// Advances both clocks, or the time alone while other threads use the core.
    pub(crate) fn spend(&self, work: u64, others: u64) {
        self.0[0].fetch_add(work + others, Relaxed);
        self.0[1].fetch_add(work, Relaxed);
    }
}

impl Clock for Busy {
    fn now(&self) -> Nanos {
        Nanos(self.0[0].load(Relaxed))
    }
    fn worked(&self) -> Nanos {
        Nanos(self.0[1].load(Relaxed))
    }
}

/// A port that takes as long for each frame put as the frame says: CPU time first, then time of other threads.
pub(crate) struct Slow<P> {
    pub clock: Busy,
    pub port: P,
}

impl<P: Port> Source for Slow<P> {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.port.offer(burst, budget, now)
    }

    fn consume(&mut self, frames: usize) {
        self.port.consume(frames)
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.port.waiting(now)
    }
}

impl<P: Port> Sink for Slow<P> {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        for frame in frames.clone() {
            let word = |at: usize| u64::from_be_bytes(batch.head(frame)[at..at + 8].try_into().unwrap());
            self.clock.spend(word(14), word(22));
        }
        self.port.put(batch, frames, now)
    }

    fn room(&mut self, now: Nanos) -> Room {
        self.port.room(now)
    }

    fn ring(&self) -> Ring {
        self.port.ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        self.port.flush(now)
    }
}

impl<P: Port> Wrapper for Slow<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.port
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }
}

/// Forwards a guest's frames with these costs, `burst` per service. Returns what the guest was charged.
fn charged(burst: u32, frames: impl IntoIterator<Item = (u64, u64)>) -> u64 {
    let (clock, charged) = (Busy::default(), Arc::new(AtomicU64::new(0)));
    let ledger = Ledger { turns: Turns::of(burst), charged: charged.clone() };
    let uplink = Slow { clock: clock.clone(), port: Drain::new() };
    let Link { mut bridge, peers, .. } = {
        let config = Config { isolate: true, seed: 1 };
        let mut link = Link::with_uplink(config, Box::new(ledger), Box::new(uplink), memory::pair(0).1);
        link.add(1, weight(1), 10);
        link
    };
    let mut scratch = Burst::new();
    let mut round = |bridge: &mut Bridge| bridge.round(&mut scratch, clock.now(), &clock).frames;
    for (work, others) in frames {
        let mut bytes = frame(mac(0), mac(1), work, 60);
        bytes[22..30].copy_from_slice(&others.to_be_bytes());
        peers[1].send(&bytes, Offload::default());
        if peers[1].unsent() as u32 == burst {
            while round(&mut bridge) > 0 {}
        }
    }
    while round(&mut bridge) > 0 {}
    charged.load(Relaxed)
}

/// Many cheap frames and an expensive one, repeatedly: an average follows slowly.
#[test]
fn alternating_cheap_and_expensive_frames_are_all_charged() {
    for cheap in [1, 10, 100, 1000] {
        let frames: Vec<(u64, u64)> = (0..20_000).map(|at| (if at % cheap == 0 { 50_000 } else { 100 }, 0)).collect();
        let work = frames.iter().map(|(work, _)| work).sum::<u64>();
        assert_eq!(charged(1, frames), work, "one dear frame in {cheap}");
    }
}

/// Frames take 3 us, and every 30 ms another thread uses the core for 4 ms.
#[test]
fn preemption_of_the_worker_is_hardly_charged() {
    let frames: Vec<(u64, u64)> =
        (0..100_000).map(|at| (3_000, if at % 10_000 == 5_000 { 4_000_000 } else { 0 })).collect();
    let charged = charged(1, frames);
    // At most ten times 1 ms, of 40 ms.
    assert!((300_000_000..310_100_000).contains(&charged), "{charged}");
}

/// A frame that the uplink has no room for, before the service's first was taken.
#[test]
fn work_for_a_refused_frame_is_charged() {
    let (clock, charged) = (Busy::default(), Arc::new(AtomicU64::new(0)));
    let ledger = Ledger { turns: Turns::of(1), charged: charged.clone() };
    let (port, outside) = memory::pair(1);
    let uplink = Slow { clock: clock.clone(), port };
    let config = Config { isolate: true, seed: 1 };
    let mut link = Link::with_uplink(config, Box::new(ledger), Box::new(uplink), outside.clone());
    link.add(1, weight(1), 10);
    (0..10).for_each(|_| link.peers[1].send(&frame(mac(0), mac(1), 5_000, 60), Offload::default()));
    let mut scratch = Burst::new();
    for taken in 1..=10 {
        for _ in 0..4 {
            link.bridge.round(&mut scratch, clock.now(), &clock);
        }
        assert!(outside.receive().is_some(), "frame {taken}");
    }
    assert!(clock.worked().0 > 10 * 5_000, "none was refused");
    assert_eq!(charged.load(Relaxed), clock.worked().0);
}

/// A frame's work: from nothing to 10 ms, in orders of magnitude.
fn work() -> impl Strategy<Value = u64> {
    (0..8u32, 0..10u64).prop_map(|(order, digit)| digit * 10u64.pow(order))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// All work is charged, whatever its order and however often the worker is preempted, and never more than the elapsed time.
    #[test]
    fn no_order_of_frames_hides_work(
        pattern in prop::collection::vec((work(), prop_oneof![9 => Just(0), 1 => work()]), 1..40),
        times in 1..20usize, burst in 1..33u32,
    ) {
        let frames: Vec<(u64, u64)> = pattern.iter().copied().cycle().take(pattern.len() * times).collect();
        let [work, others] = [0, 1].map(|of| frames.iter().map(|frame| [frame.0, frame.1][of]).sum::<u64>());
        let charged = charged(burst, frames);
        prop_assert!(charged >= work, "{charged} of {work}");
        prop_assert!(charged <= work + others, "{charged} of {work} and {others}");
    }
}
