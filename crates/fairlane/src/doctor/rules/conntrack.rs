//! The connection tracking table: if it is full, packets of new connections are dropped.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::Snapshot;
use crate::doctor::view::{Change, lost_to_drops, percent};

const MOST: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Any packet dropped, or the table over 75% full.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let dropped = drops(change.after).saturating_sub(drops(change.before));
    let held = change.after.number("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(0);
    // 0 is no limit.
    let limit = change.after.number(MOST).filter(|most| *most > 0);
    let most = limit.unwrap_or(0);
    let fraction = held as f64 / most.max(1) as f64;
    if dropped == 0 && (most == 0 || fraction <= 0.75) {
        return Vec::new();
    }
    let begun = change.grown("Tcp", "PassiveOpens").saturating_add(change.grown("Tcp", "ActiveOpens"));
    vec![Finding {
        cause: "conntrack",
        confidence: if dropped > 0 { Confidence::Certain } else { Confidence::Possible },
        limits: if dropped > 0 { lost_to_drops(dropped, begun) } else { 0.4 * fraction.min(1.0) },
        seen: format!(
            "{held} of {most} entries of the connection tracking table in use ({}), {dropped} packets dropped",
            percent(fraction)
        ),
        why:
            "by default, the firewall keeps an entry for 120 s after a connection ends, so the table needs 120 times as many entries \
              as connections are opened per second; without a free entry the packet is dropped"
                .to_owned(),
        change: [Remedy::by_hand(
            "do not track the service's connections (a notrack rule in the raw table), if no rule needs it",
        )]
        .into_iter()
        .chain(Remedy::enlarge("net.netfilter.nf_conntrack_max", limit, 4, 262_144..=1 << 24))
        .collect(),
    }]
}

/// Packets dropped on all processors for lack of an entry or memory, and entries evicted early.
fn drops(snapshot: &Snapshot) -> u64 {
    let mut lines = snapshot.text("/proc/net/stat/nf_conntrack").lines();
    let names: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let columns = ["drop", "early_drop"].map(|name| names.iter().position(|each| *each == name));
    let count = |line: &str, column: usize| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
    lines.flat_map(|line| columns.map(|column| count(line, column?))).flatten().fold(0, u64::saturating_add)
}
