//! Receive queues in virtual time: which frames wait for a guest whose ring is full, and where; and that no other port waits for
//! it.

use crate::support::{BROADCAST, Dripping, Link, Turns, frame, mac, tenant, weight};
use fairlane_core::PortId;
use fairlane_core::packet::Offload;
use fairlane_core::receive::{self, Receive};
use fairlane_core::sched::{self, Share};
use fairlane_core::stats::{Counters, DropReason, Drops};
use fairlane_core::switch::Config;
use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;
use fairlane_port::fault::{Faults, Faulty};
use fairlane_port::{HEAD, memory};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Bytes that a queued frame of 60 bytes is charged.
const CHARGED: u64 = 60 + 64;

pub(crate) fn terms(link: &mut Link, guest: u32, change: impl FnOnce(&mut Receive)) {
    let mut receive = Receive::with_weight(1);
    change(&mut receive);
    let now = link.clock.now();
    link.bridge.set_receive(PortId(guest), receive, now);
}

fn reasons(drops: Drops) -> Vec<(DropReason, u64)> {
    drops.iter().collect()
}

/// All frames that a peer receives as it makes room repeatedly.
fn drain(link: &mut Link, at: u32) -> Vec<u64> {
    let mut all = Vec::new();
    loop {
        link.settle();
        let got = link.received(at);
        if got.is_empty() {
            return all;
        }
        all.extend(got);
    }
}

#[test]
fn frames_from_the_uplink_for_a_stalled_guest_are_queued_and_delay_no_other() {
    let mut link = Link::new(Turns::of(8), 2, 10);
    for number in 0..200 {
        link.send(0, 1 + number as u32 % 2, number);
    }
    for _ in 0..20 {
        link.settle();
        let quick = link.received(2);
        assert!(quick.iter().all(|number| number % 2 == 1));
    }
    assert_eq!(link.peers[0].unsent(), 0);
    assert_eq!(drain(&mut link, 1), (0..200).step_by(2).collect::<Vec<_>>());
    assert_eq!(link.counters(1).receive_drops.total() + link.counters(0).drops.total(), 0);
}

