//! Shared by the bridge's tests: a link of memory ports, a clock set by hand, a simple scheduler.

use fairlane_core::PortId;
use fairlane_core::ack::Ring;
use fairlane_core::packet::{Mac, Offload};
use fairlane_core::sched::{After, Budget, Cost, Next, Scheduler, Share};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::clock::{Clock, Manual};
use fairlane_engine::{Bridge, Round};
use fairlane_policy::{Shares, Tenant};
use fairlane_port::memory::{self, Peer};
use fairlane_port::{Batch, Burst, Control, Limit, Poller, Port, Put, Refusal, Room, Sink, Source, Status, Wanted};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Serves active ports in turn, a fixed number of frames each.
pub(crate) struct Turns {
    queue: VecDeque<PortId>,
    frames: u32,
}

impl Turns {
    pub(crate) fn of(frames: u32) -> Box<dyn Scheduler> {
        Box::new(Turns { queue: VecDeque::new(), frames })
    }
}

impl Scheduler for Turns {
    fn configure(&mut self, _port: PortId, _share: Share, _now: Nanos) {}

    fn remove(&mut self, port: PortId) {
        self.queue.retain(|queued| *queued != port);
    }

    fn activate(&mut self, port: PortId, _now: Nanos) {
        if !self.queue.contains(&port) {
            self.queue.push_back(port);
        }
    }

    fn next(&mut self, _now: Nanos) -> Next {
        let budget = Budget { bytes: u64::MAX, frames: self.frames };
        self.queue.pop_front().map_or(Next::Idle, |port| Next::Serve(port, budget))
    }

    fn charge(&mut self, port: PortId, _cost: Cost, after: After, now: Nanos) {
        if after == After::Backlogged {
            self.activate(port, now);
        }
    }

    fn defer(&mut self, port: PortId, _now: Nanos) {
        self.queue.push_front(port);
    }
}

/// Adds up the charged time of services.
pub(crate) struct Ledger {
    pub turns: Box<dyn Scheduler>,
    /// Nanoseconds.
    pub charged: Arc<AtomicU64>,
}

impl Scheduler for Ledger {
    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        self.turns.configure(port, share, now)
    }
    fn remove(&mut self, port: PortId) {
        self.turns.remove(port)
    }
    fn activate(&mut self, port: PortId, now: Nanos) {
        self.turns.activate(port, now)
    }
    fn next(&mut self, now: Nanos) -> Next {
        self.turns.next(now)
    }
    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos) {
        self.charged.fetch_add(cost.nanos, Ordering::Relaxed);
        self.turns.charge(port, cost, after, now)
    }
    fn defer(&mut self, port: PortId, now: Nanos) {
        self.turns.defer(port, now)
    }
}

/// A share with this weight and nothing else.
pub(crate) fn weight(weight: u32) -> Share {
    Share { burst: 100_000, ..Share::of_weight(weight) }
}

/// A tenant with this share in both directions.
pub(crate) fn tenant(name: &str, share: Share) -> Tenant {
    let shares = Shares { tx: share, rx: share, same_weight: true };
    Tenant { name: name.to_owned(), shares, min_rate_on: BTreeMap::new() }
}

/// The MAC address of a guest by number; 0 is a host behind the uplink.
pub(crate) fn mac(number: u32) -> Mac {
    let [_, a, b, c] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, a, b, c])
}

