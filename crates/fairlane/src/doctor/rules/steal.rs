//! Processor time that the hypervisor gave to others.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, percent};

/// Over 5% of all processors' time.
pub fn find(change: &Change) -> Vec<Finding> {
    let all = change.cpus(true).first().copied().unwrap_or_default();
    if all.steal <= 0.05 {
        return Vec::new();
    }
    let worst = change.cpus(false).iter().map(|cpu| cpu.steal).fold(0.0, f64::max);
    vec![Finding {
        cause: "steal",
        sure: Sure::Certain,
        limits: all.steal,
        seen: format!("{} of the processors' time stolen, {} of the worst one's", percent(all.steal), percent(worst)),
        why: "this guest had work and the hypervisor ran others: packets and acknowledgements wait for its next turn"
            .to_owned(),
        change: vec![
            Remedy::by_hand("on the host: fewer virtual processors a core, or this guest's pinned to cores of its own"),
            Remedy::by_hand("on a Xen host with the credit scheduler: xl sched-credit -s -t 5, a shorter slice"),
        ],
    }]
}
