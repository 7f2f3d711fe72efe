//! A queueing discipline that limits the rate.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::{QDISCS, Snapshot};
use crate::doctor::view::{Change, percent};
use serde::Deserialize;

/// Disciplines that delay packets to enforce a rate or a delay.
const SHAPERS: [&str; 6] = ["tbf", "htb", "hfsc", "cbq", "netem", "cake"];

/// A queueing discipline in the output of `tc -j -s`.
#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    #[serde(default)]
    handle: String,
    #[serde(default)]
    options: Options,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    packets: u64,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    overlimits: u64,
    #[serde(default)]
    backlog: u64,
}

#[derive(Default, Deserialize)]
struct Options {
    /// Bytes per second.
    #[serde(default)]
    rate: Option<u64>,
}

/// A shaper that delayed or dropped packets.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let before = read(change.before);
    read(change.after).iter().filter_map(|after| finding(change, &before, after)).collect()
}

fn finding(change: &Change, before: &[Qdisc], after: &Qdisc) -> Option<Finding> {
    let earlier = before.iter().find(|each| (&each.dev, &each.handle) == (&after.dev, &after.handle));
    let grown = |of: fn(&Qdisc) -> u64| of(after).saturating_sub(earlier.map_or(0, of));
    let (held, dropped, packets) =
        (grown(|each| each.overlimits), grown(|each| each.drops), grown(|each| each.packets));
    if !SHAPERS.contains(&after.kind.as_str()) || held.saturating_add(dropped) == 0 {
        return None;
    }
    let rate = 8.0 * change.rate(grown(|each| each.bytes));
    let used = after.options.rate.map(|limit| rate / (8.0 * limit.max(1) as f64));
    let fraction = held as f64 / held.saturating_add(packets).max(1) as f64;
    let limit = used.map_or(String::new(), |used| format!(", {} of its rate", percent(used)));
    Some(Finding {
        cause: "rate-cap",
        confidence: if dropped > 0 || after.backlog > 0 || used.is_some_and(|used| used > 0.8) {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        limits: used.map_or(fraction, |used| used.min(1.0)),
        seen: format!(
            "{} on {} held packets back {held} times and dropped {dropped}, {} bytes wait; it passed {:.1} Mbit/s{limit}",
            after.kind,
            after.dev,
            after.backlog,
            rate / 1e6
        ),
        why: "the discipline enforces an administrator's rate: packets above it wait, and are dropped if the queue is full".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the limit is not intended: tc qdisc show dev {0}, then change its rate, or tc qdisc del dev {0} root",
            after.dev
        ))],
    })
}

fn read(snapshot: &Snapshot) -> Vec<Qdisc> {
    serde_json::from_str(snapshot.text(QDISCS)).unwrap_or_default()
}
