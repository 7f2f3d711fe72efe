//! The way of frames through a bridge, in virtual time.

use crate::support::{BROADCAST, Dripping, Link, Turns, frame, mac, weight};
use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::stats::DropReason;
use fairlane_core::switch::AntiSpoofing;
use fairlane_core::time::Nanos;
use fairlane_engine::PATIENCE;
use fairlane_engine::clock::Clock;
use proptest::prelude::*;

#[test]
fn frames_reach_whom_they_are_for_in_order() {
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
fn a_broadcast_reaches_everyone_else() {
    let mut link = Link::new(Turns::of(32), 3, 1000);
    link.peers[2].send(&frame(BROADCAST, mac(2), 7, 60), Offload::default());
    link.settle();
    assert_eq!([0, 1, 2, 3].map(|at| link.received(at)), [vec![7], vec![7], vec![], vec![7]]);
}

#[test]
fn a_full_guest_misses_only_its_copy_of_a_broadcast() {
    let mut link = Link::new(Turns::of(32), 3, 5);
    for number in 0..8 {
        link.peers[2].send(&frame(BROADCAST, mac(2), number, 60), Offload::default());
        link.settle();
        link.received(0);
        link.received(1);
    }
    assert_eq!(link.received(3), [0, 1, 2, 3, 4]);
    assert_eq!(link.counters(2).drops.iter().collect::<Vec<_>>(), [(DropReason::ReceiverStalled, 3)]);
}

#[test]
fn a_broadcast_waits_for_the_uplink_before_anyone_has_a_copy() {
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
fn frames_of_one_burst_are_judged_apart() {
    let mut link = Link::new(Turns::of(32), 2, 100);
    // Ethernet and IPv4 headers of an empty datagram from 10.0.0.`host`, all of whose Ethernet headers are the same.
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
    // And guest 2's, which is bound to its MAC address alone.
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
fn a_stalled_guest_blocks_nobody_and_its_frames_drop_after_the_bounded_wait() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..30 {
        link.send(1, 3, number);
        link.send(2, 0, number);
    }
    link.settle();
    // Guest 3 is full: guest 1 waits with the rest in its ring, guest 2 is not held up.
    assert_eq!(link.peers[3].unsent() + link.counters(1).drops.total() as usize, 0);
    assert_eq!(link.received(0).len(), 10);
    link.settle();
    assert_eq!(link.received(0).len(), 10);
    let sent = link.counters(1).sent_frames;
    link.clock.advance(Nanos(PATIENCE.0 - 1));
    link.settle();
    assert_eq!(link.counters(1).sent_frames, sent);
    link.clock.advance(Nanos(1));
    link.settle();
    let counters = link.counters(1);
    assert_eq!(counters.drops.iter().collect::<Vec<_>>(), [(DropReason::ReceiverStalled, 20)]);
    // As long as it takes nothing, frames for it drop at once; then it is served again.
    link.send(1, 3, 98);
    link.settle();
    assert_eq!(link.counters(1).drops.get(DropReason::ReceiverStalled), 21);
    assert_eq!(link.received(3), (0..10).collect::<Vec<_>>());
    link.send(1, 3, 99);
    link.settle();
    assert_eq!(link.received(3), [99]);
    assert_eq!(link.counters(1).drops.total(), 21);
}

#[test]
fn a_slow_guest_makes_other_guests_wait_without_a_drop() {
    let mut link = Link::new(Turns::of(8), 2, 1);
    for number in 0..50 {
        link.send(1, 2, number);
    }
    for number in 0..50 {
        link.settle();
        assert_eq!(link.received(2), [number]);
        link.clock.advance(Nanos(PATIENCE.0 - 1));
    }
    assert_eq!(link.counters(1).drops.total(), 0);
}

/// A receiver that lends `drop` bytes each 150 ms. Returns for how long guest 1 was held by a frame for it, with what each step besides
/// does to the link.
fn held_by_drops(drop: u64, mut besides: impl FnMut(&mut Link, u64)) -> Nanos {
    let mut link = Link::new(Turns::of(8), 2, 100);
    let receiver = Dripping::default();
    link.add_receiver(3, Box::new(receiver.clone()));
    link.peers[1].send(&frame(mac(3), mac(1), 1, 1500), Offload::default());
    link.send(1, 0, 2);
    let start = link.clock.now();
    for step in 0..400 {
        // The worker sleeps until then if nothing else comes.
        link.send(2, 0, 100 + step);
        besides(&mut link, step);
        link.settle();
        let arrived = link.received(0);
        assert!(arrived.contains(&(100 + step)), "who sends elsewhere is held up");
        if arrived.contains(&2) {
            assert_eq!(link.counters(1).drops.iter().collect::<Vec<_>>(), [(DropReason::ReceiverStalled, 1)]);
            return link.clock.now().since(start);
        }
        link.clock.advance(Nanos::from_millis(10));
        if step % 15 == 14 {
            receiver.lend(drop);
        }
    }
    Nanos::NEVER
}

/// Room that is too little for any frame that waits is no progress.
#[test]
fn a_guest_that_lends_by_the_drop_holds_its_sender_no_longer_than_one_that_lends_nothing() {
    assert_eq!(held_by_drops(0, |_, _| {}), PATIENCE);
    assert_eq!(held_by_drops(1, |_, _| {}), PATIENCE);
}

/// Nor is a small frame that comes past those who wait, from the uplink or as a copy for all, and finds that room.
#[test]
fn drops_that_others_use_up_hold_nobody_longer() {
    assert_eq!(held_by_drops(60, |link, step| link.send(0, 3, step)), PATIENCE);
    let broadcast = |from: u32| {
        move |link: &mut Link, step| {
            link.peers[from as usize].send(&frame(BROADCAST, mac(from), 1000 + step, 60), Offload::default());
        }
    };
    assert_eq!(held_by_drops(60, broadcast(0)), PATIENCE);
    assert_eq!(held_by_drops(60, broadcast(2)), PATIENCE);
}

/// Nor is one that comes before the only guest that waits: it finds the room, and the next one behind it finds none.
#[test]
fn a_drop_that_the_uplink_uses_up_before_the_only_waiter_is_no_progress() {
    let two_at_once = |link: &mut Link, step| (0..2).filter(|_| step == 6).for_each(|_| link.send(0, 3, step));
    assert_eq!(held_by_drops(60, two_at_once), PATIENCE);
}

/// Guest 2 waits behind guest 1, whose last frame takes the last room: nobody was refused since, and yet it waits no longer than
/// others.
#[test]
fn who_waits_behind_the_last_frame_that_found_room_waits_a_bounded_time() {
    let mut link = Link::new(Turns::of(8), 2, 100);
    let receiver = Dripping::default();
    link.add_receiver(3, Box::new(receiver.clone()));
    link.send(1, 3, 1);
    link.settle();
    link.send(2, 3, 2);
    link.send(2, 0, 3);
    link.settle();
    link.clock.advance(Nanos::from_millis(10));
    receiver.lend(60);
    link.settle();
    assert_eq!((link.peers[1].unsent(), link.counters(1).drops.total()), (0, 0));
    let round = link.round();
    assert_eq!((round.busy, round.next), (false, link.clock.now() + PATIENCE));
    link.clock.advance(PATIENCE);
    link.settle();
    assert_eq!(link.received(0), [3]);
    assert_eq!(link.counters(2).drops.iter().collect::<Vec<_>>(), [(DropReason::ReceiverStalled, 1)]);
}

#[test]
fn a_guest_that_is_not_scheduled_for_a_while_loses_nothing_from_the_uplink() {
    let mut link = Link::new(Turns::of(8), 1, 10);
    link.introduce();
    // It has the processor for a moment every 90 ms, as behind three neighbours' slices of Xen's, once each 400 ms.
    for period in 0..10u64 {
        for number in 0..15 {
            link.send(0, 1, 15 * period + number);
        }
        link.settle();
        link.clock.advance(Nanos::from_millis(90));
        let mut got = link.received(1);
        link.settle();
        got.extend(link.received(1));
        assert_eq!(got, (15 * period..15 * (period + 1)).collect::<Vec<_>>());
        link.clock.advance(Nanos::from_millis(310));
    }
    assert_eq!(link.counters(0).drops.total(), 0);
}

#[test]
fn slow_guests_hold_the_uplink_up_for_a_bounded_part_of_the_time() {
    let mut link = Link::new(Turns::of(8), 1, 1);
    link.add(2, weight(1), 1000);
    link.introduce();
    // The uplink's frames alternate between a guest that takes one frame each 10 ms and one that takes all at once.
    for number in 0..2000 {
        link.send(0, 1 + number as u32 % 2, number);
    }
    let mut quick = 0;
    for millisecond in 0..1000 {
        for _ in 0..100 {
            link.round();
            quick += link.received(2).len();
        }
        if millisecond % 10 == 0 {
            link.received(1);
        }
        link.clock.advance(Nanos::from_millis(1));
    }
    assert_eq!(quick, 1000);
    assert!(link.counters(0).drops.get(DropReason::ReceiverStalled) > 900);
}

#[test]
fn removing_a_port_leaves_its_neighbours_alone() {
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
    // Frames for the port that left: flooded or dropped, never stuck.
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

/// What happens in one step of a random life of a link.
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
    /// Every frame is in its sender's ring, at its receiver, or counted as dropped; none overtakes another of the same way.
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
        // Drain: nobody is stuck.
        for _ in 0..10_000 {
            link.clock.advance(Nanos::from_millis(1));
            let round = link.round();
            let received: usize = (0..4).map(|at| link.received(at).len()).sum();
            arrived += received as u64;
            if round.frames == 0 && received == 0 && link.peers.iter().all(|peer| peer.unsent() == 0) {
                break;
            }
        }
        let mut dropped = 0;
        for port in 0..4 {
            let counters = link.counters(port as u32);
            prop_assert_eq!(counters.sent_frames - before[port].sent_frames, sent[port]);
            dropped += counters.drops.total() - before[port].drops.total();
        }
        prop_assert_eq!(sent.iter().sum::<u64>(), arrived + dropped);
    }
}
