//! A case of an experiment: a topology, a procedure, and background load.

use serde::Deserialize;

use super::fault::{Fault, guest_fault};
use super::procedure::{Finished, Procedure};
use super::record::Record;
use crate::{Join, Topology};

/// The most CPUs a machine of the lab has: 0 to 7.
pub const MOST_CPUS: usize = 8;

/// One of the cases an experiment compares.
#[derive(Debug)]
pub struct Case {
    /// Its name, the prefix of its metrics; empty if there is only one case.
    pub name: String,
    /// The machine.
    pub topology: Topology,
    /// The measurement.
    pub procedure: Box<dyn Procedure>,
    /// The load during the measurement.
    pub background: Background,
}

/// Load that keeps guests' CPUs busy during a measurement.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// The guests it runs on, counted from 1.
    #[serde(default)]
    pub guests: Vec<usize>,
    /// The guests that have their CPU for one slice of three, counted from 1. Where the lab can suspend guests, it does so in turn and
    /// runs no load; elsewhere the load has to keep their CPU busy.
    #[serde(default)]
    pub waits: Vec<usize>,
    /// The share of a CPU that each guest's load uses if it can, 0 to 1.
    #[serde(default)]
    pub share: f64,
}

impl Case {
    /// The prefix of its metrics' names.
    pub fn prefix(&self) -> String {
        if self.name.is_empty() { String::new() } else { format!("{}/", self.name) }
    }

    /// The case with what was measured.
    pub(super) fn finished(&self, record: Record) -> Finished<'_> {
        Finished { name: &self.name, prefix: self.prefix(), topology: &self.topology, record }
    }
}

/// The names of all metrics of the result.
pub(super) fn all_metrics(cases: &[Case]) -> Vec<String> {
    let own = cases.iter().flat_map(|case| {
        let prefix = case.prefix();
        case.procedure.metrics(&case.topology).into_iter().map(move |name| format!("{prefix}{name}"))
    });
    let named: Vec<_> = cases.iter().map(|case| (case.name.as_str(), &case.topology)).collect();
    let joint = cases.first().map_or(Vec::new(), |case| case.procedure.comparisons(&named));
    own.chain(joint).collect()
}

/// What is invalid about the CPUs of guests, given in order.
pub(super) fn cpus_faults(guests: &[Vec<usize>]) -> Vec<String> {
    (1..).zip(guests).flat_map(|(number, cpus)| place_faults(&format!("guest {number}"), cpus)).collect()
}

/// What is invalid about the CPUs of one of a machine's systems.
fn place_faults(who: &str, cpus: &[usize]) -> Vec<String> {
    let none = cpus.is_empty().then(|| format!("{who} has no CPU: a list such as [0] is needed"));
    let absent = |cpu| format!("{who} is on CPU {cpu}, which does not exist: CPUs are 0 to {}", MOST_CPUS - 1);
    none.into_iter().chain(cpus.iter().filter(|cpu| **cpu >= MOST_CPUS).map(absent)).collect()
}

/// What is invalid about a topology.
pub(super) fn topology_faults(topology: &Topology) -> Vec<Fault> {
    let mut faults = Vec::new();
    let guests = &topology.guests;
    if guests.len() > 16 {
        faults.push(("guests", format!("there are {} guests: a machine of the lab has 16 at most", guests.len())));
    }
    let places =
        guests.iter().enumerate().map(|(index, guest)| (format!("guest {}", index + 1), "guests", &guest.cpus));
    for (who, key, cpus) in places.chain([("the host".to_owned(), "host_cpus", &topology.host_cpus)]) {
        faults.extend(place_faults(&who, cpus).into_iter().map(|message| (key, message)));
    }
    let of_guests =
        guests.iter().cloned().flat_map(|mut guest| guest.rates().map(|(key, rate)| ("guests", key, *rate)));
    let rates = of_guests.chain([("link", "link", topology.link), ("rx_link", "rx_link", topology.rx_link)]);
    for (place, key, rate) in rates {
        if let Some(rate) = rate.filter(|rate| !(rate.is_finite() && *rate >= 1e4)) {
            faults.push((place, format!("{key} must be at least 1e4 bits per second, such as 100e6, not {rate}")));
        }
    }
    for weight in guests.iter().filter_map(|guest| guest.weight).filter(|weight| !(1..=65_535).contains(weight)) {
        faults.push(("guests", format!("weight must be 1 to 65535, not {weight}")));
    }
    let shares = guests.iter().filter_map(|guest| Some(("guests", guest.share?)));
    for (key, share) in shares.chain(topology.tenants.iter().map(|tenant| ("tenants", tenant.share))) {
        if !(1..=10_000).contains(&share) {
            faults.push((key, format!("share must be 1 to 10000, not {share}")));
        }
    }
    for tenant in guests.iter().filter_map(|guest| guest.tenant.as_ref()) {
        if topology.tenants.iter().all(|known| known.name != *tenant) {
            faults.push(("guests", format!("no tenant is named `{tenant}` in tenants")));
        }
    }
    if let Some(slice) = topology.slice_ms.filter(|slice| !(1..=1000).contains(slice)) {
        faults.push(("slice_ms", format!("slice_ms must be 1 to 1000, as Xen takes it, not {slice}")));
    }
    let is_name = |name: &str| {
        name.split('.').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
    };
    for name in topology.sysctls.keys().filter(|name| !is_name(name)) {
        faults.push(("sysctls", format!("a sysctl is named like net.core.somaxconn, not `{}`", name.escape_debug())));
    }
    if topology.join == Join::Plain && guests.len() > 1 {
        faults.push((
            "join",
            format!("join is plain, which carries one guest's card only, but there are {} guests", guests.len()),
        ));
    }
    faults
}

/// What is invalid about background load.
pub(super) fn background_faults(background: &Background, topology: &Topology) -> Vec<Fault> {
    let mut faults: Vec<Fault> =
        background.guests.iter().filter_map(|guest| guest_fault("guests", *guest, topology)).collect();
    faults.extend(background.waits.iter().filter_map(|guest| guest_fault("waits", *guest, topology)));
    if !(0.0..=1.0).contains(&background.share) {
        faults.push(("share", format!("share must be 0 to 1, such as 0.6, not {}", background.share)));
    }
    faults
}
