//! A queueing discipline that caps the rate.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::snapshot::{QDISCS, Snapshot};
use crate::doctor::view::{Change, percent};
use serde::Deserialize;

/// Disciplines that hold packets back to keep a rate or a delay.
const SHAPERS: [&str; 6] = ["tbf", "htb", "hfsc", "cbq", "netem", "cake"];

/// One of them, as `tc -j -s` writes it.
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
    /// Bytes a second.
    #[serde(default)]
    rate: Option<u64>,
}

/// A shaper that held packets back or dropped them.
pub fn find(change: &Change) -> Vec<Finding> {
    let before = read(change.before);
    read(change.after).iter().filter_map(|after| one(change, &before, after)).collect()
}

fn one(change: &Change, before: &[Qdisc], after: &Qdisc) -> Option<Finding> {
    let earlier = before.iter().find(|each| (&each.dev, &each.handle) == (&after.dev, &after.handle));
    let grown = |of: fn(&Qdisc) -> u64| of(after).saturating_sub(earlier.map_or(0, of));
    let (held, dropped, packets) =
        (grown(|each| each.overlimits), grown(|each| each.drops), grown(|each| each.packets));
    if !SHAPERS.contains(&after.kind.as_str()) || held.saturating_add(dropped) == 0 {
        return None;
    }
    let rate = 8.0 * change.rate(grown(|each| each.bytes));
    let used = after.options.rate.map(|limit| rate / (8.0 * limit.max(1) as f64));
    let part = held as f64 / held.saturating_add(packets).max(1) as f64;
    let limit = used.map_or(String::new(), |used| format!(", {} of its rate", percent(used)));
    Some(Finding {
        cause: "rate-cap",
        sure: if dropped > 0 || after.backlog > 0 || used.is_some_and(|used| used > 0.8) {
            Sure::Certain
        } else {
            Sure::Likely
        },
        limits: used.map_or(part, |used| used.min(1.0)),
        seen: format!(
            "{} on {} held packets back {held} times and dropped {dropped}, {} bytes wait; it passed {:.1} Mbit/s{limit}",
            after.kind,
            after.dev,
            after.backlog,
            rate / 1e6
        ),
        why: "the discipline keeps a rate set by an administrator: what is above it waits, then is lost".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the cap is not meant: tc qdisc show dev {0}, then change its rate, or tc qdisc del dev {0} root",
            after.dev
        ))],
    })
}

fn read(snapshot: &Snapshot) -> Vec<Qdisc> {
    serde_json::from_str(snapshot.text(QDISCS)).unwrap_or_default()
}
