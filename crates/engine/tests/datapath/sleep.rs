//! Which ports are asked to wake the worker, before it sleeps.

use crate::support::{frame, mac, weight};
use fairlane_core::PortId;
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::{self, Budget, SchedulerKind};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Clock, Manual};
use fairlane_port::{Batch, Burst, Control, Poller, Put, Refusal, Room, Sink, Source, Status, Wanted, memory};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// More guests than a round polls.
const GUESTS: u32 = 100;

/// What a guest and its port share.
#[derive(Default)]
struct Rings {
    sent: VecDeque<Vec<u8>>,
    room: usize,
    received: u64,
    /// Whether the guest shall wake the worker for a frame, and for room: as with an event index, once.
    asked_for_frames: bool,
    asked_for_room: bool,
    kicked: bool,
    /// How often it was asked, and its port looked for frames.
    times_asked: u64,
    times_polled: u64,
}

impl Rings {
    fn send(&mut self, frame: Vec<u8>) {
        self.sent.push_back(frame);
        self.kicked |= std::mem::take(&mut self.asked_for_frames);
    }

    fn post(&mut self, room: usize) {
        self.room += room;
        self.kicked |= std::mem::take(&mut self.asked_for_room);
    }
}

/// A guest's rings, as it and its port know them.
#[derive(Clone, Default)]
struct Guest(Arc<Mutex<Rings>>);

/// The port, with the frames that it offered.
struct Card {
    guest: Guest,
    offered: VecDeque<Vec<u8>>,
}

impl Guest {
    fn with<R>(&self, act: impl FnOnce(&mut Rings) -> R) -> R {
        act(&mut self.0.lock().expect("no holder panics"))
    }
}

impl Source for Card {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        self.guest.with(|rings| self.offered.extend(rings.sent.drain(..)));
        let mut filler = burst.fill();
        filler.push_all(budget, self.offered.iter().map(|frame| (&frame[..], Offload::default())));
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.offered.drain(..frames);
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        let is_sent = self.guest.with(|rings| {
            rings.times_polled += 1;
            !rings.sent.is_empty()
        });
        !self.offered.is_empty() || is_sent
    }

    fn more(&mut self, notify: bool) -> bool {
        self.guest.with(|rings| {
            rings.asked_for_frames |= notify;
            !rings.sent.is_empty()
        })
    }
}

impl Sink for Card {
    fn put(&mut self, _batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let accepted = self.guest.with(|rings| {
            let accepted = frames.len().min(rings.room);
            rings.room -= accepted;
            rings.received += accepted as u64;
            accepted
        });
        Put { accepted, refusal: (accepted < frames.len()).then_some(Refusal::Full) }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        if self.guest.with(|rings| rings.room > 0) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Card {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let waits = self.waiting(Nanos(0));
        self.guest.with(|rings| {
            rings.asked_for_frames |= wanted.frames;
            rings.asked_for_room |= wanted.room;
            rings.times_asked += 1;
            (wanted.frames && waits) || (wanted.room && rings.room > 0)
        })
    }

    fn wakes(&self) -> bool {
        true
    }

    fn status(&self) -> Status {
        Status::Up
    }
}

/// A link with guests, whose worker handles their kicks and sleeps otherwise.
struct Host {
    bridge: Bridge,
    burst: Box<Burst>,
    clock: Manual,
    poller: Poller,
    outside: memory::Peer,
    guests: Vec<Guest>,
}

impl Host {
    fn new() -> Host {
        let (uplink, outside) = memory::pair(usize::MAX);
        let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
        let mut bridge = Bridge::new("lan", Config::default(), scheduler);
        bridge.set_uplink(Box::new(uplink));
        let guests: Vec<Guest> = (0..GUESTS).map(|_| Guest::default()).collect();
        for (number, guest) in (1..).zip(&guests) {
            let anti_spoofing = AntiSpoofing { mac: Some(mac(number)), addresses: Vec::new() };
            let id = bridge.add(
                &format!("guest{number}"),
                Box::new(Card { guest: guest.clone(), offered: VecDeque::new() }),
                weight(1),
                anti_spoofing,
                Nanos(0),
            );
            assert_eq!(id, Ok(PortId(number)));
        }
        let poller = Poller::new().expect("a poller");
        let mut host = Host { bridge, burst: Burst::new(), clock: Manual::default(), poller, outside, guests };
        // The switch learns where the outside is.
        host.guests[0].with(|rings| rings.post(1));
        host.outside.send(&frame(mac(1), mac(0), 0, 60), Offload::default());
        host.wake(true);
        host.guests[0].with(|rings| rings.received = 0);
        host
    }

    /// What the worker does if a guest kicked, or for another reason: its events, and rounds until it sleeps.
    fn wake(&mut self, otherwise: bool) {
        if !self.guests.iter().any(|guest| guest.with(|rings| rings.kicked)) && !otherwise {
            return;
        }
        self.bridge.disable_notifications();
        loop {
            let is_busy = self.round();
            if is_busy {
                continue;
            }
            if !self.bridge.enable_notifications() {
                return;
            }
            self.bridge.disable_notifications();
        }
    }

    /// What the worker does between two looks at its descriptors. Returns whether it is busy.
    fn round(&mut self) -> bool {
        let mut now = self.clock.now();
        for guest in 0..self.guests.len() {
            if self.guests[guest].with(|rings| std::mem::take(&mut rings.kicked)) {
                self.bridge.event(PortId(guest as u32 + 1), 1, &self.poller, &mut now, &self.clock);
            }
        }
        self.bridge.round(&mut self.burst, now, &self.clock).busy
    }

