//! Xen's netback: a vif that waits because of its rate limit.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::NETBACK;
use crate::doctor::view::Change;

/// A ring with packets that must wait for the next credit (netback.c, `tx_credit_exceeded`).
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let rings = change.after.below(NETBACK).filter_map(|(name, text)| Some((name.strip_prefix('/')?, text)));
    let finding = |(name, text): (&str, &str)| {
        if value(text, "timer_pending")? == 0 {
            return None;
        }
        let earlier = change.before.text(&format!("{NETBACK}/{name}"));
        let both = value(earlier, "timer_pending").is_some_and(|pending| pending > 0);
        let vif = name.split('/').next()?;
        let rate = match (value(text, "credit"), value(text, "usec")) {
            (Some(bytes), Some(time)) if time > 0 => format!("{:.1} Mbit/s", bytes as f64 * 8.0 / time as f64),
            _ => "unknown rate".to_owned(),
        };
        Some(Finding {
            cause: "vif-rate",
            confidence: if both { Confidence::Certain } else { Confidence::Likely },
            limits: if both { 0.9 } else { 0.7 },
            seen: format!("{vif} has used up its credit and waits ({rate}), {}", if both { "both times" } else { "at the end" }),
            why: "netback forwards no more packets of the guest until the next period (50 ms by default), so each connection \
                  may wait that long"
                .to_owned(),
            change: vec![
                Remedy::by_hand("raise or remove rate= of the guest's vif in its xl configuration; rate=RATE@5ms shortens the waits"),
                Remedy::by_hand("Fairlane shares a link without such periods: fairlane up POLICY"),
            ],
        })
    };
    rings.filter_map(finding).collect()
}

/// The number after a name, as netback's debugfs file writes it: `timer_pending: 1`, `credit: 10000`.
fn value(text: &str, name: &str) -> Option<u64> {
    let separator = |byte: char| byte.is_whitespace() || ",:=".contains(byte);
    let mut words = text.split(separator).filter(|word| !word.is_empty());
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}
