//! The changes that lead from a running policy to a newer one.

use super::{Fixed, Link, Policy, SchedulerKind, Tenant, Vif};
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::receive::Receive;
use fairlane_core::sched::Share;
use fairlane_core::time::Nanos;
use std::collections::HashMap;
use std::net::IpAddr;

/// One change from a running policy to a newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Close a vif. It is not in the newer policy, or a [`Change::AddVif`] opens it again with another link, socket,
    /// guest or number of queues.
    RemoveVif {
        /// The vif.
        vif: String,
    },
    /// Change a link's rate.
    Rate {
        /// The link.
        link: String,
        /// Bits a second; unlimited if absent.
        rate: Option<u64>,
    },
    /// Change the rate of what a link's guests receive from the uplink.
    RxRate {
        /// The link.
        link: String,
        /// Bits a second; unlimited if absent.
        rate: Option<u64>,
    },
    /// Replace a link's scheduler, or change its settings, as [`Policy::has_tenants`] may. A scheduler holds no packets, so none is
    /// lost.
    Scheduler {
        /// The link.
        link: String,
        /// The scheduler.
        scheduler: SchedulerKind,
    },
    /// Change a link's idle timeout.
    IdleTimeout {
        /// The link.
        link: String,
        /// The timeout.
        idle_timeout: Nanos,
    },
    /// Isolate a link's guests from each other, or end that.
    Isolate {
        /// The link.
        link: String,
        /// Whether guests reach the uplink only.
        isolate: bool,
    },
    /// Change the memory of a link's receive queues.
    RxPool {
        /// The link.
        link: String,
        /// Bytes that all queues hold together.
        bytes: u64,
    },
    /// Change what a vif may send, or what its guest may receive.
    Share {
        /// The vif.
        vif: String,
        /// Its share of the link.
        share: Share,
        /// How frames for its guest are queued and scheduled.
        receive: Receive,
    },
    /// Change a tenant's shares of a link.
    Tenant {
        /// The link.
        link: String,
        /// The tenant.
        tenant: Tenant,
    },
    /// Move a vif to a tenant, or out of all.
    Member {
        /// The vif.
        vif: String,
        /// The tenant; none if absent.
        tenant: Option<Tenant>,
    },
    /// Pin a vif to other addresses.
    AntiSpoofing {
        /// The vif.
        vif: String,
        /// The only source MAC address it may use; any if absent.
        mac: Option<Mac>,
        /// The only source IP addresses it may use; any if empty.
        addresses: Vec<IpAddr>,
    },
    /// Change when TCP data is acknowledged early for a vif's guest.
    EarlyAck {
        /// The vif.
        vif: String,
        /// The mode.
        mode: Mode,
    },
    /// Open a vif.
    AddVif(Vif),
    /// Start a link, without vifs.
    AddLink(Link),
    /// End a link, which has no vifs any more.
    RemoveLink {
        /// The link.
        link: String,
    },
}

impl Policy {
    /// The changes from this policy to a newer one, in an order that frees every socket before it is used again.
    /// The order of links and vifs in a file does not matter.
    ///
    /// # Errors
    /// Every difference that needs a restart; nothing may be applied then.
    pub fn changes(&self, newer: &Policy) -> Result<Vec<Change>, Vec<Fixed>> {
        let fixed = self.fixed(newer);
        if !fixed.is_empty() {
            return Err(fixed);
        }
        let old_vifs: HashMap<&str, &Vif> = self.vifs.iter().map(|vif| (vif.name.as_str(), vif)).collect();
        let new_vifs: HashMap<&str, &Vif> = newer.vifs.iter().map(|vif| (vif.name.as_str(), vif)).collect();
        let stays = |vif: &Vif| match (old_vifs.get(vif.name.as_str()), new_vifs.get(vif.name.as_str())) {
            (Some(old), Some(new)) => same_card(old, new),
            _ => false,
        };

        let gone = self.vifs.iter().filter(|vif| !stays(vif));
        let mut changes: Vec<Change> = gone.map(|vif| Change::RemoveVif { vif: vif.name.clone() }).collect();
        let gone = self.links.iter().filter(|old| newer.link(&old.name).is_none());
        changes.extend(gone.map(|old| Change::RemoveLink { link: old.name.clone() }));
        for new in &newer.links {
            match self.link(&new.name) {
                Some(old) => {
                    let with_or_without = self.has_tenants(&new.name) != newer.has_tenants(&new.name);
                    link_changes(old, new, with_or_without, &mut changes);
                    self.tenant_changes(newer, &new.name, &mut changes);
                }
                None => changes.push(Change::AddLink(new.clone())),
            }
        }
        for new in &newer.vifs {
            match old_vifs.get(new.name.as_str()) {
                Some(old) if same_card(old, new) => {
                    if old.tenant != new.tenant {
                        changes.push(Change::Member { vif: new.name.clone(), tenant: newer.tenant_of(new).cloned() });
                    }
                    vif_changes(old, new, &mut changes);
                }
                _ => changes.push(Change::AddVif(new.clone())),
            }
        }
        Ok(changes)
    }

