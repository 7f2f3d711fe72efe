//! The table of tracked connections: a full one drops packets of new ones.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::snapshot::Snapshot;
use crate::doctor::view::{Change, lost_to_drops, percent};

const MOST: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// Any packet dropped, or the table over 75% full.
pub fn find(change: &Change) -> Vec<Finding> {
    let dropped = drops(change.after).saturating_sub(drops(change.before));
    let held = change.after.number("/proc/sys/net/netfilter/nf_conntrack_count").unwrap_or(0);
    let most = change.after.number(MOST).unwrap_or(0);
    let part = held as f64 / most.max(1) as f64;
    if dropped == 0 && (most == 0 || part <= 0.75) {
        return Vec::new();
    }
    let begun = change.grown("Tcp", "PassiveOpens").saturating_add(change.grown("Tcp", "ActiveOpens"));
    vec![Finding {
        cause: "conntrack",
        sure: if dropped > 0 { Sure::Certain } else { Sure::Possible },
        limits: if dropped > 0 { lost_to_drops(dropped, begun) } else { 0.4 * part.min(1.0) },
        seen: format!(
            "{held} of {most} places for tracked connections taken ({}), {dropped} packets dropped",
            percent(part)
        ),
        why:
            "the firewall keeps each connection for 120 s after its end by default, so that a place is needed for 120 \
              times the connections a second; without one the packet is dropped"
                .to_owned(),
        change: vec![
            Remedy::by_hand(
                "do not track the service's connections (a notrack rule in the raw table), if no rule needs it",
            ),
            Remedy::set("net.netfilter.nf_conntrack_max", most.saturating_mul(4).clamp(262_144, 1 << 24)),
        ],
    }]
}

/// Packets dropped on all processors: for want of a place, of memory, and entries thrown out early.
fn drops(snapshot: &Snapshot) -> u64 {
    let mut lines = snapshot.text("/proc/net/stat/nf_conntrack").lines();
    let names: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let places = ["drop", "early_drop"].map(|name| names.iter().position(|each| *each == name));
    let count = |line: &str, place: usize| u64::from_str_radix(line.split_whitespace().nth(place)?, 16).ok();
    lines.flat_map(|line| places.map(|place| count(line, place?))).flatten().fold(0, u64::saturating_add)
}
