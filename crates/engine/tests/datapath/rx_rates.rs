//! Rates and shares of what guests receive, in virtual time.

use crate::receive::terms;
use crate::support::{Link, frame, mac, tenant, weight};
use fairlane_core::PortId;
use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};
use fairlane_core::sched::{self, SchedulerKind, Share};
use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;

/// Bytes of a frame.
const LEN: usize = 1_000;

/// A rate of ten frames per millisecond, in bits a second.
const RATE: u64 = 8 * LEN as u64 * 10 * 1_000;

fn link(guests: u32) -> Link {
    Link::new(sched::build(SchedulerKind::Fair, None, Nanos::from_millis(100)), guests, 1000)
}

/// Lets guests receive at this rate together.
fn limit(link: &mut Link, rate: u64) {
    link.bridge
        .set_receivers_scheduler(sched::build(SchedulerKind::Fair, Some(rate), Nanos::from_millis(100)), Nanos(0));
    link.bridge.set_rx_rate(Some(rate), Nanos(0));
}

/// Guests take everything for a second in which the uplink has this many frames per millisecond for each of them. Returns the frames
/// that each received.
fn second(link: &mut Link, each: &[u64]) -> Vec<f64> {
    let guests = 1..=each.len() as u32;
    let before: Vec<u64> = guests.clone().map(|guest| link.counters(guest).received_frames).collect();
    for _ in 0..1000 {
        for (guest, frames) in guests.clone().zip(each) {
            for number in 0..*frames {
                link.peers[0].send(&frame(mac(guest), mac(0), number, LEN), Offload::default());
            }
        }
        for _ in 0..4 {
            link.settle();
            link.clock.advance(Nanos(250_000));
        }
        link.settle();
        guests.clone().for_each(|guest| _ = link.received(guest));
    }
    guests.zip(before).map(|(guest, before)| (link.counters(guest).received_frames - before) as f64).collect()
}

/// The parts of the link's rate that guests received, in each of some seconds, are these within 0.01.
fn assert_parts(link: &mut Link, each: &[u64], due: &[f64]) {
    second(link, each);
    for _ in 0..2 {
        let found: Vec<f64> = second(link, each).iter().map(|frames| frames / 10_000.0).collect();
        assert!(found.iter().zip(due).all(|(found, due)| (found - due).abs() <= 0.01), "{found:?}, not {due:?}");
    }
}

#[test]
fn rx_rate_is_shared_by_weight() {
    for weights in [[30, 1], [1, 1], [1, 30]] {
        let mut link = link(2);
        limit(&mut link, RATE);
        for (guest, of) in (1..).zip(weights) {
            terms(&mut link, guest, |receive| receive.share = weight(of));
        }
        let sum = f64::from(weights[0] + weights[1]);
        assert_parts(&mut link, &[15, 15], &weights.map(|weight| f64::from(weight) / sum));
        // What one does not use is the other's.
        assert_parts(&mut link, &[0, 15], &[0.0, 1.0]);
    }
}

#[test]
fn guarantees_and_limits_count_within_rx_rate() {
    let mut link = link(3);
    limit(&mut link, RATE);
    terms(&mut link, 1, |receive| receive.share = Share { min_rate: RATE / 2, ..weight(1) });
    terms(&mut link, 2, |receive| receive.share = Share { max_rate: Some(RATE / 10), burst: 64 << 10, ..weight(100) });
    terms(&mut link, 3, |receive| receive.share = weight(100));
    assert_parts(&mut link, &[12, 12, 12], &[0.5, 0.1, 0.4]);
}

/// Below the rate nothing waits, and nothing is dropped.
#[test]
fn rx_rate_delays_nothing_below_it() {
    let mut link = link(2);
    limit(&mut link, RATE);
    assert_eq!(second(&mut link, &[4, 5]), [4_000.0, 5_000.0]);
    for guest in 1..=2 {
        let state = link.bridge.snapshot(Nanos(0)).1[guest - 1].receive.clone();
        let waits: u64 = state.waiting.buckets[1..].iter().sum();
        assert_eq!((waits, state.marked_frames, link.counters(guest as u32).receive_drops.total()), (0, 0, 0));
    }
}

/// Frames of guests use nothing of the rate, and do not wait for it, except behind the uplink's for the same guest.
#[test]
fn frames_between_guests_do_not_wait_for_rx_rate() {
    let mut link = link(3);
    limit(&mut link, RATE);
    let flood: Vec<_> = (0..3_000).map(|number| frame(mac(1), mac(0), number, LEN)).collect();
    flood.iter().for_each(|frame| link.peers[0].send(frame, Offload::default()));
    link.settle();
    assert!(link.bridge.queued(PortId(1)) > 1_000);
    (0..500).for_each(|number| link.send(2, 3, number));
    link.settle();
    assert_eq!(link.received(3), (0..500).collect::<Vec<_>>());
}

