//! Tenants' guarantees on all hosts together: hosts measure, claim, and divide what they heard, as `fairlane fleet follow` does.
//!
//! All hosts hear the same claims at the same time, so one division is that of all.

use super::{What, World};
use crate::host::Host;
use crate::outcome::Second;
use crate::scenario::{self, Scenario};
use fairlane_core::partition::{Claim, Demand, GATHER, MEASURE, divide};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_engine::reading::Reading;
use fairlane_engine::snapshot::{Snapshot, TenantState};
use fairlane_policy::{Direction, Policy, Setting, ShareSetting};
use rand::RngExt;
use std::collections::VecDeque;

/// What hosts know of tenants' guarantees.
pub(crate) struct Division {
    hosts: Vec<Side>,
    tenants: Vec<Shared>,
    /// Whether hosts will divide, so that nobody has to see to it.
    is_due: bool,
}

/// A host's side.
struct Side {
    /// What it saw when it claimed last.
    last: Snapshot,
    /// Of each guarantee.
    demands: Vec<Demand>,
}

/// What all hosts have heard of a tenant, by host.
struct Shared {
    /// None where it has no guests.
    hosts: Vec<Option<Part>>,
    /// Claims on their way, with the time when they are heard.
    coming: VecDeque<(Nanos, usize, Claim)>,
    sent_bytes: u64,
    seconds: Vec<Second>,
}

/// A tenant on a host.
#[derive(Clone, Copy, Default)]
struct Part {
    claim: Option<Claim>,
    part: Option<u64>,
}

impl Division {
    pub(super) fn new(scenario: &Scenario) -> Division {
        let demands = vec![Demand::default(); scenario.guarantees.len()];
        let side = |_: &scenario::Host| Side { last: Snapshot::default(), demands: demands.clone() };
        let shared = |tenant: &String| {
            let has = |policy: &Policy| policy.vifs.iter().any(|vif| vif.tenant.as_ref() == Some(tenant));
            let hosts = scenario.hosts.iter().map(|host| has(&host.policy).then(Part::default)).collect();
            Shared { hosts, coming: VecDeque::new(), sent_bytes: 0, seconds: Vec::new() }
        };
        // Hosts know nothing unless there is something to divide.
        let hosts = scenario.hosts.iter().filter(|_| !demands.is_empty()).map(side).collect();
        let tenants = scenario.guarantees.iter().map(|guarantee| shared(&guarantee.tenant)).collect();
        Division { hosts, tenants, is_due: false }
    }

    /// What came of each guarantee.
    pub(crate) fn seconds(&mut self) -> Vec<Vec<Second>> {
        self.tenants.iter_mut().map(|tenant| std::mem::take(&mut tenant.seconds)).collect()
    }
}

impl Shared {
    /// Each host's part of `guarantee`, once all have been heard.
    fn divide(&mut self, guarantee: u64) {
        let claims: Option<Vec<Claim>> = self.hosts.iter().flatten().map(|here| here.claim).collect();
        let parts = claims.map_or_else(Vec::new, |claims| divide(guarantee, &claims));
        self.hosts.iter_mut().flatten().zip(parts).for_each(|(here, part)| here.part = Some(part));
    }
}