    /// Reverts a change that could not be applied to what `old` says. Several changes are reverted in reverse order.
    pub fn revert(&mut self, change: &Change, old: &Policy) {
        match change {
            Change::AddVif(added) => self.vifs.retain(|vif| vif.name != added.name),
            Change::AddLink(added) => self.links.retain(|link| link.name != added.name),
            Change::RemoveLink { link } => self.links.extend(old.link(link).cloned()),
            Change::RemoveVif { vif } => {
                let Some(vif) = old.vifs.iter().find(|old| old.name == *vif) else { return };
                self.tenants.extend(old.tenant_of(vif).filter(|_| self.tenant_of(vif).is_none()).cloned());
                self.vifs.push(vif.clone());
            }
            Change::Share { vif, .. } => self.vif_from(old, vif, |vif, old| {
                (vif.shares, vif.rx_queue, vif.rx_timeout) = (old.shares, old.rx_queue, old.rx_timeout);
            }),
            Change::Member { vif, .. } => {
                if let Some(vif) = old.vifs.iter().find(|old| old.name == *vif) {
                    self.tenants.extend(old.tenant_of(vif).filter(|_| self.tenant_of(vif).is_none()).cloned());
                }
                self.vif_from(old, vif, |vif, old| vif.tenant.clone_from(&old.tenant));
            }
            Change::Tenant { tenant, .. } => {
                let now = self.tenants.iter_mut().find(|now| now.name == tenant.name);
                if let Some((now, old)) = now.zip(old.tenants.iter().find(|old| old.name == tenant.name)) {
                    now.clone_from(old);
                }
            }
            Change::AntiSpoofing { vif, .. } => {
                self.vif_from(old, vif, |vif, old| (vif.mac, vif.addresses) = (old.mac, old.addresses.clone()));
            }
            Change::EarlyAck { vif, .. } => self.vif_from(old, vif, |vif, old| vif.early_ack = old.early_ack),
            Change::Rate { link, .. } => self.link_from(old, link, |link, old| link.rate = old.rate),
            Change::RxRate { link, .. } => self.link_from(old, link, |link, old| link.rx_rate = old.rx_rate),
            Change::Scheduler { link, .. } => self.link_from(old, link, |link, old| link.scheduler = old.scheduler),
            Change::IdleTimeout { link, .. } => {
                self.link_from(old, link, |link, old| link.idle_timeout = old.idle_timeout)
            }
            Change::RxPool { link, .. } => self.link_from(old, link, |link, old| link.rx_pool = old.rx_pool),
            Change::Isolate { link, .. } => self.link_from(old, link, |link, old| link.isolate = old.isolate),
        }
    }

    /// The changes to the shares of tenants that have vifs on a link, before and after.
    fn tenant_changes(&self, newer: &Policy, link: &str, changes: &mut Vec<Change>) {
        for new in &newer.tenants {
            let Some(old) = self.tenants.iter().find(|old| old.name == new.name) else { continue };
            let is_here = |policy: &Policy| {
                policy.vifs.iter().any(|vif| vif.link == link && vif.tenant.as_ref() == Some(&new.name))
            };
            let differs = old.shares != new.shares || old.min_rate_on.get(link) != new.min_rate_on.get(link);
            if differs && (is_here(self) || is_here(newer)) {
                changes.push(Change::Tenant { link: link.to_owned(), tenant: new.clone() });
            }
        }
    }

    /// Copies something to a vif from its old version.
    fn vif_from(&mut self, old: &Policy, name: &str, copy: impl FnOnce(&mut Vif, &Vif)) {
        let now = self.vifs.iter_mut().find(|vif| vif.name == name);
        if let Some((now, old)) = now.zip(old.vifs.iter().find(|vif| vif.name == name)) {
            copy(now, old);
        }
    }

    /// Copies something to a link from its old version.
    fn link_from(&mut self, old: &Policy, name: &str, copy: impl FnOnce(&mut Link, &Link)) {
        let now = self.links.iter_mut().find(|link| link.name == name);
        if let Some((now, old)) = now.zip(old.link(name)) {
            copy(now, old);
        }
    }
}

/// Whether two vifs with the same name are the same card for their guest.
fn same_card(old: &Vif, new: &Vif) -> bool {
    (&old.link, &old.card, old.queues) == (&new.link, &new.card, new.queues)
}

fn link_changes(old: &Link, new: &Link, with_or_without_tenants: bool, changes: &mut Vec<Change>) {
    let link = || new.name.clone();
    if old.rate != new.rate {
        changes.push(Change::Rate { link: link(), rate: new.rate });
    }
    if old.rx_rate != new.rx_rate {
        changes.push(Change::RxRate { link: link(), rate: new.rx_rate });
    }
    if old.scheduler != new.scheduler || with_or_without_tenants {
        changes.push(Change::Scheduler { link: link(), scheduler: new.scheduler });
    }
    if old.idle_timeout != new.idle_timeout {
        changes.push(Change::IdleTimeout { link: link(), idle_timeout: new.idle_timeout });
    }
    if old.isolate != new.isolate {
        changes.push(Change::Isolate { link: link(), isolate: new.isolate });
    }
    if old.rx_pool != new.rx_pool {
        changes.push(Change::RxPool { link: link(), bytes: new.rx_pool });
    }
}

fn vif_changes(old: &Vif, new: &Vif, changes: &mut Vec<Change>) {
    if (old.shares.tx, old.receive()) != (new.shares.tx, new.receive()) {
        changes.push(Change::Share { vif: new.name.clone(), share: new.shares.tx, receive: new.receive() });
    }
    if (old.mac, &old.addresses) != (new.mac, &new.addresses) {
        changes.push(Change::AntiSpoofing { vif: new.name.clone(), mac: new.mac, addresses: new.addresses.clone() });
    }
    if old.early_ack != new.early_ack {
        changes.push(Change::EarlyAck { vif: new.name.clone(), mode: new.early_ack });
    }
}
