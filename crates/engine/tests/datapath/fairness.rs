//! Shares of a paced uplink in virtual time, with the real schedulers.

use crate::support::{Link, frame, mac, tenant, weight};
use fairlane_core::sched::{self, SchedulerKind, Share};
use fairlane_core::switch::Config;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, packet::Offload};
use fairlane_engine::clock::Clock;
use fairlane_policy::Tenant;
use fairlane_port::drain::Drain;
use fairlane_port::memory;
use fairlane_port::paced::Paced;

const RATE: u64 = 100_000_000;

/// Guests that always have frames of one size each to send into an uplink of [`RATE`].
struct Flood {
    link: Link,
    sizes: Vec<usize>,
}

impl Flood {
    fn new(kind: SchedulerKind, guests: &[(Share, usize)]) -> Flood {
        let scheduler = sched::build(kind, Some(RATE), Nanos::from_millis(100));
        let uplink = Box::new(Paced::new(Drain::new(), RATE, 32 << 10, true));
        let (_, nobody) = memory::pair(0);
        // Isolated, so that frames for unknown addresses go to the uplink only.
        let mut link = Link::with_uplink(Config { isolate: true, seed: 1 }, scheduler, uplink, nobody);
        for (index, (share, _)) in guests.iter().enumerate() {
            link.add(index as u32 + 1, *share, 10);
        }
        Flood { link, sizes: guests.iter().map(|(_, size)| *size).collect() }
    }

    /// The rate in bits a second that each guest gets in the next second.
    fn second(&mut self) -> Vec<f64> {
        let end = self.link.clock.now() + Nanos(SECOND);
        let before = self.sent();
        while self.link.clock.now() < end {
            for (index, size) in self.sizes.iter().enumerate() {
                let (number, peer) = (index as u32 + 1, &self.link.peers[index + 1]);
                while peer.unsent() < 256 {
                    peer.send(&frame(mac(0), mac(number), 0, *size), Offload::default());
                }
            }
            let round = self.link.round();
            if round.frames == 0 {
                let now = self.link.clock.now();
                self.link.clock.advance(round.next.since(now).max(Nanos(1)).min(Nanos::from_millis(1)));
            }
        }
        before.iter().zip(self.sent()).map(|(before, after)| (after - before) as f64 * 8.0).collect()
    }

    fn sent(&mut self) -> Vec<u64> {
        (1..=self.sizes.len() as u32).map(|guest| self.link.counters(guest).sent_bytes).collect()
    }

    fn drops(&mut self) -> u64 {
        (1..=self.sizes.len() as u32).map(|guest| self.link.counters(guest).drops.total()).sum()
    }
}

/// Each guest's share.
fn parts(rates: &[f64]) -> Vec<f64> {
    let total: f64 = rates.iter().sum();
    assert!((total - RATE as f64).abs() < 0.01 * RATE as f64, "the link is not full: {total}");
    rates.iter().map(|rate| rate / total).collect()
}

fn assert_near(found: &[f64], expected: &[f64], within: f64) {
    let far = found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() > within);
    assert!(!far, "{found:?} is not {expected:?}");
}

#[test]
fn shares_follow_weights_for_all_frame_sizes() {
    let guests = [(weight(30), 60), (weight(1), 1514), (weight(9), 900)];
    let mut flood = Flood::new(SchedulerKind::Fair, &guests);
    for _ in 0..3 {
        let rates = flood.second();
        assert_near(&parts(&rates), &[0.75, 0.025, 0.225], 0.01);
    }
    assert_eq!(flood.drops(), 0);
}

#[test]
fn a_changed_weight_is_exact_from_the_next_second_and_drops_nothing() {
    for kind in [SchedulerKind::Fair, SchedulerKind::Wrr { prioritize: true }] {
        let mut flood = Flood::new(kind, &[(weight(30), 1514), (weight(1), 1514)]);
        for second in 0..4 {
            let (first, last) = if second % 2 == 0 { (30, 1) } else { (1, 30) };
            let now = flood.link.clock.now();
            flood.link.bridge.set_share(PortId(1), weight(first), now);
            flood.link.bridge.set_share(PortId(2), weight(last), now);
            let rates = flood.second();
            let expected = [f64::from(first) / 31.0, f64::from(last) / 31.0];
            assert_near(&parts(&rates), &expected, 0.01);
        }
        assert_eq!(flood.drops(), 0);
    }
}