/// A frame of `len` bytes with a number, from one station to another.
pub(crate) fn frame(to: Mac, from: Mac, number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame[12..14].copy_from_slice(&0x88b5_u16.to_be_bytes());
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

/// The broadcast address.
pub(crate) const BROADCAST: Mac = Mac([0xff; 6]);

/// A guest that sends nothing and posts room byte by byte. As in a ring, any more than at its last refusal counts as room.
#[derive(Clone, Default)]
pub(crate) struct Dripping {
    posted: Arc<AtomicU64>,
    /// The posted room that was not enough.
    short: u64,
    pub limit: Option<Limit>,
}

impl Dripping {
    /// Posts more room.
    pub(crate) fn post(&self, bytes: u64) {
        self.posted.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Source for Dripping {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, _budget: Budget, _now: Nanos) -> Batch<'a> {
        burst.fill().done()
    }

    fn consume(&mut self, _frames: usize) {}

    fn waiting(&mut self, _now: Nanos) -> bool {
        false
    }
}

impl Sink for Dripping {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let mut accepted = 0;
        for frame in frames {
            let posted = self.posted.load(Ordering::Relaxed);
            if batch.bytes(frame) > posted {
                self.short = posted;
                return Put { accepted, refusal: Some(Refusal::Full) };
            }
            self.posted.fetch_sub(batch.bytes(frame), Ordering::Relaxed);
            self.short = 0;
            accepted += 1;
        }
        Put { accepted, refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        if self.posted.load(Ordering::Relaxed) > self.short { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Dripping {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        wanted.room && self.room(Nanos(0)) == Room::Now
    }

    fn status(&self) -> Status {
        Status::Up
    }

    fn limit(&self) -> Option<Limit> {
        self.limit
    }
}

/// A link whose guests (from 1) and uplink (0) are memory ports. The switch knows all addresses.
pub(crate) struct Link {
    pub bridge: Bridge,
    pub clock: Manual,
    burst: Box<Burst>,
    pub peers: Vec<Peer>,
}

impl Link {
    /// A link with a memory port as uplink; every port has room for `room` frames.
    pub(crate) fn new(scheduler: Box<dyn Scheduler>, guests: u32, room: usize) -> Link {
        let (port, peer) = memory::pair(room);
        let mut link = Link::with_uplink(Config::default(), scheduler, Box::new(port), peer);
        for number in 1..=guests {
            link.add(number, weight(1), room);
        }
        link.introduce();
        link
    }

    /// A link without guests.
    pub(crate) fn with_uplink(
        config: Config,
        scheduler: Box<dyn Scheduler>,
        uplink: Box<dyn Port>,
        peer: Peer,
    ) -> Link {
        let mut bridge = Bridge::new("lan", config, scheduler);
        bridge.set_uplink(uplink);
        Link { bridge, clock: Manual::default(), burst: Burst::new(), peers: vec![peer] }
    }

    /// Adds a guest that is pinned to its MAC address.
    pub(crate) fn add(&mut self, number: u32, share: Share, room: usize) {
        let (port, peer) = memory::pair(room);
        self.add_port(number, share, Box::new(port));
        self.peers.push(peer);
    }

    /// Adds a guest with this port. One that only receives has no peer.
    pub(crate) fn add_port(&mut self, number: u32, share: Share, port: Box<dyn Port>) {
        let anti_spoofing = AntiSpoofing { mac: Some(mac(number)), addresses: Vec::new() };
        let id = self.bridge.add(&format!("guest{number}"), port, share, anti_spoofing, Nanos(0));
        assert_eq!(id, Ok(PortId(number)));
    }

    /// Lets the switch learn all addresses, and resets counters.
    pub(crate) fn introduce(&mut self) {
        for number in 0..self.peers.len() {
            self.peers[number].send(&frame(BROADCAST, mac(number as u32), 0, 60), Offload::default());
            self.settle();
            for peer in &self.peers {
                while peer.receive().is_some() {}
            }
        }
    }

    /// Sends a numbered frame of 60 bytes.
    pub(crate) fn send(&self, from: u32, to: u32, number: u64) {
        self.peers[from as usize].send(&frame(mac(to), mac(from), number, 60), Offload::default());
    }

    /// Wakes the worker for a guest's frames.
    pub(crate) fn kick(&mut self, guest: u32) {
        let (poller, mut now) = (Poller::new().expect("a poller"), self.clock.now());
        self.bridge.event(PortId(guest), 1, &poller, &mut now, &self.clock);
    }

    /// Numbers of the frames that a peer received.
    pub(crate) fn received(&self, at: u32) -> Vec<u64> {
        std::iter::from_fn(|| self.peers[at as usize].receive())
            .map(|(frame, _)| u64::from_be_bytes(frame[14..22].try_into().unwrap()))
            .collect()
    }

    /// Runs a round.
    pub(crate) fn round(&mut self) -> Round {
        self.bridge.round(&mut self.burst, self.clock.now(), &self.clock)
    }

    /// Rounds until the worker would sleep. Returns the time at which it would wake up without an event.
    pub(crate) fn settle(&mut self) -> Nanos {
        loop {
            let round = self.round();
            if !round.busy && !self.bridge.enable_notifications() {
                return round.next;
            }
        }
    }

    /// A turn of a bridge that ends. Returns when there is another.
    pub(crate) fn drain(&mut self) -> Nanos {
        let now = self.clock.now();
        self.bridge.drain(&mut self.burst, now, &self.clock)
    }

    /// The counters of a port.
    pub(crate) fn counters(&mut self, port: u32) -> fairlane_core::stats::Counters {
        self.bridge.counters(PortId(port)).expect("the port is there")
    }
}