/// A rate that is set each millisecond allows no more than one that stays.
#[test]
fn a_changed_rx_rate_allows_no_second_burst() {
    let received = |changes: bool| {
        let mut link = link(1);
        limit(&mut link, RATE);
        for millisecond in 0..200 {
            if changes {
                link.bridge.set_rx_rate(Some(RATE + millisecond % 2), link.clock.now());
            }
            (0..30).for_each(|number| link.peers[0].send(&frame(mac(1), mac(0), number, LEN), Offload::default()));
            link.settle();
            link.received(1);
            link.clock.advance(Nanos::from_millis(1));
        }
        link.counters(1).received_frames
    };
    let (changed, kept) = (received(true), received(false));
    assert!(changed.abs_diff(kept) <= 1, "{changed} frames; with the same rate all the time {kept}");
}

#[test]
fn tenants_share_rx_rate() {
    let mut link = link(4);
    link.bridge.set_receivers_scheduler(sched::build_for_tenants(Some(RATE), Nanos::from_millis(100)), Nanos(0));
    link.bridge.set_rx_rate(Some(RATE), Nanos(0));
    let [red, blue] = [tenant("red", weight(1)), tenant("blue", weight(3))];
    for (guest, tenant) in [(1, &red), (2, &red), (3, &red), (4, &blue)] {
        link.bridge.set_tenant(PortId(guest), Some(tenant), Nanos(0));
    }
    let sixth = 0.25 / 3.0;
    assert_parts(&mut link, &[12; 4], &[sixth, sixth, sixth, 0.75]);
    // An idle guest leaves its part to its tenant's others.
    assert_parts(&mut link, &[0, 12, 12, 12], &[0.0, 0.125, 0.125, 0.75]);
}

#[test]
fn rx_max_rate_limits_what_a_guest_receives() {
    let mut link = link(2);
    terms(&mut link, 1, |receive| receive.share = Share { max_rate: Some(RATE), burst: 64 << 10, ..weight(1) });
    assert_parts(&mut link, &[30, 30], &[1.0, 3.0]);
}

/// The frames of guest 2 go through the queue of guest 1, which has a rate, and find it empty each time.
#[test]
fn a_sender_does_not_wait_for_a_queue_that_was_its_own_and_is_empty() {
    let mut link = link(2);
    terms(&mut link, 1, |receive| receive.share = Share { max_rate: Some(RATE), burst: 64 << 10, ..weight(1) });
    for number in 0..10 {
        link.send(2, 1, number);
        for _ in 0..4 {
            link.round();
        }
        assert_eq!(link.received(1), [number]);
        link.clock.advance(Nanos::from_millis(1));
    }
}

#[test]
fn a_tenants_rx_max_rate_limits_what_its_guests_receive_together() {
    let mut link = link(3);
    link.bridge.set_receivers_scheduler(sched::build_for_tenants(None, Nanos::from_millis(100)), Nanos(0));
    let limited = tenant("red", Share { max_rate: Some(RATE), burst: 64 << 10, ..weight(1) });
    for guest in 1..=2 {
        link.bridge.set_tenant(PortId(guest), Some(&limited), Nanos(0));
    }
    assert_parts(&mut link, &[30, 30, 30], &[0.5, 0.5, 3.0]);
    link.bridge.set_tenant_shares(&tenant("red", weight(1)), Nanos(0));
    assert_parts(&mut link, &[30, 30, 30], &[3.0, 3.0, 3.0]);
}

#[test]
fn rx_max_frames_limits_frames_whatever_their_size() {
    let mut link = link(2);
    terms(&mut link, 1, |receive| {
        receive.share = Share { max_frames: Some(2_000), frame_burst: 10, ..weight(1) };
        receive.queue = 1 << 16;
    });
    assert_parts(&mut link, &[30, 30], &[0.2, 3.0]);
}

/// A guest with `max_frames` sends large frames as if they were cut into segments already.
#[test]
fn large_frames_count_as_their_segments() {
    let mut link = link(1);
    link.bridge.set_share(PortId(1), Share { max_frames: Some(5_000), frame_burst: 10, ..weight(1) }, Nanos(0));
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1_000, header: 54 };
    let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
    let large = frame(mac(0), mac(1), 0, 10_054);
    (0..2_000).for_each(|_| link.peers[1].send(&large, offload));
    for _ in 0..10_000 {
        link.settle();
        link.clock.advance(Nanos(100_000));
    }
    let sent = link.counters(1).sent_frames;
    assert!(sent.abs_diff(500) <= 10, "{sent}");
}