#[test]
fn min_rate_and_max_rate_are_kept() {
    let guaranteed = Share { min_rate: 20_000_000, ..weight(1) };
    let limited = Share { max_rate: Some(10_000_000), burst: 64 << 10, ..weight(100) };
    let mut flood = Flood::new(SchedulerKind::Fair, &[(guaranteed, 1514), (limited, 1514), (weight(100), 1514)]);
    // In the first second, the limited guest may send its burst in addition.
    flood.second();
    for _ in 0..3 {
        let rates = flood.second();
        assert!(rates[0] > 0.98 * 20e6 && rates[0] < 1.1 * 20e6, "{rates:?}");
        assert!((rates[1] - 10e6).abs() < 0.02 * 10e6, "{rates:?}");
        parts(&rates);
    }
}

#[test]
fn a_scheduler_is_swapped_under_load_without_a_drop() {
    let mut flood =
        Flood::new(SchedulerKind::Netback { refill: Nanos::from_millis(50) }, &[(weight(3), 1514), (weight(1), 1514)]);
    assert_near(&parts(&flood.second()), &[0.5, 0.5], 0.01);
    let now = flood.link.clock.now();
    flood.link.bridge.set_scheduler(sched::build(SchedulerKind::Fair, Some(RATE), Nanos::from_millis(100)), now);
    assert_near(&parts(&flood.second()), &[0.75, 0.25], 0.01);
    assert_eq!(flood.drops(), 0);
    let now = flood.link.clock.now();
    let (_, vifs) = flood.link.bridge.snapshot(now);
    assert!((vifs[0].share - 0.75).abs() < 0.01, "{}", vifs[0].share);
    assert!(vifs[0].waiting.buckets.iter().sum::<u64>() > 0);
}

#[test]
fn a_flooded_guest_is_shared_by_weight() {
    let weights = [30, 9, 1];
    for (kind, room) in
        [(SchedulerKind::Fair, 1), (SchedulerKind::Fair, 20), (SchedulerKind::Wrr { prioritize: true }, 7)]
    {
        let mut link = Link::new(sched::build(kind, None, Nanos::from_millis(100)), 0, 100);
        for (guest, weight_of) in (1..).zip(weights) {
            link.add(guest, weight(weight_of), 100);
        }
        // Guest 4 is not last: otherwise its room would always be taken by guest 5.
        link.add(4, weight(1), room);
        link.add(5, weight(1), 100);
        link.introduce();
        let mut taken = 0;
        let sent = |link: &mut Link| [1, 2, 3].map(|guest| link.counters(guest).sent_frames);
        let mut before = sent(&mut link);
        let mut offered = before;
        for step in 0..100_000 {
            // With less than a burst in each ring: a sender with a longer ring does not wait, as it may have frames for others.
            for (guest, taken) in (1..).zip(sent(&mut link)) {
                while offered[guest - 1] - taken < 24 {
                    link.peers[guest].send(&frame(mac(4), mac(guest as u32), 0, 1514), Offload::default());
                    offered[guest - 1] += 1;
                }
            }
            link.send(5, 0, step);
            link.round();
            assert!(link.peers[5].unsent() < 31, "who sends elsewhere is held up");
            link.received(0);
            taken += link.received(4).len();
            if step == 10_000 {
                (taken, before) = (0, sent(&mut link));
            }
            link.clock.advance(Nanos(1_000));
        }
        let frames: Vec<u64> = sent(&mut link).iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(frames.iter().sum::<u64>().abs_diff(taken as u64) <= 100 + 32, "{frames:?}, {taken}");
        let parts: Vec<f64> = frames.iter().map(|frames| *frames as f64 / taken as f64).collect();
        assert_near(&parts, &[0.75, 0.225, 0.025], 0.01);
        assert_eq!((1..=5).map(|guest| link.counters(guest).drops.total()).sum::<u64>(), 0);
    }
}

/// Otherwise a worker that sleeps at once, as on a single CPU, would not wake up.
#[test]
fn a_round_that_finds_the_link_full_returns_until_when() {
    let mut flood = Flood::new(SchedulerKind::Fair, &[(weight(1), 1500)]);
    let send = |flood: &Flood| flood.link.peers[1].send(&frame(mac(0), mac(1), 0, 1500), Offload::default());
    // The frames that the link's queue has room for, and one more.
    (0..21).for_each(|_| send(&flood));
    flood.link.settle();
    assert_eq!(flood.sent(), [21 * 1500]);
    send(&flood);
    let round = flood.link.round();
    assert_eq!((round.frames, round.busy), (0, false));
    assert!(round.next < flood.link.clock.now() + Nanos::from_millis(3), "{round:?}");
    flood.link.clock.advance(round.next.since(flood.link.clock.now()));
    assert_eq!(flood.link.round().frames, 1);
}