/// Senders, receivers and lengths of frames that are sent at once.
fn sends() -> impl Strategy<Value = Vec<(u32, u32, usize)>> {
    let lens = prop_oneof![60..200usize, 1000..5000usize, 5000..60_000usize];
    prop::collection::vec((prop::sample::select(&[0, 2]), prop::sample::select(&[1, 3]), lens), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest revokes its grants while its frames wait for another, whose ring is full and whose queue they would be copied
    /// into.
    #[test]
    fn frames_that_are_revoked_before_they_are_copied_reach_nobody(
        seed: u64,
        rounds in prop::collection::vec(sends(), 1..20),
    ) {
        let (uplink, peer) = memory::pair(usize::MAX);
        let mut link = Link::with_uplink(Config::default(), Turns::of(8), Box::new(uplink), peer);
        link.add(1, weight(1), 1);
        let (sender, peer) = memory::pair(usize::MAX);
        let revoked = Faults { withdraw: 0.5, ..Faults::default() };
        link.add_port(2, weight(1), Box::new(Faulty::new(sender, seed, revoked, Faults::default())));
        link.peers.push(peer);
        link.add(3, weight(1), usize::MAX);
        link.introduce();
        let (mut number, mut lost) = (0, 0);
        for sends in rounds {
            let mut missing = BTreeMap::new();
            for (from, to, len) in sends {
                let mut bytes = frame(mac(to), mac(from), number, len);
                bytes[22..].fill(0xa5);
                link.peers[from as usize].send(&bytes, Offload::default());
                missing.insert((to, bytes), from);
                number += 1;
            }
            loop {
                link.settle();
                let at = |at: u32| Some((at, link.peers[at as usize].receive()?.0));
                let Some(frame) = at(1).or_else(|| at(3)) else { break };
                prop_assert!(missing.remove(&frame).is_some(), "it was not sent to it, or is not what was sent");
            }
            prop_assert!(missing.iter().all(|((_, bytes), from)| *from == 2 && bytes.len() > HEAD));
            lost += missing.len() as u64;
        }
        let expected = if lost > 0 { vec![(DropReason::Malformed, lost)] } else { vec![] };
        prop_assert_eq!(reasons(link.counters(2).drops), expected);
        prop_assert_eq!(link.counters(1).receive_drops.total(), 0);
    }
}

#[test]
fn a_guest_that_waits_for_its_cpu_loses_nothing() {
    let mut link = Link::new(Turns::of(8), 2, 10);
    // It has its CPU for a moment every 90 ms, as after three slices of Xen's credit scheduler.
    for period in 0..10u64 {
        for number in 0..100 {
            link.send(if number % 2 == 0 { 0 } else { 2 }, 1, 100 * period + number);
            link.settle();
        }
        link.clock.advance(Nanos::from_millis(90));
        let mut got = drain(&mut link, 1);
        got.sort_unstable();
        assert_eq!(got, (100 * period..100 * (period + 1)).collect::<Vec<_>>());
    }
    assert_eq!(link.counters(1).receive_drops.total(), 0);
}

#[test]
fn a_bridge_that_ends_delivers_what_it_accepted_and_accepts_nothing_more() {
    let mut link = Link::new(Turns::of(8), 2, 10);
    (0..30).for_each(|number| link.send(0, 1, number));
    link.settle();
    // Ten are in the guest's ring, the others in its queue.
    assert_eq!(link.peers[0].unsent(), 0);
    let before = link.counters(2).sent_frames;
    link.send(2, 0, 99);
    assert_ne!(link.drain(), Nanos::NEVER, "its ring has no room yet");
    let mut got = link.received(1);
    while link.drain() != Nanos::NEVER {
        got.extend(link.received(1));
    }
    got.extend(link.received(1));
    assert_eq!(got, (0..30).collect::<Vec<_>>());
    assert_eq!(link.counters(2).sent_frames, before, "a frame was taken from a ring at the end");
}

#[test]
fn a_full_guest_gets_its_copy_of_a_broadcast_later() {
    let mut link = Link::new(Turns::of(32), 3, 5);
    for number in 0..8 {
        link.peers[2].send(&frame(BROADCAST, mac(2), number, 60), Offload::default());
        link.settle();
        link.received(0);
        link.received(1);
    }
    assert_eq!(drain(&mut link, 3), (0..8).collect::<Vec<_>>());
    assert_eq!(link.counters(2).drops.total(), 0);
}

#[test]
fn a_sender_with_nothing_else_in_its_ring_waits_there() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..30 {
        link.send(1, 3, number);
    }
    link.settle();
    // The first ten are in guest 3's ring, the others in guest 1's, where they use no memory of the queues.
    assert_eq!(link.counters(1).sent_frames, 10 + 1);
    link.clock.advance(Nanos(receive::TIMEOUT.0 - 1));
    assert_eq!(drain(&mut link, 3), (0..30).collect::<Vec<_>>());
    assert_eq!((link.counters(1).drops.total(), link.counters(3).receive_drops.total()), (0, 0));
}

#[test]
fn a_sender_waits_no_longer_than_a_queued_frame() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..20 {
        link.send(1, 3, number);
    }
    assert_eq!(link.settle(), link.clock.now() + receive::TIMEOUT);
    link.clock.advance(receive::TIMEOUT);
    link.settle();
    assert!(link.counters(1).sent_frames > 11);
    // Eight of them were queued, and it waits again.
    link.clock.advance(receive::TIMEOUT);
    link.settle();
    assert_eq!(link.counters(1).sent_frames, 1 + 20);
    assert_eq!(reasons(link.counters(3).receive_drops), [(DropReason::RxQueueTimeout, 8)]);
}

#[test]
fn a_waiting_senders_frames_for_others_are_not_delayed() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..20 {
        link.send(1, 3, number);
    }
    link.settle();
    assert!(link.peers[1].unsent() == 0 && link.counters(1).sent_frames < 20, "it waits");
    link.send(1, 0, 77);
    link.send(1, 2, 78);
    link.settle();
    assert_eq!((link.received(0), link.received(2)), (vec![77], vec![78]));
    assert_eq!(drain(&mut link, 3), (0..20).collect::<Vec<_>>());
    assert_eq!(link.counters(3).receive_drops.total(), 0);
}

