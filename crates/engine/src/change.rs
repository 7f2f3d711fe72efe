//! Applies policy changes between two rounds of a worker: no frame is lost, and no frame sees half a change.

use crate::bridge::Bridge;
use crate::clock::Clock;
use crate::early;
use crate::error::Error;
use crate::ports;
use crate::receivers::IDLE_TIMEOUT;
use crate::worker::Work;
use fairlane_core::PortId;
use fairlane_core::ack::Mode;
use fairlane_core::sched::{self, Scheduler, SchedulerKind};
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_policy::{Change, Link, Policy, Vif};
use fairlane_port::Port;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use tracing::error;

impl Bridge {
    /// Builds the bridge of a link, with its uplink and a port from `card` for each of its vifs.
    ///
    /// # Errors
    /// A port or file cannot be opened.
    pub fn open(
        policy: &Policy,
        link: &Link,
        uplink: Option<Box<dyn Port>>,
        mut card: impl FnMut(&Vif) -> Result<Box<dyn Port>, Error>,
        clock: &impl Clock,
    ) -> Result<Bridge, Error> {
        let mut bridge = Bridge::open_empty(policy, link, uplink, clock);
        for vif in policy.vifs.iter().filter(|vif| vif.link == link.name) {
            let added = bridge.add(&vif.name, card(vif)?, vif.shares.tx, anti_spoofing(vif), clock.now());
            let port = added.map_err(|error| Error::failed(format!("vif `{}`", vif.name), error))?;
            bridge.set_tenant(port, policy.tenant_of(vif), clock.now());
            bridge.set_receive(port, vif.receive(), clock.now());
            or_without(
                &vif.name,
                accelerate(&mut bridge, port, &policy.control, &vif.name, vif.early_ack, clock.now()),
            )?;
        }
        Ok(bridge)
    }

    /// The bridge of a link without its vifs.
    pub(crate) fn open_empty(
        policy: &Policy,
        link: &Link,
        uplink: Option<Box<dyn Port>>,
        clock: &impl Clock,
    ) -> Bridge {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &link.name);
        let mut bridge = Bridge::new(&link.name, Config { isolate: link.isolate, seed }, scheduler(policy, link));
        bridge.set_receivers_scheduler(receivers_scheduler(policy, link), clock.now());
        bridge.set_rx_rate(link.rx_rate, clock.now());
        if let Some(uplink) = uplink {
            bridge.set_uplink(uplink);
        }
        bridge.set_receive_pool(link.rx_pool);
        bridge
    }
}

impl Bridge {
    /// Applies a change to `policy`, as far as it is this link's. Vifs and links are not added here.
    ///
    /// # Errors
    /// An address that another vif has, or early ack's memory cannot be allocated.
    pub fn apply(&mut self, change: &Change, policy: &Policy, now: Nanos) -> Result<(), Error> {
        let said = |vif: &str, error: &dyn std::fmt::Display| Error::failed(format!("vif `{vif}`"), error);
        match change {
            Change::RemoveVif { vif } => {
                if let Some(port) = self.find(vif) {
                    // If the vif is added again, the data owed to its guest stay in the file.
                    if policy.vifs.iter().all(|other| other.name != *vif) {
                        self.forget_early(port);
                    }
                    self.remove(port, now);
                }
            }
            Change::EarlyAck { vif, mode } => {
                if let Some(port) = self.find(vif)
                    && !self.set_early(port, *mode)
                {
                    let turned = accelerate(self, port, &policy.control, vif, *mode, now);
                    turned.map_err(|error| said(vif, &error))?;
                }
            }
            // The two ends of a wire share a worker, and have the same rate.
            Change::Rate { .. } => {
                let rate = policy.link(self.name()).and_then(|link| ports::rate(&policy.links, link));
                self.set_rate(rate, now);
                self.reschedule(policy, now);
            }
            Change::Scheduler { link, .. } | Change::IdleTimeout { link, .. } if link == self.name() => {
                self.reschedule(policy, now);
            }
            Change::RxRate { link, rate } => {
                if let Some(link) = policy.link(link).filter(|link| link.name == self.name()) {
                    self.set_rx_rate(*rate, now);
                    self.set_receivers_scheduler(receivers_scheduler(policy, link), now);
                }
            }
            Change::Tenant { link, tenant } if link == self.name() => self.set_tenant_shares(tenant, now),
            Change::Member { vif, tenant } => {
                if let Some(port) = self.find(vif) {
                    self.set_tenant(port, tenant.as_ref(), now);
                }
            }
            Change::Isolate { link, isolate } if link == self.name() => self.set_isolate(*isolate),
            Change::Share { vif, share, receive } => {
                if let Some(port) = self.find(vif) {
                    self.set_share(port, *share, now);
                    self.set_receive(port, *receive, now);
                }
            }
            Change::RxPool { link, bytes } if link == self.name() => self.set_receive_pool(*bytes),
            Change::AntiSpoofing { vif, mac, addresses } => {
                if let Some(port) = self.find(vif) {
                    let pinned = self.set_anti_spoofing(port, AntiSpoofing { mac: *mac, addresses: addresses.clone() });
                    pinned.map_err(|error| said(vif, &error))?;
                }
            }
            // Of another link, or nothing that a bridge can do itself.
            Change::Tenant { .. }
            | Change::Scheduler { .. }
            | Change::IdleTimeout { .. }
            | Change::Isolate { .. }
            | Change::RxPool { .. }
            | Change::AddVif(_)
            | Change::AddLink(_)
            | Change::RemoveLink { .. } => {}
        }
        Ok(())
    }

