//! Tenants: fair sharing on two levels, against the hierarchical fluid.

use crate::sim::{IDLE_TIMEOUT, LINK, Load, MOST, Sim, Step, cases, share};
use fairlane_core::sched::{After, Cost, Next, Scheduler, Share, build_for_tenants};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, TenantId};
use proptest::prelude::*;
use std::collections::VecDeque;

/// The bounds of `sched::tenants`, in units of the most expensive service.
const BEHIND: f64 = 6.5;
const AHEAD: f64 = 2.5;

/// A link with tenants of these shares.
fn sim(tenants: &[Share]) -> Sim {
    let mut sim = Sim { scheduler: build_for_tenants(Some(LINK), IDLE_TIMEOUT), ..Sim::fair() };
    for (tenant, share) in tenants.iter().enumerate() {
        sim.scheduler.configure_tenant(TenantId(tenant as u32), *share, Nanos(0));
    }
    sim
}

/// Adds a port of a tenant.
fn add(sim: &mut Sim, tenant: Option<u32>, share: Share, load: Load) -> usize {
    let port = PortId(sim.guests.len() as u32);
    sim.scheduler.assign(port, tenant.map(TenantId));
    sim.add(share, load)
}

fn endless(size: u64) -> Load {
    Load::Endless(vec![size])
}

/// The share of each port in the next second.
fn shares(sim: &mut Sim) -> Vec<f64> {
    let bytes = sim.run_for(Nanos(SECOND));
    let sum: u64 = bytes.iter().sum();
    bytes.iter().map(|bytes| *bytes as f64 / sum as f64).collect()
}

fn assert_near(found: &[f64], due: &[f64]) {
    assert!(found.iter().zip(due).all(|(found, due)| (found - due).abs() < 0.01), "{found:?}, not {due:?}");
}

proptest! {
    #![proptest_config(cases(48))]

    /// No port's lag behind the hierarchical fluid, and no tenant's, exceeds the bound.
    #[test]
    fn lags_are_bounded(
        tenants in prop::collection::vec((1u32..1_000, prop::collection::vec((1u32..1_000, 64u64..65_550), 1..6)), 1..6),
    ) {
        let weights: Vec<Share> = tenants.iter().map(|(weight, _)| share(*weight)).collect();
        let mut sim = sim(&weights);
        let sum: f64 = tenants.iter().map(|(weight, _)| f64::from(*weight)).sum();
        let mut due = Vec::new();
        for (tenant, (weight, ports)) in tenants.iter().enumerate() {
            let all: f64 = ports.iter().map(|(weight, _)| f64::from(*weight)).sum();
            for (own, size) in ports {
                add(&mut sim, Some(tenant as u32), share(*own), endless(*size));
                due.push(f64::from(*weight) / sum * f64::from(*own) / all);
            }
        }
        let most = (MOST * 8 * SECOND / LINK) as f64;
        for _ in 0..2_000 {
            let Step::Served(_) = sim.step() else { panic!("all ports have frames") };
            let total: u64 = sim.guests.iter().map(|guest| guest.time).sum();
            for (guest, due) in sim.guests.iter().zip(&due) {
                let lag = (total as f64 * due - guest.time as f64) / most;
                prop_assert!((-AHEAD..=BEHIND).contains(&lag), "lag {lag} of a part of {due}");
            }
        }
    }

    /// Whatever ports send when, the link is never idle while one of them has frames, and every frame passes.
    #[test]
    fn work_is_conserved(bursts in prop::collection::vec((0usize..6, 1usize..40, 64u64..65_550), 1..60)) {
        let mut sim = sim(&[share(1), share(3)]);
        for port in 0..6u32 {
            add(&mut sim, (port < 5).then_some(port % 2), share(1 + port), Load::Finite(VecDeque::new()));
        }
        let mut sent = 0;
        for (port, frames, size) in bursts {
            sim.send(port, std::iter::repeat_n(size, frames));
            sent += frames as u64;
            for _ in 0..3 {
                let waiting = sent - sim.guests.iter().map(|guest| guest.frames).sum::<u64>();
                let step = sim.step();
                prop_assert_eq!(matches!(step, Step::Served(_)), waiting > 0, "{:?}", step);
            }
        }
        while let Step::Served(_) = sim.step() {}
        prop_assert_eq!(sim.guests.iter().map(|guest| guest.frames).sum::<u64>(), sent);
    }
}

#[test]
fn a_tenant_with_ten_floods_gets_no_more_than_one_with_one() {
    let mut sim = sim(&[share(1), share(1)]);
    for _ in 0..10 {
        add(&mut sim, Some(0), share(100), endless(1_514));
    }
    add(&mut sim, Some(1), share(100), endless(1_514));
    let found = shares(&mut sim);
    assert_near(&found, &[[0.05; 10].as_slice(), &[0.5]].concat());
}

#[test]
fn an_idle_guest_leaves_its_share_to_its_tenants_others() {
    let mut sim = sim(&[share(1), share(1)]);
    let idle = add(&mut sim, Some(0), share(900), Load::Finite(VecDeque::new()));
    add(&mut sim, Some(0), share(100), endless(1_514));
    add(&mut sim, Some(1), share(100), endless(1_514));
    // A guest without a tenant is a member of the link, as a tenant is.
    add(&mut sim, None, share(2), endless(1_514));
    assert_near(&shares(&mut sim), &[0.0, 0.25, 0.25, 0.5]);
    sim.send(idle, std::iter::repeat_n(1_514, 100_000));
    shares(&mut sim);
    assert_near(&shares(&mut sim), &[0.225, 0.025, 0.25, 0.5]);
}

