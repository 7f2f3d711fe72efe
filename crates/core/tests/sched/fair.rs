//! The `fair` scheduler against the fluid server, its guarantees and its limits.

use crate::sim::{Fluid, IDLE_TIMEOUT, LINK, Load, MOST, Sim, Step, cases, share, worst_excess, worst_shortfall};
use fairlane_core::PortId;
use fairlane_core::sched::{After, Cost, Next, SchedulerKind, Share, build};
use fairlane_core::time::{Nanos, SECOND};
use proptest::prelude::*;
use std::collections::VecDeque;

const ONE_SECOND: Nanos = Nanos(SECOND);

/// The bounds of `sched::fair::queue`, in units of the most expensive service.
const BEHIND: f64 = 3.25;
const AHEAD: f64 = 1.25;

/// The link time of the most expensive service, in nanoseconds.
fn most() -> f64 {
    (MOST * 8 * SECOND / LINK) as f64
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let size = prop_oneof![Just(64u64), Just(1_514), 60u64..1_514, Just(65_550), 1_514u64..65_550];
    prop::collection::vec(size, 1..6)
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1u32), Just(10_000), 1u32..10, 1u32..10_000]
}

proptest! {
    #![proptest_config(cases(64))]

    /// The lag of ports that are always backlogged never exceeds the bound.
    #[test]
    fn lag_is_bounded(guests in prop::collection::vec((weight(), sizes()), 2..40)) {
        let mut sim = Sim::fair();
        for (weight, sizes) in &guests {
            sim.add(share(*weight), Load::Endless(sizes.clone()));
        }
        let sum: f64 = guests.iter().map(|(weight, _)| f64::from(*weight)).sum();
        for _ in 0..3_000 {
            let Step::Served(_) = sim.step() else { panic!("all ports have frames") };
            let total: u64 = sim.guests.iter().map(|guest| guest.time).sum();
            for (guest, (weight, _)) in sim.guests.iter().zip(&guests) {
                let lag = (total as f64 * f64::from(*weight) / sum - guest.time as f64) / most();
                prop_assert!((-AHEAD..=BEHIND).contains(&lag), "lag {lag} of weight {weight}");
            }
        }
    }

    /// The same for ports that become idle and active, against a fluid server with the same frames. The fluid serves a
    /// frame at its arrival, the scheduler sees it after the current service: the bounds are one service wider.
    #[test]
    fn lag_is_bounded_as_ports_come_and_go(
        weights in prop::collection::vec(weight(), 2..8),
        bursts in prop::collection::vec((0u64..20_000_000, 0usize..8, 1usize..60, prop_oneof![Just(64u64), Just(1_514), Just(65_550)]), 10..120),
    ) {
        let mut sim = Sim { scheduler: build(SchedulerKind::Fair, Some(LINK), Nanos(0)), ..Sim::fair() };
        for weight in &weights {
            sim.add(share(*weight), Load::Finite(VecDeque::new()));
        }
        let mut fluid = Fluid::new(&weights);
        let mut seen = Nanos(0);
        let mut arrival = Nanos(0);
        let mut arrivals: VecDeque<_> = bursts.into_iter().map(|(gap, port, frames, size)| {
            arrival += Nanos(gap);
            (arrival, port % weights.len(), frames, size)
        }).collect();
        loop {
            while let Some((at, port, frames, size)) = arrivals.front().copied().filter(|arrival| arrival.0 <= sim.now) {
                fluid.pass(at.since(seen).0 as f64);
                seen = seen.max(at);
                fluid.backlog[port] += (frames as u64 * size * 8 * SECOND / LINK) as f64;
                sim.send(port, std::iter::repeat_n(size, frames));
                arrivals.pop_front();
            }
            match sim.step() {
                Step::Served(service) => {
                    // Frames that arrive during the service reach the fluid in the next round.
                    let until = arrivals.front().map_or(service.end, |arrival| arrival.0.min(service.end));
                    fluid.pass(until.since(seen).0 as f64);
                    let complete = until == service.end;
                    seen = seen.max(until);
                    if complete {
                        for (port, guest) in sim.guests.iter().enumerate() {
                            let lag = (fluid.served[port] - guest.time as f64) / most();
                            prop_assert!((-AHEAD - 1.0..=BEHIND + 1.0).contains(&lag), "lag {lag} of weight {}", weights[port]);
                        }
                    }
                }
                Step::Idle => match arrivals.front() {
                    Some(arrival) => sim.now = arrival.0,
                    None => break,
                },
                Step::Waits(_) => panic!("no port has a limit"),
            }
        }
    }

    /// Shares are exact from the moment weights are changed.
    #[test]
    fn weights_act_at_once(
        sizes in sizes(),
        changes in prop::collection::vec((weight(), weight(), weight()), 2..8),
        steps in 50usize..400,
    ) {
        let mut sim = Sim::fair();
        for _ in 0..3 {
            sim.add(share(1), Load::Endless(sizes.clone()));
        }
        for (a, b, c) in changes {
            let weights = [a, b, c];
            (0..3).for_each(|port| sim.configure(port, share(weights[port])));
            let before: Vec<u64> = sim.guests.iter().map(|guest| guest.time).collect();
            for _ in 0..steps {
                sim.step();
                let times: Vec<f64> = (0..3).map(|port| (sim.guests[port].time - before[port]) as f64).collect();
                let sum = f64::from(a) + f64::from(b) + f64::from(c);
                for port in 0..3 {
                    let due = times.iter().sum::<f64>() * f64::from(weights[port]) / sum;
                    // The lag at the change is kept, so a port may be off by both bounds together.
                    prop_assert!((due - times[port]).abs() <= (BEHIND + AHEAD) * most());
                }
            }
        }
    }

    /// A guarantee holds in every window, whatever the others' weights, if all guarantees fit the link.
    #[test]
    fn min_rate_holds_in_every_window(
        guarantees in prop::collection::vec((1u64..100, 1u32..20, sizes()), 1..6),
        floods in prop::collection::vec((weight(), sizes()), 1..6),
        fill in 10u64..=95,
    ) {
        let sum: u64 = guarantees.iter().map(|guarantee| guarantee.0).sum();
        let mut sim = Sim::fair();
        let mut rates = Vec::new();
        for (ratio, weight, sizes) in guarantees {
            rates.push(LINK * fill / 100 * ratio / sum);
            sim.add(Share { min_rate: rates[rates.len() - 1], ..share(weight) }, Load::Endless(sizes));
        }
        for (weight, sizes) in floods {
            sim.add(share(weight), Load::Endless(sizes));
        }
        let services = sim.run_until(Nanos(2 * SECOND));
        for (port, rate) in rates.into_iter().enumerate() {
            let short = worst_shortfall(&services, port, rate, Nanos(0), sim.now);
            // Two services of its own, and what `min_rate` allows during another port's service.
            let bound = 2.0 * MOST as f64 + rate as f64 / LINK as f64 * MOST as f64;
            prop_assert!(short <= bound, "port {port} with {rate} bit/s is {short} bytes short");
        }
    }

    /// No window has more than the burst, the rate and the overshoot of one frame.
    #[test]
    fn max_rate_is_never_exceeded(
        limits in prop::collection::vec((100_000u64..60_000_000, 1_514u64..300_000, sizes(), weight()), 1..6),
        flood in any::<bool>(),
    ) {
        let mut sim = Sim::fair();
        for (rate, burst, sizes, weight) in &limits {
            sim.add(Share { max_rate: Some(*rate), burst: *burst, ..share(*weight) }, Load::Endless(sizes.clone()));
        }
        if flood {
            sim.flood(share(1), 1_514);
        }
        let services = sim.run_until(Nanos(2 * SECOND));
        for (port, (rate, burst, sizes, _)) in limits.iter().enumerate() {
            let excess = worst_excess(&services, port, *rate);
            prop_assert!(excess <= (burst + sizes.iter().max().unwrap()) as f64, "{excess} over {burst}");
        }
        if flood {
            // A port's limit never leaves the link idle while another port has frames.
            prop_assert!(services.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}

/// A heavy port with a positive lag that joins a light one moves the mean far back. A port that joins later and has
/// sent nothing must not wait until the mean has caught up.
#[test]
fn a_port_that_joins_later_does_not_pay_for_anothers_lag() {
    let mut sim = Sim::fair();
    sim.flood(share(10), 1_514);
    let [one, other] = [(); 2].map(|()| sim.add(share(300), Load::Finite(VecDeque::new())));
    sim.step();
    for port in [one, other] {
        sim.send(port, std::iter::repeat_n(1_514, 10_000));
        sim.step();
    }
    for _ in 0..1_000 {
        sim.step();
        let ahead = (sim.guests[one].time as f64 - sim.guests[other].time as f64) / most();
        assert!(ahead.abs() <= BEHIND + AHEAD + 1.0, "of two equal ports one is {ahead} services ahead");
    }
}

#[test]
fn weights_are_obeyed_from_one_to_ten_thousand() {
    for heavy in [1, 2, 30, 1_000, 10_000] {
        let mut sim = Sim::new(SchedulerKind::Fair, 10_000_000_000);
        sim.flood(share(heavy), 1_514);
        sim.flood(share(1), 64);
        sim.run_until(Nanos(60 * SECOND));
        let ratio = sim.guests[0].time as f64 / sim.guests[1].time as f64;
        assert!((ratio / f64::from(heavy) - 1.0).abs() < 0.01, "{ratio} for {heavy}");
    }
}

#[test]
fn a_heavy_port_does_not_wait_for_ten_thousand_light_ones() {
    let mut sim = Sim::new(SchedulerKind::Fair, 10_000_000_000);
    for _ in 0..10_000 {
        sim.flood(share(1), 1_514);
    }
    let heavy = sim.flood(share(10_000), 1_514);
    let (mut others, mut longest) = (0, 0);
    for _ in 0..100_000 {
        let Step::Served(service) = sim.step() else { panic!("all ports have frames") };
        others = if service.port == heavy { 0 } else { others + 1 };
        longest = longest.max(others);
    }
    assert!(longest <= 30, "{longest} other services in a row, while half of the link is due to the heavy port");
    let total: u64 = sim.guests.iter().map(|guest| guest.bytes).sum();
    let measured = sim.guests[heavy].bytes as f64 / total as f64;
    assert!((measured - 0.5).abs() < 0.001, "{measured}");
}

#[test]
fn ten_thousand_ports_with_one_frame_do_not_all_pass_first() {
    let mut sim = Sim::new(SchedulerKind::Fair, 10_000_000_000);
    for _ in 0..10_000 {
        sim.add(share(1), Load::Finite(VecDeque::from([65_550])));
    }
    let heavy = sim.flood(share(10_000), 1_514);
    let most = (MOST * 8 / 10) as f64;
    while sim.guests[..heavy].iter().any(|guest| guest.frames == 0) {
        sim.step();
        let lag = sim.now.0 as f64 / 2.0 - sim.guests[heavy].time as f64;
        assert!(lag <= BEHIND * most, "{} services late", lag / most);
    }
}

#[test]
fn shares_follow_weights_in_each_second_after_a_change() {
    for size in [64, 1_514, 65_550] {
        let mut sim = Sim::fair();
        sim.flood(share(30), size);
        sim.flood(share(1), 1_514);
        for (a, b) in [(30, 1), (20, 10), (10, 20), (1, 30), (30, 1), (1, 30)] {
            sim.configure(0, share(a));
            sim.configure(1, share(b));
            let bytes = sim.run_for(ONE_SECOND);
            let measured = bytes[0] as f64 / bytes.iter().sum::<u64>() as f64;
            let due = f64::from(a) / f64::from(a + b);
            assert!((measured - due).abs() < 0.01, "{measured} instead of {due} with frames of {size}");
        }
    }
}

#[test]
fn an_idle_port_saves_no_share() {
    let mut sim = Sim::fair();
    sim.flood(share(1), 1_514);
    let idle = sim.add(Share { min_rate: 1_000_000, ..share(1) }, Load::Finite(VecDeque::from([1_514])));
    sim.run_until(Nanos(10 * SECOND));
    sim.send(idle, std::iter::repeat_n(1_514, 10_000));
    let bytes = sim.run_for(ONE_SECOND);
    let lead = bytes[idle] as f64 - bytes[0] as f64;
    assert!(lead <= 3.0 * MOST as f64, "{lead} bytes more after ten idle seconds");
}

#[test]
fn a_gap_within_the_idle_timeout_loses_no_share() {
    // A port whose ring runs empty after every few frames, and has new ones before the other port's service ends.
    let mut sim = Sim::fair();
    sim.flood(share(1), 1_514);
    let bursty = sim.add(share(1), Load::Finite(VecDeque::new()));
    while sim.now < Nanos(5 * SECOND) {
        sim.send(bursty, [1_514; 4]);
        sim.step();
    }
    let measured = sim.guests[bursty].bytes as f64 / (sim.guests[0].bytes + sim.guests[bursty].bytes) as f64;
    assert!((measured - 0.5).abs() < 0.01, "{measured}");
}

#[test]
fn tiny_frames_get_no_more_backend_time_than_their_weight() {
    let mut sim = Sim::new(SchedulerKind::Fair, 10_000_000_000);
    sim.frame_nanos = 500;
    let tiny = sim.flood(share(1), 64);
    let large = sim.flood(share(1), 65_550);
    sim.run_until(ONE_SECOND);
    let times = [sim.guests[tiny].time, sim.guests[large].time];
    let measured = times[0] as f64 / (times[0] + times[1]) as f64;
    assert!((measured - 0.5).abs() < 0.001, "{measured} of the time");
}

#[test]
fn a_service_above_the_expected_cost_is_charged_in_full() {
    // One port's services take 50 ms each, thirty times the expected maximum.
    let mut scheduler = build(SchedulerKind::Fair, None, IDLE_TIMEOUT);
    let mut times = [0u64; 2];
    for port in 0..2 {
        scheduler.configure(PortId(port), share(1), Nanos(0));
        scheduler.activate(PortId(port), Nanos(0));
    }
    let mut now = Nanos(0);
    for _ in 0..100_000 {
        let Next::Serve(port, _) = scheduler.next(now) else { panic!("both have frames") };
        let nanos = if port == PortId(0) { 50_000_000 } else { 10_000 };
        times[port.index()] += nanos;
        now += Nanos(nanos);
        scheduler.charge(port, Cost { bytes: 1_514, frames: 1, nanos, ..Cost::default() }, After::Backlogged, now);
    }
    assert!(times[0].abs_diff(times[1]) <= 2 * 50_000_000, "{times:?}");
}

#[test]
fn guaranteed_service_is_not_punished_later() {
    let mut sim = Sim::fair();
    let guaranteed = sim.flood(Share { min_rate: 50_000_000, ..share(1) }, 1_514);
    sim.flood(share(9), 1_514);
    let bytes = sim.run_for(ONE_SECOND);
    assert!((bytes[guaranteed] as f64 * 8.0 / 50e6 - 1.0).abs() < 0.02, "{bytes:?}");
    sim.configure(guaranteed, share(1));
    let bytes = sim.run_for(ONE_SECOND);
    let measured = bytes[guaranteed] as f64 / bytes.iter().sum::<u64>() as f64;
    assert!((measured - 0.1).abs() < 0.01, "{measured} of the link after the guarantee was removed");
}

/// What it was owed when the rate changed is still owed, and what it had got in advance is not given again.
#[test]
fn a_guarantee_that_changes_all_the_time_is_met_all_the_time() {
    let mut sim = Sim::fair();
    let guaranteed = sim.flood(Share { min_rate: 80_000_000, ..share(1) }, 1_514);
    sim.flood(share(9), 60_000);
    sim.run_for(ONE_SECOND);
    for rate in [75_000_000, 25_000_000] {
        let (mut bytes, start) = (0, sim.now);
        for step in 0..1_000 {
            let min_rate = if step % 2 == 0 { rate - 1_000_000 } else { rate + 1_000_000 };
            sim.configure(guaranteed, Share { min_rate, ..share(1) });
            bytes += sim.run_for(Nanos::from_millis(3))[guaranteed];
        }
        let measured = bytes as f64 * 8e9 / sim.now.since(start).0 as f64;
        assert!((measured / rate as f64 - 1.0).abs() < 0.02, "{measured} of {rate}");
    }
}

#[test]
fn a_guarantee_below_the_weighted_share_changes_nothing() {
    let mut sim = Sim::fair();
    let guaranteed = sim.flood(Share { min_rate: 10_000_000, ..share(1) }, 1_514);
    sim.flood(share(1), 1_514);
    let bytes = sim.run_for(Nanos(2 * SECOND));
    let measured = bytes[guaranteed] as f64 / bytes.iter().sum::<u64>() as f64;
    assert!((measured - 0.5).abs() < 0.01, "{measured}");
}

#[test]
fn guarantees_and_limits_are_met_within_two_percent_in_each_second() {
    let mut sim = Sim::fair();
    let guaranteed = sim.flood(Share { min_rate: 20_000_000, ..share(1) }, 1_514);
    let limit = sim.flood(Share { max_rate: Some(10_000_000), burst: 32_768, ..share(100) }, 1_514);
    for _ in 0..3 {
        sim.flood(share(100), 1_514);
    }
    sim.run_for(ONE_SECOND);
    for _ in 0..5 {
        let bytes = sim.run_for(ONE_SECOND);
        assert!((bytes[guaranteed] as f64 * 8.0 / 20e6 - 1.0).abs() < 0.02, "{bytes:?}");
        assert!((bytes[limit] as f64 * 8.0 / 10e6 - 1.0).abs() < 0.02, "{bytes:?}");
    }
}

#[test]
fn a_blocked_port_keeps_its_place_and_no_more() {
    let mut scheduler = build(SchedulerKind::Fair, Some(LINK), Nanos(0));
    for port in 0..2 {
        scheduler.configure(PortId(port), share(1), Nanos(0));
        scheduler.activate(PortId(port), Nanos(0));
    }
    let mut bytes = [0u64; 2];
    let mut now = Nanos(0);
    let mut blocked = false;
    for step in 0..4_000 {
        let Next::Serve(port, _) = scheduler.next(now) else { panic!("one has frames") };
        bytes[port.index()] += 1_514;
        now += Nanos(121_120);
        let after = if port == PortId(0) { After::Blocked } else { After::Backlogged };
        blocked |= after == After::Blocked;
        scheduler.charge(port, Cost { bytes: 1_514, uplink_bytes: 1_514, frames: 1, ..Cost::default() }, after, now);
        if blocked && !(2_000..3_000).contains(&step) {
            scheduler.activate(PortId(0), now);
            blocked = false;
        }
        if step == 2_000 {
            assert!(bytes[0].abs_diff(bytes[1]) <= 3 * MOST, "{bytes:?}");
            bytes = [0, 0];
        }
        if step == 3_000 {
            bytes = [0, 0];
        }
    }
    assert!(bytes[0].abs_diff(bytes[1]) <= 3 * MOST, "blocked for a thousand services, then {bytes:?}");
}

/// Fifty guests have no room for what comes for them, and meanwhile one guest is served alone. They return at once.
#[test]
fn those_that_return_together_are_owed_no_more_than_one_service() {
    let mut sim = Sim::fair();
    let own = sim.add(share(100), Load::Finite(VecDeque::new()));
    let others: Vec<usize> = (0..50).map(|_| sim.flood(share(100), 1_500)).collect();
    for _ in &others {
        let Next::Serve(port, _) = sim.scheduler.next(sim.now) else { panic!("they wait") };
        sim.scheduler.charge(port, Cost::default(), After::Blocked, sim.now);
    }
    for _ in 0..1000 {
        sim.send(own, [1_500]);
        assert!(matches!(sim.step(), Step::Served(service) if service.port == own));
    }
    others.iter().for_each(|other| sim.scheduler.activate(PortId(*other as u32), sim.now));
    sim.send(own, [1_500]);
    let began = sim.now;
    while !matches!(sim.step(), Step::Served(service) if service.port == own) {}
    let services = sim.now.since(began).0 as f64 / (MOST as f64 * 80.0);
    assert!(services < 2.0, "{services}");
}
