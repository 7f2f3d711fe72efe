//! Floods from outside, on a clock that advances as frames are delivered.

use crate::bill::{Busy, Slow};
use crate::support::{frame, mac, tenant, weight};
use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::receive::Receive;
use fairlane_core::sched::{self, SchedulerKind};
use fairlane_core::stats::DropReason;
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_engine::Bridge;
use fairlane_engine::clock::Clock;
use fairlane_port::Burst;
use fairlane_port::memory::{self, Peer};

/// Time to deliver a frame, in nanoseconds.
const DELIVERY: u64 = 500;

/// Frames that wait in a ring, and the room of a guest.
const RING: usize = 256;

/// A host whose guests all send to the uplink, or to each other, and receive from it.
struct Host {
    bridge: Bridge,
    clock: Busy,
    burst: Box<Burst>,
    /// The peers of the uplink and of the guests.
    peers: Vec<Peer>,
}

impl Host {
    /// Guests with a weight for what they send and one for what they receive.
    fn new(guests: &[(u32, u32)]) -> Host {
        let clock = Busy::default();
        let slow = |port| Box::new(Slow { clock: clock.clone(), port });
        let (uplink, peer) = memory::pair(RING);
        let mut peers = vec![peer];
        let scheduler = sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100));
        let mut bridge = Bridge::new("lan", Config { isolate: true, seed: 1 }, scheduler);
        bridge.set_uplink(slow(uplink));
        for (index, (sends, receives)) in guests.iter().enumerate() {
            let number = index as u32 + 1;
            let (port, peer) = memory::pair(RING);
            peers.push(peer);
            let pinned = AntiSpoofing { mac: Some(mac(number)), addresses: Vec::new() };
            let id = bridge.add(&format!("guest{number}"), slow(port), weight(*sends), pinned, Nanos(0));
            assert_eq!(id, Ok(PortId(number)));
            bridge.set_receive(PortId(number), Receive::with_weight(*receives), Nanos(0));
        }
        Host { bridge, clock, burst: Burst::new(), peers }
    }

    /// Runs for some time. Frames wait always for what is in `sent` (guests that send to the uplink) and `received` (guests that
    /// receive from it, so many frames in turn). Returns the frames that each guest sent and received.
    fn run(&mut self, time: Nanos, sends: &[u32], receives: &[(u32, usize)]) -> (Vec<u64>, Vec<u64>) {
        let before = self.counted();
        let end = self.clock.now() + time;
        while self.clock.now() < end {
            for guest in sends {
                self.fill(*guest, &[(0, 1)]);
            }
            self.fill(0, receives);
            let round = self.bridge.round(&mut self.burst, self.clock.now(), &self.clock);
            for peer in &self.peers {
                while peer.receive().is_some() {}
            }
            if round.frames == 0 {
                self.clock.spend(DELIVERY, 0);
            }
        }
        let after = self.counted();
        let since =
            |after: &[u64], before: &[u64]| after.iter().zip(before).map(|(after, before)| after - before).collect();
        (since(&after.0, &before.0), since(&after.1, &before.1))
    }

    /// Fills a peer's ring with frames for others, so many for each in turn.
    fn fill(&self, from: u32, to: &[(u32, usize)]) {
        let peer = &self.peers[from as usize];
        while !to.is_empty() && peer.unsent() < RING {
            for (guest, frames) in to {
                for _ in 0..*frames {
                    peer.send(&frame(mac(*guest), mac(from), DELIVERY, 60), Offload::default());
                }
            }
        }
    }

    fn counted(&self) -> (Vec<u64>, Vec<u64>) {
        let counters = |guest| self.bridge.counters(PortId(guest)).expect("the port is there");
        let guests = 1..self.peers.len() as u32;
        guests.map(|guest| (counters(guest).sent_frames, counters(guest).received_frames)).unzip()
    }

    /// Frames from the uplink that were dropped because a guest was above its share.
    fn refused(&self, guest: u32) -> u64 {
        self.bridge.counters(PortId(guest)).expect("the port is there").receive_drops.get(DropReason::RxOverShare)
    }
}

