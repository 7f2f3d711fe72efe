//! The share of a link that weights give to the vifs that use it.

use crate::snapshot::{Snapshot, TenantState, VifState};
use std::collections::HashMap;

/// Sums of the weights of those that use a link.
pub(crate) struct Due<'a> {
    seen: &'a Snapshot,
    /// Of each link: tenants, and vifs without one.
    links: HashMap<&'a str, f64>,
    /// Of each tenant on each link.
    tenants: HashMap<(&'a str, &'a str), f64>,
    /// Each tenant's own weight.
    weights: HashMap<&'a str, f64>,
    /// Links whose scheduler ignores weights.
    equal: Vec<&'a str>,
}

impl<'a> Due<'a> {
    pub(crate) fn of(seen: &'a Snapshot) -> Due<'a> {
        let weight = |tenant: &'a TenantState| (tenant.name.as_str(), f64::from(tenant.weight));
        let equal = seen.links.iter().filter(|link| !link.by_weight).map(|link| link.name.as_str());
        let mut due = Due {
            seen,
            links: HashMap::new(),
            tenants: HashMap::new(),
            weights: seen.tenants.iter().map(weight).collect(),
            equal: equal.collect(),
        };
        for vif in seen.vifs.iter().filter(|vif| vif.uses_link()) {
            let own = due.weight(vif);
            let link = due.links.entry(vif.link.as_str()).or_default();
            match &vif.tenant {
                None => *link += own,
                Some(tenant) => {
                    let tenants = due.tenants.entry((&vif.link, tenant)).or_insert_with(|| {
                        *link += due.weights.get(tenant.as_str()).copied().unwrap_or(0.0);
                        0.0
                    });
                    *tenants += f64::from(vif.weight);
                }
            }
        }
        due
    }

    /// The part, 0 to 1, of its link that a vif's weight, and its tenant's, gives it among those that use the link; none if it does
    /// not use it.
    pub(crate) fn of_vif(&self, vif: &VifState) -> Option<f64> {
        let link = self.links.get(vif.link.as_str()).filter(|_| vif.uses_link())?;
        match &vif.tenant {
            None => Some(self.weight(vif) / link),
            Some(tenant) => {
                let of_tenant = f64::from(vif.weight) / self.tenants.get(&(vif.link.as_str(), tenant.as_str()))?;
                Some(self.weights.get(tenant.as_str())? / link * of_tenant)
            }
        }
    }

    /// What is due to a tenant's vifs together on each link that they use: by tenant and link.
    pub(crate) fn of_tenants(&self) -> HashMap<(&'a str, &'a str), f64> {
        let mut due = HashMap::new();
        for vif in &self.seen.vifs {
            if let (Some(tenant), Some(part)) = (&vif.tenant, self.of_vif(vif)) {
                *due.entry((tenant.as_str(), vif.link.as_str())).or_default() += part;
            }
        }
        due
    }

    /// The vif's weight; 1 if its link's scheduler ignores weights.
    fn weight(&self, vif: &VifState) -> f64 {
        if self.equal.contains(&vif.link.as_str()) { 1.0 } else { f64::from(vif.weight) }
    }
}
