//! The cost of a bridge per frame: rounds with ports that only fill the burst, or only count.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fairlane_core::PortId;
use fairlane_core::ack::Mode;
use fairlane_core::ack::Ring;
use fairlane_core::packet::{Compose, Mac, Offload, TcpFlags};
use fairlane_core::sched::{self, Budget, SchedulerKind, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_port::{BURST, Batch, Burst, Control, Port, Put, Room, Sink, Source, Status, Wanted, memory};
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

/// Always offers the same frames, and accepts everything.
struct Endless {
    frames: Vec<Vec<u8>>,
    next: usize,
    taken: usize,
}

impl Endless {
    fn of(frames: Vec<Vec<u8>>) -> Box<Endless> {
        Box::new(Endless { frames, next: 0, taken: 0 })
    }
}

impl Source for Endless {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        if let Some(first) = self.frames.first() {
            let frames = (budget.frames as usize).min(BURST).min(budget.bytes.div_ceil(first.len() as u64) as usize);
            for _ in 0..frames {
                filler.push(&self.frames[self.next], Offload::default());
                self.next = (self.next + 1) % self.frames.len();
            }
        }
        filler.done()
    }

    fn consume(&mut self, _frames: usize) {}

    fn waiting(&mut self, _now: Nanos) -> bool {
        !self.frames.is_empty()
    }
}

impl Sink for Endless {
    fn put(&mut self, _batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        self.taken += frames.len();
        Put { accepted: frames.len(), refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        Room::Now
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Endless {
    fn enable_notifications(&mut self, _wanted: Wanted) -> bool {
        true
    }

    fn status(&self) -> Status {
        Status::Up
    }
}

const SHARE: Share = Share::of_weight(100);

fn bridge(uplink: Box<dyn Port>) -> Bridge {
    let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
    let mut bridge = Bridge::new("lan", Config { isolate: true, seed: 1 }, scheduler);
    bridge.set_uplink(uplink);
    bridge
}

fn rounds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round");
    for (name, pinned) in [("learned", false), ("pinned", true)] {
        for guests in [1_u8, 2, 100] {
            let mut bridge = bridge(Endless::of(Vec::new()));
            for guest in 1..=guests {
                let mac = Mac([2, 0, 0, 0, 0, guest]);
                let mut frame = vec![0; 64];
                frame[..6].copy_from_slice(&[2, 0, 0, 0, 1, 0]);
                frame[6..12].copy_from_slice(&mac.0);
                let anti_spoofing = AntiSpoofing { mac: pinned.then_some(mac), addresses: Vec::new() };
                bridge.add("guest", Endless::of(vec![frame]), SHARE, anti_spoofing, Nanos(0)).expect("own addresses");
            }
            let mut burst = Burst::new();
            let clock = Monotonic::new();
            bridge.round(&mut burst, clock.now(), &clock);
            let frames = bridge.round(&mut burst, clock.now(), &clock).frames;
            group.throughput(Throughput::Elements(frames));
            group.bench_function(format!("{name}/{guests}"), |bencher| {
                bencher.iter(|| bridge.round(&mut burst, clock.now(), &clock));
            });
        }
    }
}

/// A segment between a host behind the uplink and a guest.
fn segment(inward: bool, flags: TcpFlags, sequence: u32, acknowledgment: u32, payload: usize) -> Vec<u8> {
    let (host, guest) = ((IpAddr::from([10, 0, 0, 9]), 4000), (IpAddr::from([10, 0, 0, 1]), 80));
    let (source, destination) = if inward { (host, guest) } else { (guest, host) };
    let (host, guest) = ([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 1]);
    let link = if inward { [guest, host] } else { [host, guest] }.concat();
    let timestamps = Some((1, 1));
    let mut frame = Vec::new();
    Compose { link: &link, source, destination, sequence, acknowledgment, flags, window: 60_000, timestamps }
        .write(&mut frame, |out| out.resize(out.len() + payload, 7));
    frame
}

/// Leaves a connection in a file, from which a bridge resumes.
fn connect(file: &Path) {
    let (uplink, outside) = memory::pair(8);
    let (port, inside) = memory::pair(8);
    let mut bridge = bridge(Box::new(uplink));
    bridge.add("guest", Box::new(port), SHARE, AntiSpoofing::default(), Nanos(0)).expect("own addresses");
    bridge.accelerate(PortId(1), file, Mode::Auto, Nanos(0)).expect("a file");
    let (mut burst, clock) = (Burst::new(), Monotonic::new());
    for (peer, inward, flags, sequence, acknowledgment) in [
        (&outside, true, TcpFlags::SYN, 0, 0),
        (&inside, false, TcpFlags::SYN.with(TcpFlags::ACK), 0, 1),
        (&outside, true, TcpFlags::ACK, 1, 1),
    ] {
        peer.send(&segment(inward, flags, sequence, acknowledgment, 0), Offload::default());
        while bridge.round(&mut burst, clock.now(), &clock).frames > 0 {}
    }
}

/// Segments of a connection to a guest that always runs, and its ACKs, without and with early ack.
fn early_ack(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("guest");
    connect(&file);
    let mut group = criterion.benchmark_group("early_ack");
    for (name, mode) in [("off", None), ("on", Some(Mode::Auto))] {
        let number = |segment: u32| 1 + 1448 * segment;
        let data = (0..1024).map(|at| segment(true, TcpFlags::ACK, number(at), 1, 1448)).collect();
        let ack = vec![segment(false, TcpFlags::ACK, 1, number(1), 0)];
        let mut bridge = bridge(Endless::of(data));
        bridge.add("guest", Endless::of(ack), SHARE, AntiSpoofing::default(), Nanos(0)).expect("own addresses");
        if let Some(mode) = mode {
            bridge.accelerate(PortId(1), &file, mode, Nanos(0)).expect("a file");
        }
        let (mut burst, clock) = (Burst::new(), Monotonic::new());
        for _ in 0..4 {
            bridge.round(&mut burst, clock.now(), &clock);
        }
        let frames = bridge.round(&mut burst, clock.now(), &clock).frames;
        let (_, vifs) = bridge.snapshot(Nanos(0));
        assert_eq!(vifs[0].early_ack.as_ref().map(|early| early.flows), mode.map(|_| 1), "the connection is known");
        group.throughput(Throughput::Elements(frames));
        group.bench_function(name, |bencher| bencher.iter(|| bridge.round(&mut burst, clock.now(), &clock)));
    }
}

criterion_group!(benches, rounds, early_ack);
criterion_main!(benches);