#[test]
fn a_waiting_senders_frame_for_another_guest_wakes_the_worker() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..20 {
        link.send(1, 3, number);
    }
    link.settle();
    assert!(!link.round().busy);
    assert!(!link.bridge.enable_notifications(), "all that waits is for a guest that is full");
    link.bridge.disable_notifications();
    link.send(1, 0, 77);
    link.kick(1);
    assert!(link.bridge.enable_notifications());
    link.bridge.disable_notifications();
    link.settle();
    assert_eq!(link.received(0), [77]);
}

/// A ring with more frames than a burst: frames after these, in the ring or still in the guest, must not wait.
#[test]
fn a_sender_with_a_long_ring_does_not_wait() {
    let mut link = Link::new(Turns::of(8), 3, 10);
    for number in 0..200 {
        link.send(1, 3, number);
    }
    link.send(1, 0, 777);
    link.settle();
    assert_eq!(link.received(0), [777]);
    assert_eq!(drain(&mut link, 3), (0..200).collect::<Vec<_>>());
}

#[test]
fn a_full_queue_drops_frames_and_counts_them_at_the_guest() {
    let mut link = Link::new(Turns::of(8), 2, 10);
    terms(&mut link, 1, |receive| receive.queue = 20 * CHARGED);
    for number in 0..100 {
        link.send(0, 1, number);
    }
    link.settle();
    assert_eq!(reasons(link.counters(1).receive_drops), [(DropReason::RxQueueFull, 70)]);
    assert_eq!(link.counters(0).drops.total(), 0);
    assert_eq!(drain(&mut link, 1), (0..30).collect::<Vec<_>>());
    // Delivered frames make room again.
    for number in 0..30 {
        link.send(0, 1, number);
    }
    assert_eq!(drain(&mut link, 1), (0..30).collect::<Vec<_>>());
    assert_eq!(link.counters(1).receive_drops.total(), 70);
}

#[test]
fn frames_that_wait_too_long_are_dropped_without_an_event() {
    let mut link = Link::new(Turns::of(8), 2, 10);
    for number in 0..30 {
        link.send(0, 1, number);
    }
    assert_eq!(link.settle(), link.clock.now() + receive::TIMEOUT);
    link.clock.advance(Nanos(receive::TIMEOUT.0 - 1));
    link.send(0, 1, 30);
    link.settle();
    assert_eq!(link.counters(1).receive_drops.total(), 0);
    link.clock.advance(Nanos(1));
    link.settle();
    assert_eq!(reasons(link.counters(1).receive_drops), [(DropReason::RxQueueTimeout, 20)]);
    assert_eq!(drain(&mut link, 1), (0..10).chain(30..31).collect::<Vec<_>>());
}

/// Guests 1 and 3 fill the pool. Guest 2, with two thirds of all weights, still gets its part of the second half.
#[test]
fn a_short_pool_is_divided_by_weight() {
    let mut link = Link::new(Turns::of(8), 3, 1);
    let all = 120;
    link.bridge.set_receive_pool(all * CHARGED);
    for (guest, weight) in [(1, 1), (2, 4), (3, 1)] {
        terms(&mut link, guest, |receive| receive.share.weight = weight);
    }
    for (guest, frames) in [(1, 500), (3, 500), (2, 500)] {
        for number in 0..frames {
            link.send(0, guest, number);
        }
        link.settle();
    }
    // One frame each is in the rings. Guest 1 has used the first half; its part of the other half is smaller than that.
    let waiting = [1, 2, 3].map(|guest| 500 - link.counters(guest).receive_drops.total() - 1);
    assert_eq!(waiting, [60, 40, 10]);
}

#[test]
fn a_guest_that_posts_room_byte_by_byte_delays_no_other() {
    let mut link = Link::new(Turns::of(8), 2, 100);
    let receiver = Dripping::default();
    link.add_port(3, weight(1), Box::new(receiver.clone()));
    link.peers[1].send(&frame(mac(3), mac(1), 1, 1500), Offload::default());
    link.send(1, 0, 2);
    for step in 0..100 {
        link.send(2, 0, 100 + step);
        link.send(0, 3, step);
        link.peers[2].send(&frame(BROADCAST, mac(2), 1000 + step, 60), Offload::default());
        link.settle();
        let arrived = link.received(0);
        assert!(arrived.contains(&(100 + step)));
        assert_eq!(arrived.contains(&2), step == 0);
        link.clock.advance(Nanos::from_millis(10));
        receiver.post(1);
    }
}

