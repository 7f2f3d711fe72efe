//! Tests of the two round robins: the weighted one and netback's.

use crate::sim::{IDLE_TIMEOUT, LINK, Load, Sim, Step, cases, share};
use fairlane_core::PortId;
use fairlane_core::sched::{After, Cost, Next, Scheduler, SchedulerKind, Share, build};
use fairlane_core::time::{Nanos, SECOND};
use proptest::prelude::*;
use std::collections::VecDeque;

const WRR: SchedulerKind = SchedulerKind::Wrr { prioritize: true };
const REFILL: Nanos = Nanos::from_millis(50);
const NETBACK: SchedulerKind = SchedulerKind::Netback { refill: REFILL };

/// Uses up the whole budget of the next port, which must be this one. Returns the budget's frames.
fn serve(scheduler: &mut dyn Scheduler, port: u32, after: After, now: Nanos) -> u32 {
    let Next::Serve(next, budget) = scheduler.next(now) else { panic!("port {port} is not served") };
    assert_eq!(next, PortId(port));
    serve_frames(scheduler, port, u64::from(budget.frames), after, now);
    budget.frames
}

fn serve_frames(scheduler: &mut dyn Scheduler, port: u32, frames: u64, after: After, now: Nanos) {
    let cost = Cost { bytes: frames * 100, uplink_bytes: frames * 100, frames, ..Cost::default() };
    scheduler.charge(PortId(port), cost, after, now);
}

fn with_ports(kind: SchedulerKind, weights: &[u32]) -> Box<dyn Scheduler> {
    let mut scheduler = build(kind, Some(LINK), IDLE_TIMEOUT);
    for (port, weight) in weights.iter().enumerate() {
        scheduler.configure(PortId(port as u32), share(*weight), Nanos(0));
        scheduler.activate(PortId(port as u32), Nanos(0));
    }
    scheduler
}

proptest! {
    #![proptest_config(cases(256))]

    /// In each round every port sends exactly as many frames as its weight.
    #[test]
    fn a_round_is_the_sum_of_weights(weights in prop::collection::vec(1u32..200, 1..20), rounds in 1u64..10) {
        let mut sim = Sim::new(WRR, LINK);
        weights.iter().for_each(|weight| { sim.flood(share(*weight), 700); });
        let round: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        while sim.guests.iter().map(|guest| guest.frames).sum::<u64>() < rounds * round {
            sim.step();
        }
        for (guest, weight) in sim.guests.iter().zip(&weights) {
            prop_assert_eq!(guest.frames, rounds * u64::from(*weight));
        }
    }

    /// Ports that were taken and put back, as they are while the uplink is full, are served as if they had not been taken, whoever
    /// comes back meanwhile.
    #[test]
    fn a_place_outlives_a_full_uplink(
        is_wrr in any::<bool>(),
        weights in prop::collection::vec(1u32..8, 2..8),
        steps in prop::collection::vec((1u64..400_000, 0usize..8, 0u32..8, 0usize..3), 1..200),
    ) {
        let kind = if is_wrr { WRR } else { NETBACK };
        let ([mut often, mut never], mut now) = ([(); 2].map(|()| with_ports(kind, &weights)), Nanos(0));
        for (later, taken, port, after) in steps {
            let take = |_| if let Next::Serve(port, _) = often.next(now) { Some(port) } else { None };
            let held: Vec<PortId> = (0..=taken).filter_map(take).collect();
            now += Nanos(later);
            for scheduler in [&mut often, &mut never] {
                scheduler.activate(PortId(port), now);
            }
            held.iter().rev().for_each(|port| often.defer(*port, now));
            let next = often.next(now);
            prop_assert_eq!(next, never.next(now));
            let Next::Serve(port, budget) = next else { continue };
            let frames = u64::from(budget.frames.min(taken as u32 + 1));
            let after = [After::Backlogged, After::Empty, After::Blocked][after];
            for scheduler in [&mut often, &mut never] {
                serve_frames(&mut **scheduler, port.0, frames, after, now);
            }
        }
    }

    /// Whatever its gaps, a port never gets more than its weight for each round of the others.
    #[test]
    fn gaps_gain_nothing(weight in 1u32..50, frames in prop::collection::vec((1usize..100, 0usize..4), 1..100)) {
        let mut sim = Sim::new(WRR, LINK);
        let steady = sim.flood(share(10), 700);
        let fickle = sim.add(share(weight), Load::Finite(VecDeque::new()));
        for (frames, gap) in frames {
            sim.send(fickle, vec![700; frames]);
            (0..gap).for_each(|_| { sim.step(); });
            let rounds = sim.guests[steady].frames / 10;
            prop_assert!(sim.guests[fickle].frames <= (rounds + 2) * u64::from(weight));
        }
    }
}

#[test]
fn a_turn_of_more_than_one_budget_is_continued() {
    let mut scheduler = with_ports(WRR, &[70, 1]);
    let budgets = [0, 0, 0].map(|port| serve(&mut *scheduler, port, After::Backlogged, Nanos(0)));
    assert_eq!(budgets, [32, 32, 6]);
    assert_eq!(serve(&mut *scheduler, 1, After::Backlogged, Nanos(0)), 1);
}

#[test]
fn without_prioritize_every_weight_is_one() {
    let mut scheduler = with_ports(SchedulerKind::Wrr { prioritize: false }, &[30, 5]);
    for port in [0, 1, 0, 1] {
        assert_eq!(serve(&mut *scheduler, port, After::Backlogged, Nanos(0)), 1);
    }
}