#[test]
fn a_flood_from_outside_buys_no_more_of_the_worker_than_its_weight() {
    for (weight, due) in [(100, 0.2), (400, 0.5), (25, 0.0588)] {
        let mut host = Host::new(&[(100, weight), (100, 100), (100, 100), (100, 100), (100, 100)]);
        let senders = [2, 3, 4, 5];
        host.run(Nanos(SECOND / 10), &senders, &[(1, 1)]);
        let (sent, received) = host.run(Nanos(SECOND / 10), &senders, &[(1, 1)]);
        let all = (sent.iter().sum::<u64>() + received[0]) as f64;
        let part = received[0] as f64 / all;
        assert!((part - due).abs() < 0.02, "weight {weight}: {part} of the worker, {due} is due");
        for sent in &sent[1..] {
            assert!((*sent as f64 / all - (1.0 - due) / 4.0).abs() < 0.01, "{sent} of {all}");
        }
    }
}

/// Guests 1 and 2 belong to a tenant with the weight of guest 3, which sends.
#[test]
fn a_flood_at_a_tenants_guests_buys_no_more_of_the_worker_than_the_tenants_weight() {
    let mut host = Host::new(&[(100, 100), (100, 100), (100, 100)]);
    host.bridge.set_scheduler(sched::build_for_tenants(None, Nanos::from_millis(100)), Nanos(0));
    for guest in 1..=2 {
        host.bridge.set_tenant(PortId(guest), Some(&tenant("red", weight(100))), Nanos(0));
    }
    host.run(Nanos(SECOND / 10), &[3], &[(1, 1), (2, 1)]);
    let (sent, received) = host.run(Nanos(SECOND / 10), &[3], &[(1, 1), (2, 1)]);
    let all = (sent[2] + received[0] + received[1]) as f64;
    let parts = [received[0], received[1], sent[2]].map(|frames| frames as f64 / all);
    assert!(parts.iter().zip([0.25, 0.25, 0.5]).all(|(part, due)| (part - due).abs() < 0.03), "{parts:?}");
}

#[test]
fn others_receive_what_they_are_due_beside_a_flood() {
    // Of the frames from outside, one of 16 is for guest 2, which sends as well.
    let mut host = Host::new(&[(100, 100), (100, 100), (100, 100)]);
    host.run(Nanos(SECOND / 10), &[2, 3], &[(1, 15), (2, 1)]);
    let refused = host.refused(2);
    host.run(Nanos(SECOND / 10), &[2, 3], &[(1, 15), (2, 1)]);
    assert_eq!(host.refused(2), refused, "guest 2 receives less than its share");
    assert!(host.refused(1) > 0);
}

/// A worker that others keep from running has little time, and yet enough for its guests.
#[test]
fn a_worker_that_others_keep_from_running_drops_nothing() {
    let mut host = Host::new(&[(100, 100); 5]);
    let (mut sent, mut asked) = (0, 0);
    while host.clock.now() < Nanos(SECOND) {
        let millis = host.clock.now().0 / 1_000_000;
        if sent <= millis / 20 {
            (1..=4).for_each(|guest| host.fill(guest, &[(0, 1)]));
            sent += 1;
        }
        while asked < millis {
            host.peers[0].send(&frame(mac(5), mac(0), 20 * DELIVERY, 60), Offload::default());
            asked += 1;
        }
        let round = host.bridge.round(&mut host.burst, host.clock.now(), &host.clock);
        host.peers.iter().for_each(|peer| while peer.receive().is_some() {});
        // Others run whenever it gives way.
        host.clock.spend(0, if round.busy { 5_000_000 } else { 100_000 });
    }
    assert_eq!(host.refused(5), 0, "of {asked} frames");
}

#[test]
fn nothing_is_dropped_for_a_share_that_no_other_guest_wants() {
    let mut host = Host::new(&[(100, 1), (10_000, 100)]);
    let (_, received) = host.run(Nanos(SECOND / 10), &[], &[(1, 1)]);
    assert!(received[0] as f64 > 0.9 * (SECOND / 10 / DELIVERY) as f64, "{received:?}");
    assert_eq!(host.refused(1), 0);
}