#[test]
fn a_guest_whose_frontend_leaves_keeps_no_memory() {
    let mut link = Link::new(Turns::of(8), 2, 1);
    link.send(0, 1, 1);
    link.send(0, 1, 2);
    link.settle();
    assert!(link.bridge.remove(PortId(1), Nanos(0)).is_some());
    link.bridge.set_receive_pool(2 * CHARGED);
    link.send(0, 2, 3);
    link.send(0, 2, 4);
    assert_eq!(drain(&mut link, 2), [3, 4]);
}

/// Guest 1 takes one frame per millisecond, and the uplink has two for it. Returns its counters after ten seconds.
fn congested(packet: &[u8]) -> Counters {
    let mut link = Link::new(Turns::of(8), 1, 1);
    for _ in 0..10_000 {
        (0..2).for_each(|_| link.peers[0].send(packet, Offload::default()));
        link.settle();
        link.peers[1].receive();
        link.clock.advance(Nanos::from_millis(1));
    }
    link.counters(1)
}

/// An IPv4 packet with these ECN bits. It is longer than half the largest frame, so that a second one is a standing queue.
fn packet(ecn: u8) -> Vec<u8> {
    let mut packet = frame(mac(1), mac(0), 0, 1514);
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14..34].copy_from_slice(&[0x45, ecn, 5, 220, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9]);
    packet
}

#[test]
fn packets_for_a_slow_guest_are_marked_or_dropped() {
    let unmarkable = congested(&packet(0));
    assert!(unmarkable.receive_drops.get(DropReason::RxCongested) > 50, "{unmarkable:?}");
    assert_eq!(unmarkable.marked_frames, 0);
    let marked = congested(&packet(2));
    assert!(marked.marked_frames > 50, "{marked:?}");
    assert_eq!(marked.receive_drops.get(DropReason::RxCongested), 0);
}

#[test]
fn a_guest_that_waits_for_its_cpu_is_no_congestion() {
    let mut link = Link::new(Turns::of(8), 1, 1);
    // It takes all waiting frames in the one millisecond of each 90 in which it runs.
    for millisecond in 0..10_000 {
        link.peers[0].send(&packet(2), Offload::default());
        if millisecond % 90 == 89 {
            drain(&mut link, 1);
        }
        link.settle();
        link.clock.advance(Nanos::from_millis(1));
    }
    let counters = link.counters(1);
    assert_eq!((counters.marked_frames, counters.receive_drops.total()), (0, 0));
}

