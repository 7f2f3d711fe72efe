//! What each port gets of a link in the long run while rings run empty and fill again: by weights, guarantees, limits and wants.

use crate::due::{Demand, divide_among};
use crate::sim::{IDLE_TIMEOUT, LINK, Load, Sim, Step, cases};
use fairlane_core::sched::{Share, build_for_tenants};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_core::{PortId, TenantId};
use proptest::prelude::*;
use std::collections::VecDeque;

/// How far a port may be from what it is due, as a part of the link.
const TOLERANCE: f64 = 0.01;

/// A port's share, what its guest wants as a part of the link, and the bytes of its frames, which come at a constant rate.
#[derive(Clone, Debug)]
struct Guest {
    share: Share,
    wants: f64,
    size: u64,
}

fn part(rate: u64) -> f64 {
    rate as f64 / LINK as f64
}

fn rate(part: f64) -> u64 {
    (part * LINK as f64) as u64
}

/// What those with a share demand, who want so much together.
fn demand(share: &Share, wants: f64) -> Demand {
    let most = share.max_rate.map_or(wants, |limit| wants.min(part(limit)));
    Demand { least: part(share.min_rate), ..Demand::of(share.weight, most) }
}

/// The part of the link that each guest gets from now on for so long.
fn measured(sim: &mut Sim, guests: &[Guest], time: Nanos) -> Vec<f64> {
    let (began, before) = (sim.now, sim.guests.iter().map(|guest| guest.bytes).collect::<Vec<u64>>());
    let mut sent = vec![0u64; guests.len()];
    while sim.now < began + time {
        let mut next = began + time;
        for (port, guest) in guests.iter().enumerate() {
            let interval = guest.size as f64 * 8.0 / (guest.wants * LINK as f64) * SECOND as f64;
            let due = (sim.now.since(began).0 as f64 / interval) as u64;
            if due > sent[port] {
                sim.send(port, std::iter::repeat_n(guest.size, (due - sent[port]) as usize));
                sent[port] = due;
            }
            next = next.min(began + Nanos(((sent[port] + 1) as f64 * interval) as u64 + 1));
        }
        match sim.step() {
            Step::Served(_) => {}
            Step::Waits(until) => sim.now = until.min(next),
            Step::Idle => sim.now = next,
        }
    }
    let seconds = sim.now.since(began).as_secs_f64();
    sim.guests.iter().zip(before).map(|(guest, before)| part((guest.bytes - before) * 8) / seconds).collect()
}

fn shares(least: std::ops::Range<f64>, most: std::ops::Range<f64>) -> impl Strategy<Value = Share> {
    (1u32..10, prop::option::of(least), prop::option::of(most)).prop_map(|(weight, least, most)| Share {
        min_rate: rate(least.unwrap_or(0.0).min(most.unwrap_or(1.0))),
        max_rate: most.map(rate),
        burst: 65_536,
        ..Share::of_weight(weight)
    })
}

fn guests() -> impl Strategy<Value = Vec<Guest>> {
    let guest = (shares(0.01..0.15, 0.02..0.8), 0.01..1.5, 300u64..9_014);
    prop::collection::vec(guest.prop_map(|(share, wants, size)| Guest { share, wants, size }), 1..6)
}

/// What some ports and tenants have.
#[derive(Clone, Debug)]
struct Policy {
    guests: Vec<Guest>,
    tenants: Vec<Share>,
    whose: Vec<Option<usize>>,
}

impl Policy {
    /// Puts it in force, where an `earlier` one is.
    fn apply(&self, sim: &mut Sim, earlier: Option<&Policy>) {
        for (tenant, share) in self.tenants.iter().enumerate() {
            sim.scheduler.configure_tenant(TenantId(tenant as u32), *share, sim.now);
        }
        for (port, guest) in self.guests.iter().enumerate() {
            let id = PortId(port as u32);
            if earlier.is_none_or(|earlier| earlier.whose[port] != self.whose[port]) {
                sim.scheduler.assign(id, self.whose[port].map(|tenant| TenantId(tenant as u32)));
            }
            match earlier {
                None => drop(sim.add(guest.share, Load::Finite(VecDeque::new()))),
                Some(_) => {
                    sim.configure(port, guest.share);
                    // What waits was sent by the earlier guest.
                    sim.guests[port].load = Load::Finite(VecDeque::new());
                }
            }
        }
    }

    fn due(&self) -> Vec<f64> {
        let tenants: Vec<Demand> = self.tenants.iter().map(|share| demand(share, f64::INFINITY)).collect();
        let demands: Vec<Demand> = self.guests.iter().map(|guest| demand(&guest.share, guest.wants)).collect();
        divide_among(&demands, &tenants, &self.whose, 1.0)
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    let tenants = prop::collection::vec(shares(0.01..0.15, 0.3..0.8), 2);
    let whose = prop::collection::vec(prop::option::of(0usize..2), 5);
    (guests(), tenants, whose).prop_map(|(mut guests, tenants, mut whose)| {
        whose.truncate(guests.len());
        for (guest, _) in guests.iter_mut().zip(&whose).filter(|(_, tenant)| tenant.is_some()) {
            // A guarantee of a tenant's guest must fit the tenant's.
            guest.share.min_rate = 0;
        }
        Policy { guests, tenants, whose }
    })
}

fn check(sim: &mut Sim, policy: &Policy) -> Result<(), TestCaseError> {
    let (found, due) = (measured(sim, &policy.guests, Nanos(2 * SECOND)), policy.due());
    let near = found.iter().zip(&due).all(|(found, due)| (found - due).abs() < TOLERANCE);
    prop_assert!(near, "{found:.4?}, not {due:.4?}");
    Ok(())
}

fn sim() -> Sim {
    Sim { scheduler: build_for_tenants(Some(LINK), IDLE_TIMEOUT), ..Sim::fair() }
}

proptest! {
    #![proptest_config(cases(256))]

    /// However often a ring runs empty, a port gets what it is due, and one that wants a little more than that gets no more.
    #[test]
    fn ports_and_tenants_get_what_they_are_due(policy in policies()) {
        let mut sim = sim();
        policy.apply(&mut sim, None);
        measured(&mut sim, &policy.guests, Nanos(SECOND));
        check(&mut sim, &policy)?;
    }

    /// From the moment on in which they change, whatever was in force before.
    #[test]
    fn changes_are_in_force_at_once(earlier in policies(), later in policies(), settle in 0u64..100) {
        let (mut sim, mut earlier, mut later) = (sim(), earlier, later);
        let number = earlier.guests.len().min(later.guests.len());
        for policy in [&mut earlier, &mut later] {
            policy.guests.truncate(number);
            policy.whose.truncate(number);
        }
        earlier.apply(&mut sim, None);
        measured(&mut sim, &earlier.guests, Nanos(SECOND));
        later.apply(&mut sim, Some(&earlier));
        measured(&mut sim, &later.guests, Nanos::from_millis(settle));
        check(&mut sim, &later)?;
    }
}
