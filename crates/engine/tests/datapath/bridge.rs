//! Forwarding through a bridge, in virtual time.

use crate::support::{BROADCAST, Link, Turns, frame, mac, weight};
use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::stats::DropReason;
use fairlane_core::switch::AntiSpoofing;
use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;
use proptest::prelude::*;

#[test]
fn frames_reach_their_destination_in_order() {
    let mut link = Link::new(Turns::of(4), 3, 1000);
    for number in 0..100 {
        link.send(1, 2, number);
        link.send(1, 0, number);
        link.send(0, 3, number);
    }
    link.settle();
    let all: Vec<u64> = (0..100).collect();
    assert_eq!((link.received(2), link.received(0), link.received(3)), (all.clone(), all.clone(), all));
    assert!(link.received(1).is_empty());
    assert_eq!(link.counters(1).drops.total(), 0);
}

#[test]
fn a_broadcast_reaches_all_other_ports() {
    let mut link = Link::new(Turns::of(32), 3, 1000);
    link.peers[2].send(&frame(BROADCAST, mac(2), 7, 60), Offload::default());
    link.settle();
    assert_eq!([0, 1, 2, 3].map(|at| link.received(at)), [vec![7], vec![7], vec![], vec![7]]);
}

#[test]
fn a_broadcast_waits_for_the_uplink_before_any_port_has_a_copy() {
    let mut link = Link::new(Turns::of(32), 2, 3);
    for number in 0..5 {
        link.peers[1].send(&frame(BROADCAST, mac(1), number, 60), Offload::default());
    }
    link.settle();
    assert_eq!(link.received(2), [0, 1, 2]);
    assert_eq!(link.received(0), [0, 1, 2]);
    link.settle();
    assert_eq!((link.received(2), link.received(0)), (vec![3, 4], vec![3, 4]));
    assert_eq!(link.counters(1).drops.total(), 0);
}

#[test]
fn a_spoofed_source_is_dropped_and_counted_on_its_sender() {
    let mut link = Link::new(Turns::of(32), 2, 100);
    link.peers[1].send(&frame(mac(0), mac(2), 1, 60), Offload::default());
    link.send(1, 0, 2);
    link.settle();
    assert_eq!(link.received(0), [2]);
    assert_eq!(link.counters(1).drops.iter().collect::<Vec<_>>(), [(DropReason::SpoofedMac, 1)]);
    assert_eq!(link.counters(2).drops.total(), 0);
}

#[test]
fn frames_of_one_burst_are_judged_separately() {
    let mut link = Link::new(Turns::of(32), 2, 100);
    // Ethernet and IPv4 headers of an empty datagram from 10.0.0.`host`; all have the same Ethernet header.
    let packet = |host: u8| {
        let mut packet = frame(mac(0), mac(1), 0, 42);
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14..34].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 0, 0, 9]);
        packet[34..].copy_from_slice(&[0, 1, 0, 2, 0, 8, 0, 0]);
        packet
    };
    let addresses = vec!["10.0.0.1".parse().unwrap()];
    link.bridge.set_anti_spoofing(PortId(1), AntiSpoofing { mac: Some(mac(1)), addresses }).unwrap();
    for host in [1, 1, 2, 1, 3, 1] {
        link.peers[1].send(&packet(host), Offload::default());
    }
    // Guest 2 is pinned to its MAC address only.
    for source in [2, 2, 1, 2] {
        link.peers[2].send(&frame(mac(0), mac(source), 0, 60), Offload::default());
    }
    link.settle();
    assert_eq!(link.received(0).len(), 4 + 3);
    assert_eq!(link.counters(1).drops.iter().collect::<Vec<_>>(), [(DropReason::SpoofedAddress, 2)]);
    assert_eq!(link.counters(2).drops.iter().collect::<Vec<_>>(), [(DropReason::SpoofedMac, 1)]);
}

#[test]
fn backpressure_loses_nothing() {
    let mut link = Link::new(Turns::of(8), 3, 7);
    for number in 0..500 {
        for guest in 1..=3 {
            link.send(guest, 0, number * 10 + u64::from(guest));
        }
    }
    let mut arrived = Vec::new();
    while arrived.len() < 1500 {
        link.settle();
        let batch = link.received(0);
        assert!(!batch.is_empty() && batch.len() <= 7);
        arrived.extend(batch);
        link.clock.advance(Nanos::from_millis(100));
    }
    for guest in 1..=3 {
        let own: Vec<u64> = arrived.iter().copied().filter(|number| number % 10 == u64::from(guest)).collect();
        assert!(own.is_sorted() && own.len() == 500);
        assert_eq!(link.counters(guest).drops.total(), 0);
    }
}

