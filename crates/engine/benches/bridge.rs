//! What a bridge costs a frame: rounds of 64-byte frames from ports that only fill the burst into one that only counts.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fairlane_core::packet::{Mac, Offload};
use fairlane_core::policy::SchedulerKind;
use fairlane_core::sched::{self, Grant, Share};
use fairlane_core::switch::{Config, Pins};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::Monotonic;
use fairlane_port::{BURST, Batch, Burst, Key, Poller, Port, Put, Room, Status, Wanted};
use std::io;
use std::ops::Range;

/// Offers the same frame for ever, and takes everything.
struct Endless {
    frame: Vec<u8>,
    taken: usize,
}

impl Port for Endless {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, grant: Grant, _now: Nanos) -> Batch<'a> {
        let frames = (grant.frames as usize).min(BURST).min(grant.bytes.div_ceil(64) as usize);
        let mut filler = burst.fill();
        if !self.frame.is_empty() {
            for _ in 0..frames {
                filler.push(&self.frame, Offload::default());
            }
        }
        filler.done()
    }

    fn consume(&mut self, _frames: usize) {}

    fn waiting(&mut self, _now: Nanos) -> bool {
        !self.frame.is_empty()
    }

    fn put(&mut self, _batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        self.taken += frames.len();
        Put { accepted: frames.len(), refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        Room::Now
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }

    fn arm(&mut self, _wanted: Wanted) -> bool {
        true
    }

    fn disarm(&mut self) {}

    fn register(&mut self, _poller: &Poller, _key: Key) -> io::Result<()> {
        Ok(())
    }

    fn event(&mut self, _number: u32, _poller: &Poller, _now: Nanos) {}

    fn status(&self) -> Status {
        Status::Up
    }
}

fn rounds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round");
    for (name, pinned) in [("learned", false), ("pinned", true)] {
        for guests in [1_u8, 2, 100] {
            let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
            let mut bridge = Bridge::new("lan", Config { isolate: true, seed: 1 }, scheduler);
            bridge.set_uplink(Box::new(Endless { frame: Vec::new(), taken: 0 }));
            for guest in 1..=guests {
                let mac = Mac([2, 0, 0, 0, 0, guest]);
                let mut frame = vec![0; 64];
                frame[..6].copy_from_slice(&[2, 0, 0, 0, 1, 0]);
                frame[6..12].copy_from_slice(&mac.0);
                let pins = Pins { mac: pinned.then_some(mac), addresses: Vec::new() };
                let share = Share { weight: 100, min_rate: 0, max_rate: None, burst: 0 };
                bridge
                    .add("guest", Box::new(Endless { frame, taken: 0 }), share, pins, Nanos(0))
                    .expect("own addresses");
            }
            let mut burst = Burst::new();
            let clock = Monotonic::new();
            bridge.round(&mut burst, &clock);
            let frames = bridge.round(&mut burst, &clock).frames;
            group.throughput(Throughput::Elements(frames));
            group.bench_function(format!("{name}/{guests}"), |bencher| {
                bencher.iter(|| bridge.round(&mut burst, &clock));
            });
        }
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
