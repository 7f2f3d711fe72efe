//! The processors: a single one with all interrupts, or all of them busy.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, Cpu, Thread, percent};

/// One processor with over three times its share of interrupts, including soft ones, or all above 95% busy.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let cpus = change.cpus();
    hot(&cpus).into_iter().chain(full(change, &cpus)).collect()
}

fn hot(cpus: &[Cpu]) -> Option<Finding> {
    let (number, hottest) = cpus.iter().enumerate().max_by(|(_, a), (_, b)| a.interrupts.total_cmp(&b.interrupts))?;
    let mean = cpus.iter().map(|cpu| cpu.interrupts).sum::<f64>() / cpus.len() as f64;
    // With few processors, three times the mean cannot be reached: there, nearly all interrupts on one count.
    let bound = 3.0_f64.min(0.9 * cpus.len() as f64);
    if cpus.len() < 2 || hottest.busy < 0.8 || hottest.interrupts < 0.3 || hottest.interrupts <= bound * mean {
        return None;
    }
    Some(Finding {
        cause: "hot-core",
        confidence: Confidence::Likely,
        limits: hottest.interrupts,
        seen: format!(
            "processor {number} is {} busy, {} with interrupts; the mean of all is {}",
            percent(hottest.busy),
            percent(hottest.interrupts),
            percent(mean)
        ),
        why: "all packets are received on one processor, so its speed is the limit".to_owned(),
        change: vec![
            Remedy::by_hand("use more queues of the card (ethtool -L), and spread their interrupts (irqbalance)"),
            Remedy::by_hand(
                "if the card has one queue: RPS, echo MASK > /sys/class/net/DEVICE/queues/rx-0/rps_cpus (scaling.rst)",
            ),
        ],
    })
}

/// A busy machine is a limit, but also the aim of a load, so more specific causes come first.
fn full(change: &Change, cpus: &[Cpu]) -> Option<Finding> {
    let busy = cpus.iter().map(|cpu| cpu.busy).sum::<f64>() / cpus.len().max(1) as f64;
    if busy <= 0.95 {
        return None;
    }
    let mut threads = change.threads();
    threads.sort_by(|a, b| b.running.total_cmp(&a.running));
    let named = |thread: &Thread| format!("{} ({}, {})", thread.name, thread.process, percent(thread.running));
    let most: Vec<_> = threads.iter().take(3).filter(|thread| thread.running > 0.0).map(named).collect();
    Some(Finding {
        cause: "processors",
        confidence: Confidence::Likely,
        limits: 0.2,
        seen: format!("all {} processors are {} busy, mostly with: {}", cpus.len(), percent(busy), most.join(", ")),
        why: "there is no processor time left, so more load only makes requests wait".to_owned(),
        change: vec![Remedy::by_hand(
            "more processors, fewer instructions per request, or less other work on this machine",
        )],
    })
}