/// One step in a random life.
#[derive(Clone, Debug)]
enum Step {
    Send { from: u32, to: u32, frames: u64, len: usize },
    Receive { at: u32 },
    Round,
    Wait { millis: u64 },
    Queue { guest: u32, bytes: u64 },
    Limit { guest: u32, rate: Option<u64> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..4u32, 0..4u32, 1..40u64, 60..2000usize)
            .prop_map(|(from, to, frames, len)| Step::Send { from, to, frames, len }),
        3 => (0..4u32).prop_map(|at| Step::Receive { at }),
        6 => Just(Step::Round),
        2 => (0..200u64).prop_map(|millis| Step::Wait { millis }),
        1 => (1..4u32, 1..100_000u64).prop_map(|(guest, bytes)| Step::Queue { guest, bytes }),
        1 => (1..4u32, proptest::option::of(100_000..1_000_000_000u64))
            .prop_map(|(guest, rate)| Step::Limit { guest, rate }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Every frame arrives whole, once and in its sender's order, or is counted; none is stuck.
    #[test]
    fn every_frame_for_guests_is_accounted_for(steps in steps(), room in 1..20usize, pool in 1..200_000u64) {
        let mut link = Link::new(Turns::of(8), 3, room);
        link.bridge.set_receive_pool(pool);
        let before: u64 = (0..4).map(|port| link.counters(port).received_frames).sum();
        let (mut serial, mut sent, mut arrived) = (0, 0, 0);
        let mut lens = std::collections::HashMap::new();
        let mut last = std::collections::HashMap::new();
        for step in steps {
            match step {
                Step::Send { from, to, .. } if from == to => {}
                Step::Send { from, to, frames, len } => {
                    for _ in 0..frames {
                        serial += 4;
                        let number = serial + u64::from(from);
                        lens.insert(number, len);
                        link.peers[from as usize].send(&frame(mac(to), mac(from), number, len), Offload::default());
                    }
                    sent += frames;
                }
                Step::Receive { at } => {
                    while let Some((frame, _)) = link.peers[at as usize].receive() {
                        let number = u64::from_be_bytes(frame[14..22].try_into().unwrap());
                        prop_assert_eq!(lens.get(&number), Some(&frame.len()));
                        let earlier = last.insert((number % 4, at), number);
                        prop_assert!(earlier.is_none_or(|earlier| earlier < number));
                        arrived += 1;
                    }
                }
                Step::Round => _ = link.round(),
                Step::Wait { millis } => link.clock.advance(Nanos::from_millis(millis)),
                Step::Queue { guest, bytes } => terms(&mut link, guest, |receive| receive.queue = bytes),
                Step::Limit { guest, rate } => terms(&mut link, guest, |receive| {
                    (receive.share.max_rate, receive.share.burst) = (rate, 3000);
                }),
            }
        }
        // Limits end, rings are drained, and queued frames are delivered or expire.
        (1..4).for_each(|guest| terms(&mut link, guest, |_| {}));
        for _ in 0..1000 {
            link.clock.advance(Nanos::from_millis(1));
            link.settle();
            arrived += (0..4).map(|at| link.received(at).len() as u64).sum::<u64>();
        }
        prop_assert!(link.peers.iter().all(|peer| peer.unsent() == 0));
        let counters: Vec<_> = (0..4).map(|port| link.counters(port)).collect();
        let received: u64 = counters.iter().map(|counters| counters.received_frames).sum();
        prop_assert_eq!(received - before, arrived);
        let dropped: u64 = counters.iter().map(|counters| counters.drops.total() + counters.receive_drops.total()).sum();
        prop_assert_eq!(sent, arrived + dropped);
        prop_assert!(!link.round().busy);
    }
}

/// Queues frames for guests 1 to `guests` in turn while a rate holds them back, and lifts it. Returns the frames that each guest
/// received when guest 1 had 6,000.
fn emptied(link: &mut Link, shares: &[Share]) -> Vec<f64> {
    let guests = shares.len() as u32;
    for guest in 1..=guests {
        terms(link, guest, |receive| {
            receive.share = Share { max_rate: Some(1), burst: 1, ..weight(1) };
            receive.queue = 1 << 30;
        });
    }
    for number in 0..30_000 {
        link.send(0, 1 + number as u32 % guests, number);
    }
    link.settle();
    for (guest, share) in (1..).zip(shares) {
        terms(link, guest, |receive| (receive.share, receive.queue) = (*share, 1 << 30));
    }
    while link.received(0).is_empty() && link.counters(1).received_frames < 6_000 {
        link.round();
    }
    (1..=guests).map(|guest| link.counters(guest).received_frames as f64).collect()
}

/// If frames wait for all guests, their weights decide who gets the worker's time.
#[test]
fn queues_are_emptied_by_weight() {
    let frames = emptied(&mut Link::new(Turns::of(8), 2, 1_000_000), &[weight(3), weight(1)]);
    assert!((frames[0] / frames[1] - 3.0).abs() < 0.3, "{frames:?}");
}

/// Guest 1 has a tenant of its own, and guests 2 and 3 share another.
#[test]
fn queues_are_emptied_by_the_weight_of_tenants() {
    let mut link = Link::new(Turns::of(8), 3, 1_000_000);
    link.bridge.set_receivers_scheduler(sched::build_for_tenants(None, Nanos::from_millis(100)), Nanos(0));
    let [red, blue] = [tenant("red", weight(2)), tenant("blue", weight(3))];
    for (guest, tenant) in [(1, &red), (2, &blue), (3, &blue)] {
        link.bridge.set_tenant(PortId(guest), Some(tenant), Nanos(0));
    }
    let frames = emptied(&mut link, &[weight(1), weight(2), weight(1)]);
    assert!((frames[1] / frames[0] - 1.0).abs() < 0.1, "{frames:?}");
    assert!((frames[1] / frames[2] - 2.0).abs() < 0.2, "{frames:?}");
}
