//! The kernel's receive path: packets dropped at a full backlog, and polling rounds cut short.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::Snapshot;
use crate::doctor::view::{Change, percent};

/// Packets, drops and squeezes of a processor.
type Counts = [u64; 3];

/// Any drop (certain), or more than one round per second cut short (possible); occasional ones are normal.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let before = read(change.before);
    let grown = |(cpu, after): (usize, Counts)| {
        let earlier = before.get(cpu).copied().unwrap_or_default();
        // The kernel's counters have 32 bits and wrap around.
        std::array::from_fn(|column| u64::from((after[column] as u32).wrapping_sub(earlier[column] as u32)))
    };
    let cpus: Vec<Counts> = read(change.after).into_iter().enumerate().map(grown).collect();
    let sum = |column: usize| cpus.iter().map(|counts| counts[column]).sum::<u64>();
    let [packets, drops, squeezes] = [0, 1, 2].map(sum);
    let worst =
        |column: usize| cpus.iter().enumerate().max_by_key(|(_, counts)| counts[column]).map_or(0, |(cpu, _)| cpu);
    let double = |key: &str, least: u64| {
        let name = format!("/proc/sys/{}", key.replace('.', "/"));
        Remedy::enlarge(key, change.after.number(&name), 2, least..=i32::MAX as u64)
    };
    let spread = Remedy::by_hand("spread receiving over processors: more queues (ethtool -L), or RPS (scaling.rst)");
    let mut findings = Vec::new();
    if drops > 0 {
        let lost = drops as f64 / packets.max(drops) as f64;
        findings.push(Finding {
            cause: "backlog",
            confidence: Confidence::Certain,
            limits: lost.max(0.05),
            seen: format!(
                "{drops} packets dropped ({}) at a full backlog, most on processor {}",
                percent(lost),
                worst(1)
            ),
            why: "a processor was given packets (by loopback, veth, RPS) faster than its soft interrupt processed them"
                .to_owned(),
            change: double("net.core.netdev_max_backlog", 10_000).into_iter().chain([spread.clone()]).collect(),
        });
    }
    if change.rate(squeezes) > 1.0 {
        let fraction = squeezes as f64 / packets.max(squeezes) as f64;
        findings.push(Finding {
            cause: "budget",
            confidence: Confidence::Possible,
            limits: fraction.min(0.2),
            seen: format!("{squeezes} polling rounds ended with work left, most on processor {}", worst(2)),
            why:
                "the soft interrupt used up its budget of packets or time (net.core.netdev_budget), and the rest waited"
                    .to_owned(),
            change: double("net.core.netdev_budget", 600).into_iter().chain([spread]).collect(),
        });
    }
    findings
}

/// One line per processor, in hexadecimal; the first three columns (net/core/net-procfs.c, `softnet_seq_show`).
fn read(snapshot: &Snapshot) -> Vec<Counts> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(|word| u64::from_str_radix(word, 16).ok());
        Some([words.next()??, words.next()??, words.next()??])
    };
    snapshot.text("/proc/net/softnet_stat").lines().filter_map(line).collect()
}
