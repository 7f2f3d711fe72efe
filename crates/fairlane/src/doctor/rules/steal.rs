//! Processor time that the hypervisor gave to other guests.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, percent};

/// Over 5% of the time of all processors.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let all = change.all_cpus();
    if all.steal <= 0.05 {
        return Vec::new();
    }
    let worst = change.cpus().iter().map(|cpu| cpu.steal).fold(0.0, f64::max);
    vec![Finding {
        cause: "steal",
        confidence: Confidence::Certain,
        limits: all.steal,
        seen: format!("{} of the processors' time stolen, {} on the worst processor", percent(all.steal), percent(worst)),
        why: "this guest was runnable while the hypervisor ran others, so packets and acknowledgements wait for its next turn"
            .to_owned(),
        change: vec![
            Remedy::by_hand("on the host: fewer virtual processors per core, or pin this guest to its own cores"),
            Remedy::by_hand("on a Xen host with the credit scheduler: a shorter slice, xl sched-credit -s -t 5"),
        ],
    }]
}