#[test]
fn removing_a_port_does_not_affect_its_neighbours() {
    let mut link = Link::new(Turns::of(8), 3, 5);
    for number in 0..20 {
        link.send(1, 3, number);
        link.send(2, 0, 100 + number);
        link.send(3, 1, number);
    }
    link.settle();
    assert!(link.bridge.remove(PortId(3), link.clock.now()).is_some());
    assert_eq!(link.received(1).len(), 5);
    let mut arrived = Vec::new();
    for _ in 0..20 {
        link.settle();
        arrived.extend(link.received(0).into_iter().filter(|number| *number >= 100));
    }
    assert_eq!(arrived, (100..120).collect::<Vec<_>>());
    // Frames for the removed port are flooded or dropped, but never stuck.
    assert_eq!(link.peers[1].unsent(), 0);
    assert_eq!(link.counters(1).sent_frames, 21);
    assert_eq!(link.bridge.find("guest3"), None);
    assert!(link.bridge.remove(PortId(3), Nanos(0)).is_none());
    assert!(link.bridge.remove(PortId(77), Nanos(0)).is_none());
}

#[test]
fn a_new_scheduler_finds_the_ports_as_they_are() {
    let mut link = Link::new(Turns::of(8), 3, 5);
    for number in 0..40 {
        link.send(1, 0, number);
        link.send(2, 3, number);
    }
    let (mut uplink, mut third) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        link.round();
        let now = link.clock.now();
        link.bridge.set_scheduler(Turns::of(3), now);
        link.settle();
        uplink.extend(link.received(0));
        third.extend(link.received(3));
    }
    let all: Vec<u64> = (0..40).collect();
    assert_eq!((uplink, third), (all.clone(), all));
}

/// One step in the random life of a link.
#[derive(Clone, Debug)]
enum Step {
    Send { from: u32, to: u32, frames: u64 },
    Receive { at: u32 },
    Round,
    Wait { millis: u64 },
    Swap,
    Weigh { guest: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4u32, 0..4u32, 1..40u64).prop_map(|(from, to, frames)| Step::Send { from, to, frames }),
        3 => (0..4u32).prop_map(|at| Step::Receive { at }),
        6 => Just(Step::Round),
        2 => (0..30u64).prop_map(|millis| Step::Wait { millis }),
        1 => Just(Step::Swap),
        1 => (1..4u32).prop_map(|guest| Step::Weigh { guest }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Every frame is in its sender's ring, at its receiver, or counted as dropped; none overtakes another between the same ports.
    #[test]
    fn every_frame_is_accounted_for(steps in steps(), room in 1..20usize) {
        let mut link = Link::new(Turns::of(8), 3, room);
        let before: Vec<_> = (0..4).map(|port| link.counters(port)).collect();
        let mut sent = [0u64; 4];
        let mut arrived = 0;
        let mut last = std::collections::HashMap::new();
        let mut serial = 0;
        for step in steps {
            match step {
                Step::Send { from, to, .. } if from == to => {}
                Step::Send { from, to, frames } => {
                    for _ in 0..frames {
                        serial += 1;
                        link.send(from, to, serial * 4 + u64::from(from));
                    }
                    sent[from as usize] += frames;
                }
                Step::Receive { at } => {
                    for number in link.received(at) {
                        let earlier = last.insert((number % 4, at), number);
                        prop_assert!(earlier.is_none_or(|earlier| earlier < number));
                        arrived += 1;
                    }
                }
                Step::Round => { link.round(); }
                Step::Wait { millis } => link.clock.advance(Nanos::from_millis(millis)),
                Step::Swap => {
                    let now = link.clock.now();
                    link.bridge.set_scheduler(Turns::of(5), now);
                }
                Step::Weigh { guest } => {
                    let now = link.clock.now();
                    link.bridge.set_share(PortId(guest), weight(3), now);
                }
            }
        }
        // Drain the link: no frame is stuck.
        for _ in 0..10_000 {
            link.clock.advance(Nanos::from_millis(1));
            let round = link.round();
            let received: usize = (0..4).map(|at| link.received(at).len()).sum();
            arrived += received as u64;
            // A sender that a former scheduler let wait may be served by the next round only: its frames were taken from the peer.
            let over = round.frames == 0 && round.next == Nanos::NEVER && received == 0;
            if over && link.peers.iter().all(|peer| peer.unsent() == 0) {
                break;
            }
        }
        let mut dropped = 0;
        for port in 0..4 {
            let counters = link.counters(port as u32);
            prop_assert_eq!(counters.sent_frames - before[port].sent_frames, sent[port]);
            dropped += counters.drops.total() - before[port].drops.total();
            dropped += counters.receive_drops.total() - before[port].receive_drops.total();
        }
        prop_assert_eq!(sent.iter().sum::<u64>(), arrived + dropped);
    }
}