impl World<'_> {
    /// Hosts measure four times a second, each at its own time.
    pub(super) fn begin_to_divide(&mut self) {
        for host in 0..self.division.hosts.len() {
            let first = Nanos((MEASURE.0 as f64 * self.random.random::<f64>()) as u64);
            self.at(first, What::Claim(host as u32));
        }
        if !self.division.hosts.is_empty() {
            self.at(Nanos(SECOND), What::Second);
        }
    }

    /// A host measures, claims, and puts its parts in force.
    pub(super) fn claim(&mut self, index: usize) {
        let (uplink, vifs) = self.hosts[index].snapshot();
        let side = &mut self.division.hosts[index];
        let links = vec![Host::link(&self.scenario.hosts[index], uplink)];
        let tenants = self.hosts[index].policy.tenants.iter().map(TenantState::new).collect();
        let seen = Snapshot { time: self.now.0, links, tenants, vifs, ..Snapshot::default() };
        let last = std::mem::replace(&mut side.last, seen);
        let reading = Reading::between(&last, &side.last);
        let measured = reading.as_ref().map(Reading::measured).unwrap_or_default();
        let mut hears = Nanos::NEVER;
        for (number, guarantee) in self.scenario.guarantees.iter().enumerate() {
            let link = self.scenario.hosts[index].link.name.as_str();
            let Some(measured) = measured.get(&(guarantee.tenant.as_str(), link)) else { continue };
            let at = self.now + guarantee.delay;
            let claim = side.demands[number].claim(*measured, self.now);
            self.division.tenants[number].coming.push_back((at, index, claim));
            hears = hears.min(at);
        }
        self.divide_after(hears);
        self.enforce(index);
        self.at(self.now + MEASURE, What::Claim(index as u32));
    }

    /// Sees to it that hosts divide after they hear something at a time.
    fn divide_after(&mut self, hears: Nanos) {
        if hears < Nanos::NEVER && !std::mem::replace(&mut self.division.is_due, true) {
            self.at(hears + GATHER, What::Divide);
        }
    }

    /// All hosts divide by what they have heard.
    pub(super) fn divide(&mut self) {
        self.division.is_due = false;
        for (tenant, guarantee) in self.division.tenants.iter_mut().zip(&self.scenario.guarantees) {
            let heard = tenant.coming.partition_point(|(at, ..)| *at <= self.now);
            for (_, host, claim) in tenant.coming.drain(..heard) {
                if let Some(here) = &mut tenant.hosts[host] {
                    here.claim = Some(claim);
                }
            }
            tenant.divide(guarantee.min_rate);
        }
        (0..self.hosts.len()).for_each(|host| self.enforce(host));
        let coming = self.division.tenants.iter().filter_map(|tenant| Some(tenant.coming.front()?.0));
        let next = coming.min().unwrap_or(Nanos::NEVER);
        self.divide_after(next);
    }

    /// Puts a host's parts in force where they differ. One that does not fit is refused by the policy, and tried again.
    fn enforce(&mut self, index: usize) {
        for (number, guarantee) in self.scenario.guarantees.iter().enumerate() {
            let Some(part) = self.division.tenants[number].hosts[index].and_then(|here| here.part) else { continue };
            let host = &mut self.hosts[index];
            let tenant = host.policy.tenants.iter().find(|tenant| tenant.name == guarantee.tenant);
            let setting = Setting::Share(Direction::Tx, ShareSetting::MinRate(part));
            if tenant.is_none_or(|tenant| tenant.shares.tx.min_rate == part) {
                continue;
            }
            if let Ok(Some(wake)) = host.set(&guarantee.tenant, setting, self.now) {
                self.at(wake, What::Host(index as u32));
            }
        }
    }

    /// Counts what came of guarantees in a second.
    pub(super) fn end_second(&mut self) {
        let mut vifs = Vec::new();
        self.hosts.iter_mut().for_each(|host| vifs.extend(host.snapshot().1));
        for (tenant, guarantee) in self.division.tenants.iter_mut().zip(&self.scenario.guarantees) {
            let own = vifs.iter().filter(|vif| vif.tenant.as_ref() == Some(&guarantee.tenant));
            let sent: u64 = own.map(|vif| vif.port.sent_bytes).sum();
            let here = || tenant.hosts.iter().flatten();
            let wanted = here().filter_map(|here| here.claim);
            let wanted: u128 = wanted.map(|claim| u128::from(claim.demand.min(claim.room))).sum();
            let tenants = self.hosts.iter().flat_map(|host| &host.policy.tenants);
            let own = tenants.filter(|own| own.name == guarantee.tenant);
            tenant.seconds.push(Second {
                sent: (sent - tenant.sent_bytes) as f64 * 8.0,
                in_force: own.map(|own| own.shares.tx.min_rate).sum(),
                wanted: wanted >= guarantee.min_rate.into(),
            });
            tenant.sent_bytes = sent;
        }
        self.at(self.now + Nanos(SECOND), What::Second);
    }
}
