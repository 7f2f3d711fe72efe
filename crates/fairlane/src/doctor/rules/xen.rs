//! The processors of a Xen host: too few for dom0, or a scheduler with a long time slice.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::{Snapshot, XEN_CREDIT, XEN_DOMAINS, XEN_INFO};
use crate::doctor::view::{Change, percent};
use std::collections::BTreeMap;

/// dom0 above 95% of its virtual processors, or guests that share processors in time slices of 30 ms or more.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let (before, after) = (domains(change.before), domains(change.after));
    let busy = |(name, (cpus, seconds)): (&String, &(u64, f64))| {
        let used = (seconds - before.get(name)?.1) / change.seconds;
        used.is_finite().then(|| (name.clone(), *cpus, used))
    };
    let busy: Vec<_> = after.iter().filter_map(busy).collect();
    busy.iter().filter_map(dom0).chain(slice(change, &busy)).collect()
}

/// A domain, its number of virtual processors, and how many of them it used.
type Busy = (String, u64, f64);

fn dom0((name, cpus, used): &Busy) -> Option<Finding> {
    let fraction = used / (*cpus).max(1) as f64;
    if name != "Domain-0" || fraction <= 0.95 {
        return None;
    }
    Some(Finding {
        cause: "dom0",
        confidence: Confidence::Likely,
        limits: 0.9,
        seen: format!("dom0 used {} of its {cpus} virtual processors", percent(fraction)),
        why: "every packet of every guest passes through netback in dom0".to_owned(),
        change: vec![
            Remedy::by_hand(
                "give dom0 more processors of its own: dom0_max_vcpus=N dom0_vcpus_pin on the hypervisor's command line",
            ),
            Remedy::by_hand("a driver domain for the network, with its own processors"),
        ],
    })
}

fn slice(change: &Change, busy: &[Busy]) -> Option<Finding> {
    let credit = change.after.value(XEN_INFO, "xen_scheduler")? == "credit";
    let (_, rest) = change.after.text(XEN_CREDIT).split_once("tslice=")?;
    let slice: u64 = rest.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok()?;
    let physical: u64 = change.after.value(XEN_INFO, "nr_cpus")?.parse().ok()?;
    let used: f64 = busy.iter().map(|(.., used)| used).sum();
    let share = used / physical.max(1) as f64;
    let virtual_cpus: u64 = busy.iter().map(|(_, cpus, _)| *cpus).fold(0, u64::saturating_add);
    if !credit || slice < 30 || virtual_cpus <= physical {
        return None;
    }
    Some(Finding {
        cause: "slice",
        confidence: if share > 0.7 { Confidence::Likely } else { Confidence::Possible },
        limits: share.clamp(0.05, 0.8),
        seen: format!(
            "credit scheduler with a time slice of {slice} ms, {virtual_cpus} virtual processors on {physical}, {} used",
            percent(share)
        ),
        why: "a guest that wakes up may wait one slice for each guest that runs before it, which lengthens round trips"
            .to_owned(),
        change: vec![
            Remedy::by_hand("xl sched-credit -s -t 5"),
            Remedy::by_hand(
                "pin guests that answer requests to their own processors: cpus= in the xl configuration, or xl vcpu-pin",
            ),
            Remedy::by_hand("Fairlane's early_ack hides these waits from senders of bulk data"),
        ],
    })
}

/// Domains by name, with virtual processors and seconds of processor time (`Name ID Mem VCPUs State Time(s)`).
fn domains(snapshot: &Snapshot) -> BTreeMap<String, (u64, f64)> {
    let line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, _, _, cpus, .., time] = words.as_slice() else { return None };
        Some(((*name).to_owned(), (cpus.parse().ok()?, time.parse().ok()?)))
    };
    snapshot.text(XEN_DOMAINS).lines().skip(1).filter_map(line).collect()
}
