//! The tenants of a link: their shares, and which ports are theirs.

use super::Bridge;
use crate::entry::Turn;
use crate::forward::UPLINK;
use fairlane_core::inflow::Owner;
use fairlane_core::sched::Share;
use fairlane_core::time::Nanos;
use fairlane_core::{PortId, TenantId};
use fairlane_policy::{Shares, Tenant};

/// The tenants that have ports on a link.
#[derive(Default)]
pub(super) struct Tenants(Vec<Option<Tenant>>);

impl Tenants {
    fn find(&self, name: &str) -> Option<TenantId> {
        let index = self.0.iter().position(|tenant| tenant.as_ref().is_some_and(|tenant| tenant.name == name))?;
        Some(TenantId(index as u32))
    }

    /// The number of a tenant, the lowest free one if it is new.
    fn enter(&mut self, tenant: &Tenant) -> TenantId {
        if let Some(known) = self.find(&tenant.name) {
            return known;
        }
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(tenant.clone());
        TenantId(free as u32)
    }

    /// A tenant, if it has ports.
    pub(super) fn get(&self, tenant: TenantId) -> Option<&Tenant> {
        self.0.get(tenant.index())?.as_ref()
    }

    /// All tenants with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TenantId, &Tenant)> {
        self.0.iter().enumerate().filter_map(|(index, tenant)| Some((TenantId(index as u32), tenant.as_ref()?)))
    }
}

impl Bridge {
    /// Moves a port to a tenant, or out of all, from the next decision on.
    pub fn set_tenant(&mut self, port: PortId, tenant: Option<&Tenant>, now: Nanos) {
        let Some(entry) = self.fabric.entry(port).filter(|_| port != UPLINK) else { return };
        let before = entry.tenant;
        let after = tenant.map(|tenant| self.tenants.enter(tenant));
        if before == after {
            return;
        }
        if let (Some(id), Some(tenant)) = (after, tenant) {
            self.configure_tenant(id, tenant, now);
        }
        let Some(entry) = self.fabric.entry(port) else { return };
        entry.tenant = after;
        // The schedulers forget the service that waits for the uplink, if there is one.
        let waiting = self.held.len();
        self.held.retain(|service| service.port != port);
        let Some(entry) = self.fabric.entries[port.index()].as_deref_mut() else { return };
        if self.held.len() < waiting {
            entry.turn = Turn::Active;
        }
        entry.enter_senders(port, &mut *self.scheduler, now);
        entry.enter_receivers(port, &mut *self.fabric.receivers.scheduler, now);
        self.refresh(port);
        self.forget_tenant(before);
    }

    /// Changes the shares of a tenant, if it has ports here.
    pub fn set_tenant_shares(&mut self, tenant: &Tenant, now: Nanos) {
        let Some(id) = self.tenants.find(&tenant.name) else { return };
        self.tenants.0[id.index()] = Some(tenant.clone());
        self.configure_tenant(id, tenant, now);
        for port in self.ports() {
            self.refresh(port);
        }
    }

    fn configure_tenant(&mut self, id: TenantId, tenant: &Tenant, now: Nanos) {
        self.scheduler.configure_tenant(id, tenant.on(&self.name).tx, now);
        self.fabric.receivers.scheduler.configure_tenant(id, tenant.shares.rx, now);
    }

    /// Forgets a tenant that has no more ports.
    pub(super) fn forget_tenant(&mut self, tenant: Option<TenantId>) {
        let Some(id) = tenant else { return };
        if self.fabric.entries.iter().flatten().any(|entry| entry.tenant == tenant) {
            return;
        }
        self.tenants.0[id.index()] = None;
        self.scheduler.remove_tenant(id);
        self.fabric.receivers.scheduler.remove_tenant(id);
        self.fabric.receivers.inflow.remove_tenant(id);
    }

    /// Computes what follows from the shares of a port and of its tenant, one of which changed.
    pub(super) fn refresh(&mut self, port: PortId) {
        let Bridge { fabric, tenants, .. } = self;
        let Some(entry) = fabric.entry(port) else { return };
        let (tx, rx) = (entry.effective_share(), entry.receive.share);
        let tenant = entry.tenant.and_then(|id| Some((id, tenants.get(id)?.shares)));
        let is_limited = |of: fn(&Shares) -> &Share| tenant.is_some_and(|(_, shares)| of(&shares).is_limited());
        entry.is_limited = tx.is_limited() || is_limited(|shares| &shares.tx);
        entry.is_paced = rx.is_limited() || is_limited(|shares| &shares.rx);
        entry.tx_owner = Owner { weight: tx.weight, tenant: tenant.map(|(id, shares)| (id, shares.tx.weight)) };
        entry.rx_owner = Owner { weight: rx.weight, tenant: tenant.map(|(id, shares)| (id, shares.rx.weight)) };
    }
}
