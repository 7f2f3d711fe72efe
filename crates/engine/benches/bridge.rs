//! The cost of a bridge per frame: rounds with ports that only fill the burst, or only count.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use fairlane_core::PortId;
use fairlane_core::ack::Mode;
use fairlane_core::ack::Ring;
use fairlane_core::packet::{Compose, Mac, Offload, TcpFlags};
use fairlane_core::sched::{self, Budget, SchedulerKind, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::clock::{Clock, Monotonic};
use fairlane_engine::{Bridge, UPLINK};
use fairlane_port::{BURST, Batch, Burst, Control, Port, Put, Refusal, Room, Sink, Source, Status, Wanted, memory};
use std::cell::Cell;
use std::net::IpAddr;
use std::ops::Range;
use std::path::Path;

/// Always offers the same frames, and accepts everything, unless it is limited.
struct Endless {
    frames: Vec<Vec<u8>>,
    next: usize,
    taken: usize,
    /// Most frames offered in a round, and how many of them are left.
    round: usize,
    left: usize,
    /// Frames that its ring has room for once it was full, and now.
    ring: usize,
    room: usize,
    /// Whether it need not be polled.
    wakes: bool,
}

impl Endless {
    fn of(frames: Vec<Vec<u8>>) -> Box<Endless> {
        let all = usize::MAX;
        Box::new(Endless { frames, next: 0, taken: 0, round: all, left: all, ring: all, room: all, wakes: false })
    }

    /// A guest that sends nothing, and posts so many buffers only after its ring was found full.
    fn short(ring: usize) -> Box<Endless> {
        Box::new(Endless { ring, room: 0, ..*Endless::of(Vec::new()) })
    }
}

impl Source for Endless {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let mut filler = burst.fill();
        if let Some(first) = self.frames.first() {
            let within = (budget.frames as usize).min(budget.bytes.div_ceil(first.len() as u64) as usize);
            let frames = within.min(BURST).min(self.left);
            for _ in 0..frames {
                filler.push(&self.frames[self.next], Offload::default());
                self.next = (self.next + 1) % self.frames.len();
            }
        }
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        if self.round < usize::MAX {
            self.left -= frames;
        }
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        !self.frames.is_empty() && self.left > 0
    }
}

impl Sink for Endless {
    fn put(&mut self, _batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let accepted = frames.len().min(self.room);
        self.taken += accepted;
        if self.ring < usize::MAX {
            self.room -= accepted;
        }
        Put { accepted, refusal: (accepted < frames.len()).then_some(Refusal::Full) }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        self.room = self.ring;
        Room::Now
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        self.left = self.round;
        Nanos::NEVER
    }
}

impl Control for Endless {
    fn enable_notifications(&mut self, _wanted: Wanted) -> bool {
        !self.wakes
    }

    fn wakes(&self) -> bool {
        self.wakes
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

/// Two guests that send, beside many that do not: which are polled, or wake the worker.
fn beside_idle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("beside_idle");
    for (name, wakes) in [("polled", false), ("asked", true)] {
        for idle in [0_u32, 100, 10_000] {
            let mut bridge = bridge(Endless::of(Vec::new()));
            for guest in 0..2 + idle {
                let [_, a, b, c] = guest.to_be_bytes();
                let mac = Mac([2, 0, 0, a, b, c]);
                let frame = [[2, 0, 0, 1, 0, 0], mac.0].concat().into_iter().chain([0; 52]).collect();
                let frames = if guest < 2 { vec![frame] } else { Vec::new() };
                let anti_spoofing = AntiSpoofing { mac: Some(mac), addresses: Vec::new() };
                let port = Box::new(Endless { wakes, ..*Endless::of(frames) });
                bridge.add("guest", port, SHARE, anti_spoofing, Nanos(0)).expect("own addresses");
            }
            let (mut burst, clock) = (Burst::new(), Monotonic::new());
            // Until each was polled for long enough.
            for _ in 0..10_000 {
                bridge.round(&mut burst, clock.now(), &clock);
            }
            group.throughput(Throughput::Elements(bridge.round(&mut burst, clock.now(), &clock).frames));
            group.bench_function(format!("{name}/{idle}"), |bencher| {
                bencher.iter(|| bridge.round(&mut burst, clock.now(), &clock));
            });
        }
    }
}

/// Advances by a microsecond whenever it is read, so that every run makes the same decisions.
struct Ticking(Cell<Nanos>);

impl Clock for Ticking {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + Nanos(1_000));
        self.0.get()
    }

    fn worked(&self) -> Nanos {
        self.0.get()
    }
}

/// Frames that the uplink offers in a round.
const FROM_UPLINK: usize = 64;

/// Rounds until queues and limits are as they stay.
const ROUNDS: u64 = 1_000;

/// A link with frames from the uplink.
struct Inward {
    bridge: Bridge,
    burst: Box<Burst>,
    clock: Ticking,
}

impl Inward {
    /// A link whose uplink has frames of `size` bytes for all guests in turn, while `senders` other guests send to the uplink. Without
    /// `room`, all frames pass through the guests' queues.
    fn new(guests: u8, size: usize, room: bool, senders: u8) -> Inward {
        let frame = |to: Mac, from: Mac, size| {
            let mut frame = vec![0; size];
            frame[..6].copy_from_slice(&to.0);
            frame[6..12].copy_from_slice(&from.0);
            frame
        };
        let (mac, outside) = (|guest| Mac([2, 0, 0, 0, 0, guest]), Mac([2, 0, 0, 0, 1, 0]));
        let frames = (1..=guests).map(|guest| frame(mac(guest), outside, size)).collect();
        let mut bridge = bridge(Box::new(Endless { round: FROM_UPLINK, left: FROM_UPLINK, ..*Endless::of(frames) }));
        for guest in 1..=guests + senders {
            let port = match guest {
                _ if guest > guests => Endless::of(vec![frame(outside, mac(guest), 64)]),
                _ if room => Endless::of(Vec::new()),
                _ => Endless::short((FROM_UPLINK / usize::from(guests)).max(8)),
            };
            let anti_spoofing = AntiSpoofing { mac: Some(mac(guest)), addresses: Vec::new() };
            bridge.add("guest", port, SHARE, anti_spoofing, Nanos(0)).expect("own addresses");
        }
        let mut inward = Inward { bridge, burst: Burst::new(), clock: Ticking(Cell::new(Nanos(0))) };
        (0..ROUNDS).for_each(|_| inward.round());
        let taken = |inward: &Inward| inward.bridge.counters(UPLINK).map_or(0, |counters| counters.sent_frames);
        let before = taken(&inward);
        (0..ROUNDS).for_each(|_| inward.round());
        assert_eq!(taken(&inward) - before, ROUNDS * FROM_UPLINK as u64, "every frame is taken");
        inward
    }

    fn round(&mut self) {
        self.bridge.round(&mut self.burst, self.clock.now(), &self.clock);
    }
}

/// Frames from the uplink to guests: into rings with room, through the guests' queues, and beside guests that send without end.
fn inward(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("inward");
    group.throughput(Throughput::Elements(FROM_UPLINK as u64));
    for (name, room, senders) in [("ring", true, 0), ("queue", false, 0), ("flood", true, 4)] {
        for (guests, size) in [(1, 64), (1, 1514), (100, 64), (100, 1514)] {
            let mut inward = None;
            group.bench_function(format!("{name}/{guests}/{size}"), |bencher| {
                let inward = inward.get_or_insert_with(|| Inward::new(guests, size, room, senders));
                bencher.iter(|| inward.round());
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

criterion_group!(benches, rounds, beside_idle, inward, early_ack);
criterion_main!(benches);