    /// New schedulers from the policy.
    fn reschedule(&mut self, policy: &Policy, now: Nanos) {
        if let Some(link) = policy.link(self.name()) {
            self.set_scheduler(scheduler(policy, link), now);
            self.set_receivers_scheduler(receivers_scheduler(policy, link), now);
        }
    }
}

/// The scheduler of a link.
fn scheduler(policy: &Policy, link: &Link) -> Box<dyn Scheduler> {
    let rate = ports::rate(&policy.links, link);
    if policy.has_tenants(&link.name) {
        sched::build_for_tenants(rate, link.idle_timeout)
    } else {
        sched::build(link.scheduler, rate, link.idle_timeout)
    }
}

/// The scheduler of a link's receivers.
fn receivers_scheduler(policy: &Policy, link: &Link) -> Box<dyn Scheduler> {
    if policy.has_tenants(&link.name) {
        sched::build_for_tenants(link.rx_rate, IDLE_TIMEOUT)
    } else {
        sched::build(SchedulerKind::Fair, link.rx_rate, IDLE_TIMEOUT)
    }
}

/// The source addresses that a vif may use.
fn anti_spoofing(vif: &Vif) -> AntiSpoofing {
    AntiSpoofing { mac: vif.mac, addresses: vif.addresses.clone() }
}

/// Turns early ack on for a new port if the policy says so, or if an earlier process left data for its guest.
///
/// # Errors
/// Its memory cannot be allocated.
fn accelerate(bridge: &mut Bridge, port: PortId, control: &Path, vif: &str, mode: Mode, now: Nanos) -> io::Result<()> {
    let file = early::file(control, vif);
    if mode != Mode::Off || file.exists() {
        let said = |error: io::Error| {
            let sentence = format!("cannot keep early ack in {}: {error}", file.display());
            io::Error::new(error.kind(), sentence)
        };
        bridge.accelerate(port, &file, mode, now).map_err(said)?;
    }
    Ok(())
}

/// Serves a new vif without early ack if only memory is missing: one vif's lack of memory stops no other.
///
/// # Errors
/// Any other error.
fn or_without(vif: &str, accelerated: io::Result<()>) -> Result<(), Error> {
    accelerated.or_else(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            error!("vif `{vif}`: {error}; it is served without; `fairlane ctl set` its early_ack to false and back to try again");
            Ok(())
        }
        _ => Err(Error::failed(format!("vif `{vif}`"), error)),
    })
}

/// A change that could not be applied; no part of it was.
#[derive(Debug)]
pub struct Refused {
    /// The change.
    pub change: Change,
    /// The reason.
    pub why: Error,
}

impl<C: Clock> Work<C> {
    /// Applies all changes to `policy` that belong to this worker, and returns those that failed. `opened` has the ports of new
    /// vifs; other new vifs are opened here.
    pub fn apply(
        &mut self,
        changes: Vec<Change>,
        policy: &Policy,
        mut opened: HashMap<String, Box<dyn Port>>,
    ) -> Vec<Refused> {
        // An address may move from one vif to another, so all are released before any is pinned.
        for change in &changes {
            if let Change::AntiSpoofing { vif, .. } = change
                && let Some((bridge, port)) = self.vif(vif)
            {
                let _ = self.bridges[bridge].set_anti_spoofing(port, AntiSpoofing::default());
            }
        }
        let mut refused = Vec::new();
        for change in changes {
            if let Err(why) = self.step(&change, policy, &mut opened) {
                refused.push(Refused { change, why });
            }
        }
        refused
    }

    fn step(
        &mut self,
        change: &Change,
        policy: &Policy,
        opened: &mut HashMap<String, Box<dyn Port>>,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        match change {
            Change::AddVif(vif) => {
                let Some(bridge) = self.find(&vif.link) else { return Ok(()) };
                let port = opened.remove(&vif.name).map_or_else(|| ports::vif(vif), Ok)?;
                let said = |error: &dyn std::fmt::Display| Error::failed(format!("vif `{}`", vif.name), error);
                let added = self.bridges[bridge].add(&vif.name, port, vif.shares.tx, anti_spoofing(vif), now);
                let port = added.map_err(|error| said(&error))?;
                self.bridges[bridge].set_tenant(port, policy.tenant_of(vif), now);
                self.bridges[bridge].set_receive(port, vif.receive(), now);
                let registered = self.register(bridge, port).map_err(|error| said(&error));
                let bridge = &mut self.bridges[bridge];
                let served = registered.and_then(|()| {
                    or_without(&vif.name, accelerate(bridge, port, &policy.control, &vif.name, vif.early_ack, now))
                });
                if let Err(why) = served {
                    bridge.remove(port, now);
                    return Err(why);
                }
                Ok(())
            }
            // Its worker is started and ended, not changed.
            Change::AddLink(_) | Change::RemoveLink { .. } => Ok(()),
            change => self.bridges.iter_mut().try_for_each(|bridge| bridge.apply(change, policy, now)),
        }
    }

    /// The bridge and port of a vif.
    pub(crate) fn vif(&self, name: &str) -> Option<(usize, PortId)> {
        let mut bridges = self.bridges.iter().enumerate();
        bridges.find_map(|(index, bridge)| Some((index, bridge.find(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_memory_of_any_kind_stops_nobody() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::OutOfMemory] {
            or_without("web", Err(kind.into())).unwrap();
        }
        or_without("web", Err(io::ErrorKind::InvalidData.into())).unwrap_err();
    }
}
