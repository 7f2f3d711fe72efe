//! The processors: one that has all soft interrupts, or all of them full.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, Cpu, Thread, percent};

/// One processor with over three times its share of soft interrupts, or all above 95% busy.
pub fn find(change: &Change) -> Vec<Finding> {
    let cpus = change.cpus(false);
    hot(&cpus).into_iter().chain(full(change, &cpus)).collect()
}

fn hot(cpus: &[Cpu]) -> Option<Finding> {
    let (place, hottest) = cpus.iter().enumerate().max_by(|(_, a), (_, b)| a.softirq.total_cmp(&b.softirq))?;
    let mean = cpus.iter().map(|cpu| cpu.softirq).sum::<f64>() / cpus.len() as f64;
    // With few processors three times the mean is out of reach: there it counts to have nearly all.
    let bound = 3.0_f64.min(0.9 * cpus.len() as f64);
    if cpus.len() < 2 || hottest.busy < 0.8 || hottest.softirq < 0.3 || hottest.softirq <= bound * mean {
        return None;
    }
    Some(Finding {
        cause: "hot-core",
        sure: Sure::Likely,
        limits: hottest.softirq,
        seen: format!(
            "processor {place} is {} busy, {} with soft interrupts; the mean of all is {}",
            percent(hottest.busy),
            percent(hottest.softirq),
            percent(mean)
        ),
        why: "all packets are received on one processor, whose speed is the limit".to_owned(),
        change: vec![
            Remedy::by_hand("more queues for the card (ethtool -L), their interrupts spread (irqbalance)"),
            Remedy::by_hand(
                "a card of one queue: RPS, echo MASK > /sys/class/net/DEVICE/queues/rx-0/rps_cpus (scaling.rst)",
            ),
        ],
    })
}

/// A machine that is full limits, but that is what a load is for: whatever is narrower stands before it.
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
        sure: Sure::Likely,
        limits: 0.2,
        seen: format!("all {} processors are {} busy; most of it: {}", cpus.len(), percent(busy), most.join(", ")),
        why: "there is no processor time left: more load only makes requests wait".to_owned(),
        change: vec![Remedy::by_hand("more processors, fewer instructions a request, or less beside the service")],
    })
}