#[test]
fn a_place_and_a_turn_are_kept_for_the_idle_timeout() {
    for (away, kept) in [(IDLE_TIMEOUT, true), (IDLE_TIMEOUT + Nanos(1), false)] {
        let mut scheduler = with_ports(WRR, &[10, 1, 1]);
        scheduler.next(Nanos(0));
        serve_frames(&mut *scheduler, 0, 4, After::Empty, Nanos(0));
        serve(&mut *scheduler, 1, After::Backlogged, Nanos(0));
        scheduler.activate(PortId(0), away);
        if kept {
            assert_eq!(serve(&mut *scheduler, 0, After::Backlogged, away), 6, "the rest of its turn");
            serve(&mut *scheduler, 2, After::Backlogged, away);
        } else {
            serve(&mut *scheduler, 2, After::Backlogged, away);
            serve(&mut *scheduler, 1, After::Backlogged, away);
            assert_eq!(serve(&mut *scheduler, 0, After::Backlogged, away), 10, "a new turn at the end");
        }
    }
}

#[test]
fn a_blocked_port_keeps_its_place_and_turn() {
    let late = Nanos(3600 * SECOND);
    let mut scheduler = with_ports(WRR, &[10, 1]);
    scheduler.next(Nanos(0));
    serve_frames(&mut *scheduler, 0, 4, After::Blocked, Nanos(0));
    serve(&mut *scheduler, 1, After::Backlogged, Nanos(0));
    scheduler.activate(PortId(0), late);
    assert_eq!(serve(&mut *scheduler, 0, After::Backlogged, late), 6);
}

/// Its tokens come while the port whose turn it is waits for the uplink.
#[test]
fn a_port_that_comes_back_is_served_before_the_turn_that_it_interrupts() {
    let mut scheduler = with_ports(WRR, &[50, 50]);
    scheduler.configure(PortId(0), Share { max_rate: Some(8_000_000), burst: 1000, ..share(50) }, Nanos(0));
    assert_eq!(next(&mut *scheduler, Nanos(0)), 0);
    serve_frames(&mut *scheduler, 0, 10, After::Backlogged, Nanos(0));
    assert_eq!(next(&mut *scheduler, Nanos(0)), 1, "the first has no tokens");
    let later = Nanos::from_millis(10);
    assert_eq!(next(&mut *scheduler, later), 0);
    for port in [0, 1] {
        scheduler.defer(PortId(port), later);
    }
    assert_eq!(next(&mut *scheduler, later), 0, "it has not lost its place");
}

/// The next port.
fn next(scheduler: &mut dyn Scheduler, now: Nanos) -> u32 {
    let Next::Serve(port, _) = scheduler.next(now) else { panic!("nobody is served") };
    port.0
}

#[test]
fn a_new_weight_applies_at_once() {
    let mut scheduler = with_ports(WRR, &[30, 30]);
    scheduler.next(Nanos(0));
    serve_frames(&mut *scheduler, 0, 10, After::Backlogged, Nanos(0));
    scheduler.configure(PortId(0), share(12), Nanos(0));
    assert_eq!(serve(&mut *scheduler, 0, After::Backlogged, Nanos(0)), 2, "ten of twelve are sent");
    scheduler.configure(PortId(1), share(1), Nanos(0));
    assert_eq!(serve(&mut *scheduler, 1, After::Backlogged, Nanos(0)), 1, "its turn had not begun");
}

#[test]
fn netback_polls_sixty_four_frames_and_ignores_weights() {
    let mut scheduler = with_ports(NETBACK, &[1, 10_000]);
    for port in [0, 1, 0, 1] {
        assert_eq!(serve(&mut *scheduler, port, After::Backlogged, Nanos(0)), 64);
    }
}

#[test]
fn netback_favours_larger_frames() {
    // A turn is 64 frames, whatever their size.
    let mut sim = Sim::new(NETBACK, LINK);
    sim.flood(share(1), 1_500);
    sim.flood(share(1), 150);
    sim.run_until(Nanos(SECOND));
    let ratio = sim.guests[0].bytes as f64 / sim.guests[1].bytes as f64;
    assert!((ratio - 10.0).abs() < 0.5, "{ratio}");
}

#[test]
fn netback_adds_credit_once_per_interval() {
    let mut sim = Sim::new(NETBACK, LINK);
    sim.flood(Share { max_rate: Some(20_000_000), ..share(1) }, 1_514);
    sim.run_until(Nanos(SECOND));
    let bytes = sim.run_for(Nanos(SECOND));
    assert!((bytes[0] as f64 * 8.0 / 20e6 - 1.0).abs() < 0.05, "{bytes:?}");
    sim.run_for(Nanos(REFILL.0 / 2));
    let Step::Waits(at) = sim.step() else { panic!("the port has used up its credit") };
    assert_eq!(at.0 % REFILL.0, 0, "until the interval is over");
}

#[test]
fn netback_saves_one_interval_or_128_kib() {
    for (rate, most) in [(1_000_000, 131_072), (80_000_000, 500_000)] {
        let mut scheduler = build(NETBACK, Some(LINK), IDLE_TIMEOUT);
        let port = PortId(0);
        scheduler.configure(port, Share { max_rate: Some(rate), ..share(1) }, Nanos(0));
        let mut bytes = 0;
        for interval in 1..100 {
            let now = Nanos(interval * REFILL.0);
            scheduler.activate(port, now);
            let Next::Serve(_, budget) = scheduler.next(now) else { panic!("it has credit") };
            bytes = budget.bytes;
            scheduler.charge(port, Cost::default(), After::Empty, now);
        }
        assert_eq!(bytes, most);
    }
}
