//! A table of a guarantee: what a tenant has on all hosts together.

use super::file::GuaranteeKeys;
use crate::scenario::{Guarantee, Host};
use fairlane_core::time::Nanos;
use fairlane_policy::problem::{Problems, unknown_name};
use std::collections::BTreeSet;

/// Time from a claim until all have heard it, if the plan does not say.
const DELAY: Nanos = Nanos::from_millis(10);

pub(super) fn read(
    keys: &GuaranteeKeys,
    all: &[GuaranteeKeys],
    hosts: &[Host],
    problems: &mut Problems,
) -> Option<Guarantee> {
    let tenant = keys.tenant.get_ref();
    let tenants = hosts.iter().flat_map(|host| &host.policy.tenants);
    let known: BTreeSet<&str> = tenants.map(|tenant| tenant.name.as_str()).collect();
    if !known.contains(tenant.as_str()) {
        problems.add(keys.tenant.span(), unknown_name("tenant", tenant, known.iter().copied()));
        return None;
    }
    let first = all.iter().find(|other| other.tenant.get_ref() == tenant);
    if first.is_some_and(|first| first.tenant.span() != keys.tenant.span()) {
        problems.add(keys.tenant.span(), format!("there is another guarantee of tenant `{tenant}`"));
    }
    let delay = keys.delay.map_or(DELAY, |delay| delay.0);
    Some(Guarantee { tenant: tenant.clone(), min_rate: keys.min_rate.0, delay })
}
