//! Steps from one policy to the next, taken by a worker between two rounds: no frame is lost, and none sees half a change.

use crate::bridge::Bridge;
use crate::clock::Clock;
use crate::early;
use crate::error::Error;
use crate::ports;
use crate::worker::Work;
use fairlane_core::PortId;
use fairlane_core::ack::Mode;
use fairlane_core::sched;
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_policy::{Change, Link, Policy, Vif};
use fairlane_port::Port;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use tracing::error;

impl Bridge {
    /// A link as its policy has it, with this uplink, and its vifs at the ports that `card` opens for them.
    ///
    /// # Errors
    /// What cannot be opened.
    pub fn open(
        policy: &Policy,
        link: &Link,
        uplink: Option<Box<dyn Port>>,
        mut card: impl FnMut(&Vif) -> Result<Box<dyn Port>, Error>,
        clock: &impl Clock,
    ) -> Result<Bridge, Error> {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), &link.name);
        let scheduler = sched::build(link.scheduler, ports::rate(&policy.links, link), link.idle_timeout);
        let mut bridge = Bridge::new(&link.name, Config { isolate: link.isolate, seed }, scheduler);
        if let Some(uplink) = uplink {
            bridge.set_uplink(uplink);
        }
        bridge.set_receive_pool(link.rx_pool);
        for vif in policy.vifs.iter().filter(|vif| vif.link == link.name) {
            let added = bridge.add(&vif.name, card(vif)?, vif.share, anti_spoofing(vif), clock.now());
            let port = added.map_err(|error| Error::failed(format!("vif `{}`", vif.name), error))?;
            bridge.set_receive(port, vif.receive(), clock.now());
            or_without(
                &vif.name,
                accelerate(&mut bridge, port, &policy.control, &vif.name, vif.early_ack, clock.now()),
            )?;
        }
        Ok(bridge)
    }
}

/// What a vif may send as.
fn anti_spoofing(vif: &Vif) -> AntiSpoofing {
    AntiSpoofing { mac: vif.mac, addresses: vif.addresses.clone() }
}

/// Gives a new port early ack, if it is to have it, or is owed something from an earlier time.
///
/// # Errors
/// Where its memory cannot be had.
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

/// Has a new vif served without early ack if all that is missing is memory: one vif's want stops no other.
///
/// # Errors
/// What else is wrong.
fn or_without(vif: &str, accelerated: io::Result<()>) -> Result<(), Error> {
    accelerated.or_else(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
            error!("vif `{vif}`: {error}; it is served without; `fairlane ctl set` its early_ack to false and back to try again");
            Ok(())
        }
        _ => Err(Error::failed(format!("vif `{vif}`"), error)),
    })
}

/// A step that could not be taken: nothing of it was done.
#[derive(Debug)]
pub struct Refused {
    /// The step.
    pub change: Change,
    /// Why.
    pub why: Error,
}

impl<C: Clock> Work<C> {
    /// Takes all steps to `policy` that are this worker's, and answers which could not be taken. `opened` has ports of new vifs; those of
    /// others are opened here.
    pub fn apply(
        &mut self,
        changes: Vec<Change>,
        policy: &Policy,
        mut opened: HashMap<String, Box<dyn Port>>,
    ) -> Vec<Refused> {
        // An address may pass from one vif to another: all are let go before one is taken.
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
            Change::RemoveVif { vif } => {
                if let Some((bridge, port)) = self.vif(vif) {
                    // What the guest of a vif that comes back is owed stays in the file.
                    if policy.vifs.iter().all(|other| other.name != *vif) {
                        self.bridges[bridge].forget_early(port);
                    }
                    self.bridges[bridge].remove(port, now);
                }
            }
            Change::EarlyAck { vif, mode } => {
                if let Some((bridge, port)) = self.vif(vif)
                    && !self.bridges[bridge].set_early(port, *mode)
                {
                    let bridge = &mut self.bridges[bridge];
                    let turned = accelerate(bridge, port, &policy.control, vif, *mode, now);
                    turned.map_err(|error| Error::failed(format!("vif `{vif}`"), error))?;
                }
            }
            // Links that share a worker are the two ends of a wire, and the rate is the wire's.
            Change::Rate { rate, .. } => {
                for bridge in &mut self.bridges {
                    bridge.set_rate(*rate, now);
                }
                self.reschedule(policy);
            }
            Change::Scheduler { .. } | Change::IdleTimeout { .. } => self.reschedule(policy),
            Change::Isolate { link, isolate } => {
                if let Some(bridge) = self.find(link) {
                    self.bridges[bridge].set_isolate(*isolate);
                }
            }
            Change::Share { vif, share, receive } => {
                if let Some((bridge, port)) = self.vif(vif) {
                    self.bridges[bridge].set_share(port, *share, now);
                    self.bridges[bridge].set_receive(port, *receive, now);
                }
            }
            Change::RxPool { link, bytes } => {
                if let Some(bridge) = self.find(link) {
                    self.bridges[bridge].set_receive_pool(*bytes);
                }
            }
            Change::AntiSpoofing { vif, mac, addresses } => {
                if let Some((bridge, port)) = self.vif(vif) {
                    let pinned = self.bridges[bridge]
                        .set_anti_spoofing(port, AntiSpoofing { mac: *mac, addresses: addresses.clone() });
                    pinned.map_err(|error| Error::failed(format!("vif `{vif}`"), error))?;
                }
            }
            Change::AddVif(vif) => {
                let Some(bridge) = self.find(&vif.link) else { return Ok(()) };
                let port = opened.remove(&vif.name).map_or_else(|| ports::vif(vif), Ok)?;
                let said = |error: &dyn std::fmt::Display| Error::failed(format!("vif `{}`", vif.name), error);
                let added = self.bridges[bridge].add(&vif.name, port, vif.share, anti_spoofing(vif), now);
                let port = added.map_err(|error| said(&error))?;
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
            }
        }
        Ok(())
    }

    /// Gives every bridge a new scheduler, as the policy says.
    fn reschedule(&mut self, policy: &Policy) {
        let now = self.clock.now();
        for bridge in &mut self.bridges {
            if let Some(link) = policy.link(bridge.name()) {
                bridge.set_scheduler(
                    sched::build(link.scheduler, ports::rate(&policy.links, link), link.idle_timeout),
                    now,
                );
            }
        }
    }

    /// Where a vif is.
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