#[test]
fn rates_of_tenants_and_of_their_guests_are_kept() {
    let limited = Share { max_rate: Some(20_000_000), burst: 65_536, ..share(1) };
    let guaranteed = Share { min_rate: 30_000_000, ..share(1) };
    let mut sim = sim(&[limited, guaranteed, share(1_000)]);
    add(&mut sim, Some(0), share(1), endless(1_514));
    add(&mut sim, Some(1), share(1), endless(1_514));
    add(&mut sim, Some(2), Share { max_rate: Some(10_000_000), burst: 65_536, ..share(1) }, endless(1_514));
    add(&mut sim, Some(2), share(1), endless(1_514));
    shares(&mut sim);
    // Of 100 Mbit/s: a tenant with little weight gets its min_rate, a guest no more than its max_rate, and its tenant's other the rest.
    let found = shares(&mut sim);
    assert!(found[0] < 0.01 && (found[1] - 0.3).abs() < 0.01 && (found[2] - 0.1).abs() < 0.01, "{found:?}");
}

#[test]
fn a_tenant_whose_guests_are_all_limited_wakes_up_by_itself() {
    let mut sim = sim(&[share(1)]);
    let limited = Share { max_rate: Some(10_000_000), burst: 65_536, ..share(1) };
    add(&mut sim, Some(0), limited, endless(1_514));
    add(&mut sim, Some(0), limited, endless(1_514));
    sim.run_for(Nanos(SECOND));
    let bytes = sim.run_for(Nanos(SECOND));
    assert!(bytes.iter().all(|bytes| (1_225_000..1_275_000).contains(bytes)), "{bytes:?}");
}

#[test]
fn a_port_removed_in_service_leaves_its_tenant_as_it_was() {
    let mut sim = sim(&[share(1)]);
    let gone = PortId(add(&mut sim, Some(0), share(1), endless(1_514)) as u32);
    assert!(matches!(sim.scheduler.next(Nanos(0)), Next::Serve(port, _) if port == gone));
    sim.scheduler.remove(gone);
    assert_eq!(sim.scheduler.next(Nanos(0)), Next::Idle);
    add(&mut sim, Some(0), share(1), endless(1_514));
    assert!(matches!(sim.step(), Step::Served(_)));
}

/// A service that waits for the uplink is charged after others.
#[test]
fn a_service_that_is_charged_late_delays_no_other_of_its_tenant_and_is_charged_in_full() {
    let mut sim = sim(&[share(1), share(1)]);
    let ports = [0, 0, 1].map(|tenant| PortId(add(&mut sim, Some(tenant), share(1), endless(1_514)) as u32));
    let scheduler = &mut sim.scheduler;
    let offered = |scheduler: &mut dyn Scheduler| match scheduler.next(Nanos(0)) {
        Next::Serve(port, _) => Some(port),
        _ => None,
    };
    let mut first: Vec<PortId> = (0..3).filter_map(|_| offered(&mut **scheduler)).collect();
    first.sort();
    assert_eq!(first, ports, "each port is offered while the others are in service");
    assert_eq!(offered(&mut **scheduler), None);
    // What the first tenant got counts although it was charged late: the second is next until it had as much.
    let cost = |bytes| Cost { bytes, uplink_bytes: bytes, ..Cost::default() };
    for (port, bytes) in [(ports[1], 80_000), (ports[2], 10_000), (ports[0], 80_000)] {
        scheduler.charge(port, cost(bytes), After::Backlogged, Nanos(0));
    }
    let mut got = [80_000, 80_000, 10_000];
    for decision in 0..100 {
        let port = offered(&mut **scheduler).expect("all have frames");
        assert!(decision >= 8 || port == ports[2], "{port:?} at {decision}");
        scheduler.charge(port, cost(10_000), After::Backlogged, Nanos(0));
        got[port.index()] += 10_000;
    }
    assert!(u64::abs_diff(got[0] + got[1], got[2]) <= MOST, "{got:?}");
}

/// While the uplink is full, every port is offered: the first has sent something and waits, all others return to their places.
#[test]
fn services_that_wait_change_no_share() {
    let guaranteed = Share { min_rate: LINK / 5, ..share(1) };
    let mut sim = sim(&[share(8), share(4), guaranteed]);
    for tenant in [Some(0), Some(1), Some(2)] {
        add(&mut sim, tenant, share(1), endless(1_514));
    }
    let (scheduler, mut now, mut got) = (&mut sim.scheduler, Nanos(0), [0u64; 3]);
    for _ in 0..20_000 {
        let mut offered = Vec::new();
        while let Next::Serve(port, _) = scheduler.next(now) {
            offered.push(port);
        }
        now += Nanos(15_140 * 8 * SECOND / LINK);
        offered[1..].iter().rev().for_each(|port| scheduler.defer(*port, now));
        got[offered[0].index()] += 15_140;
        let cost = Cost { bytes: 15_140, uplink_bytes: 15_140, ..Cost::default() };
        scheduler.charge(offered[0], cost, After::Backlogged, now);
    }
    let all: u64 = got.iter().sum();
    assert_near(&got.map(|got| got as f64 / all as f64), &[0.8 * 2.0 / 3.0, 0.8 / 3.0, 0.2]);
}