    fn times_asked(&self) -> u64 {
        self.guests.iter().map(|guest| guest.with(|rings| rings.times_asked)).sum()
    }

    /// Sends a frame from a guest to another, or to the uplink (0).
    fn send(&self, from: u32, to: u32) {
        self.guests[from as usize - 1].with(|rings| rings.send(frame(mac(to), mac(from), 0, 60)));
    }
}

#[test]
fn a_wakeup_asks_only_those_that_were_served() {
    let mut host = Host::new();
    let before = host.times_asked();
    assert_eq!(before, u64::from(GUESTS), "each was asked once");
    host.wake(true);
    assert_eq!(host.times_asked(), before, "nothing happened");
    host.send(90, 0);
    host.wake(false);
    assert!(host.outside.receive().is_some());
    assert_eq!(host.times_asked(), before + 1);
}

#[test]
fn a_busy_worker_stops_polling_guests_that_send_nothing_and_hears_of_them() {
    let mut host = Host::new();
    let polled = |host: &Host| host.guests[1..].iter().map(|guest| guest.with(|rings| rings.times_polled)).sum::<u64>();
    let flood = |host: &mut Host, rounds: u64| {
        for _ in 0..rounds {
            (0..40).for_each(|_| host.send(1, 0));
            host.round();
            while host.outside.receive().is_some() {}
        }
    };
    flood(&mut host, 1000);
    let before = polled(&host);
    flood(&mut host, 1000);
    let still = (polled(&host) - before) / 1000;
    assert!((1..=64).contains(&still), "{still} are polled in each round");
    for guest in [2, 50, GUESTS] {
        host.guests[0].with(|rings| rings.post(1));
        let received = host.guests[0].with(|rings| rings.received);
        host.send(guest, 1);
        flood(&mut host, 2);
        assert_eq!(host.guests[0].with(|rings| rings.received), received + 1, "guest {guest}");
    }
}

#[test]
fn guests_that_were_asked_before_a_sleep_are_polled_once() {
    let mut host = Host::new();
    let polled =
        |host: &Host| host.guests.iter().map(|guest| guest.with(|rings| rings.times_polled)).collect::<Vec<_>>();
    let before = polled(&host);
    for _ in 0..200 {
        (0..40).for_each(|_| host.send(1, 0));
        host.round();
        while host.outside.receive().is_some() {}
    }
    let once = polled(&host).iter().zip(before).filter(|(after, before)| **after == before + 1).count();
    assert!(once as u32 >= GUESTS - 1 - 64, "{once} were polled once");
}

#[test]
fn frames_that_keep_the_worker_from_sleeping_are_forwarded_at_once() {
    let mut host = Host::new();
    (2..=GUESTS).for_each(|guest| host.send(guest, 0));
    while host.round() {}
    while host.outside.receive().is_some() {}
    // All were served, and none was asked since. A round polls few of them.
    let senders = [20, 50, 90];
    senders.iter().for_each(|guest| host.send(*guest, 0));
    assert!(host.bridge.enable_notifications());
    host.bridge.disable_notifications();
    host.round();
    let forwarded = std::iter::from_fn(|| host.outside.receive()).count();
    assert_eq!(forwarded, senders.len());
}

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A guest sends this many frames to another or to the uplink.
    Send { from: u32, to: u32, frames: u32 },
    /// A guest posts receive buffers.
    Post { guest: u32, room: usize },
    /// The worker wakes up for no reason.
    Wake,
    /// It is kept awake by other work for so many rounds.
    Stay { rounds: u32 },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..=GUESTS, 0..=GUESTS, 1..40_u32).prop_map(|(from, to, frames)| Action::Send { from, to, frames }),
        4 => (1..=GUESTS, 1..40_usize).prop_map(|(guest, room)| Action::Post { guest, room }),
        1 => Just(Action::Wake),
        1 => (1..600_u32).prop_map(|rounds| Action::Stay { rounds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A worker that sleeps unless it is kicked leaves no frame that could be delivered.
    #[test]
    fn no_wakeup_is_lost(actions in prop::collection::vec((action(), any::<bool>()), 1..80)) {
        let mut host = Host::new();
        let mut owed = vec![0_u64; GUESTS as usize + 1];
        for (action, sleeps) in actions {
            match action {
                Action::Send { from, to, frames } if from != to => {
                    (0..frames).for_each(|_| host.send(from, to));
                    owed[to as usize] += u64::from(frames);
                }
                Action::Post { guest, room } => host.guests[guest as usize - 1].with(|rings| rings.post(room)),
                Action::Wake | Action::Send { .. } => host.wake(true),
                Action::Stay { rounds } => {
                    host.bridge.disable_notifications();
                    for _ in 0..rounds {
                        host.round();
                    }
                    host.wake(true);
                }
            }
            // Several things may happen before the worker runs.
            if !sleeps {
                host.wake(false);
                for guest in 1..=GUESTS {
                    let (room, received) = host.guests[guest as usize - 1].with(|rings| (rings.room, rings.received));
                    prop_assert!(room == 0 || received == owed[guest as usize], "guest {guest} has room, and is owed frames");
                }
            }
        }
        host.wake(false);
        while host.outside.receive().is_some() {
            owed[0] -= 1;
        }
        prop_assert_eq!(owed[0], 0);
    }
}