/// Guests 1 and 2 come to belong to a tenant, and guest 3 to another, while all flood the link.
#[test]
fn tenants_share_the_link_and_their_guests_what_they_get() {
    let mut flood = Flood::new(SchedulerKind::Fair, &[(weight(3), 1514), (weight(1), 1514), (weight(4), 64)]);
    assert_near(&parts(&flood.second()), &[0.375, 0.125, 0.5], 0.01);
    let now = flood.link.clock.now();
    let [red, blue] = [tenant("red", weight(1)), tenant("blue", weight(4))];
    flood.link.bridge.set_scheduler(sched::build_for_tenants(Some(RATE), Nanos::from_millis(100)), now);
    for (port, tenant) in [(1, &red), (2, &red), (3, &blue)] {
        flood.link.bridge.set_tenant(PortId(port), Some(tenant), now);
    }
    flood.second();
    assert_near(&parts(&flood.second()), &[0.15, 0.05, 0.8], 0.01);
    let now = flood.link.clock.now();
    flood.link.bridge.set_tenant(PortId(2), Some(&blue), now);
    flood.second();
    assert_near(&parts(&flood.second()), &[0.2, 0.16, 0.64], 0.01);
    // Also if a frame of it waits for the uplink meanwhile.
    for round in 0..1000 {
        let now = flood.link.clock.now();
        flood.link.bridge.set_tenant(PortId(2), Some([&red, &blue][round % 2]), now);
        flood.link.round();
        flood.link.clock.advance(Nanos(50_000));
    }
    flood.second();
    assert_near(&parts(&flood.second()), &[0.2, 0.16, 0.64], 0.01);
    // A new scheduler knows the tenants, and a tenant's share changes while frames pass.
    let now = flood.link.clock.now();
    flood.link.bridge.set_scheduler(sched::build_for_tenants(Some(RATE), Nanos::from_millis(100)), now);
    flood.link.bridge.set_tenant_shares(&tenant("blue", weight(1)), now);
    flood.second();
    assert_near(&parts(&flood.second()), &[0.5, 0.1, 0.4], 0.01);
    // What is guaranteed on one link goes before weights there, and is nothing on others.
    for (link, shares) in [("lan", [0.7, 0.06, 0.24]), ("dmz", [0.5, 0.1, 0.4])] {
        let red = Tenant { min_rate_on: [(link.to_owned(), RATE / 10 * 7)].into(), ..red.clone() };
        flood.link.bridge.set_tenant_shares(&red, flood.link.clock.now());
        flood.second();
        assert_near(&parts(&flood.second()), &shares, 0.01);
    }
    // A guest without a tenant is a member of the link.
    let now = flood.link.clock.now();
    flood.link.bridge.set_tenant(PortId(3), None, now);
    flood.second();
    assert_near(&parts(&flood.second()), &[1.0 / 6.0, 1.0 / 6.0, 4.0 / 6.0], 0.01);
    assert_eq!(flood.drops(), 0);
}

/// The scheduler of such a link does not know tenants, but it must not forget a port either.
#[test]
fn a_tenant_on_a_link_of_a_round_robin_changes_nothing() {
    let kind = SchedulerKind::Wrr { prioritize: true };
    let mut flood = Flood::new(kind, &[(weight(3), 1514), (weight(1), 1514)]);
    for round in 0..1000 {
        let now = flood.link.clock.now();
        flood.link.bridge.set_tenant(PortId(2), Some(&tenant("red", weight(1))).filter(|_| round % 2 == 0), now);
        flood.link.round();
        flood.link.clock.advance(Nanos(50_000));
    }
    flood.second();
    assert_near(&parts(&flood.second()), &[0.75, 0.25], 0.01);
}

#[test]
fn a_guest_that_waits_for_the_uplink_delays_no_other_of_its_tenant() {
    let scheduler = sched::build_for_tenants(Some(RATE), Nanos::from_millis(100));
    let mut link = Link::new(scheduler, 3, 8);
    for guest in 1..=3 {
        link.bridge.set_tenant(PortId(guest), Some(&tenant("red", weight(1))), link.clock.now());
    }
    for number in 0..20 {
        link.send(1, 0, number);
    }
    link.settle();
    for number in 0..5 {
        link.send(2, 3, number);
    }
    link.settle();
    assert_eq!(link.received(3), [0, 1, 2, 3, 4]);
    // And nothing of the first is lost.
    let mut outside = Vec::new();
    for _ in 0..20 {
        outside.extend(link.received(0));
        link.settle();
    }
    assert!(outside.into_iter().eq(0..20));
}
