//! Xen's netback: a rate set for a vif, and what it holds back.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::snapshot::NETBACK;
use crate::doctor::view::Change;

/// A ring that waits for its next credit: packets are there and may not go (netback.c, `tx_credit_exceeded`).
pub fn find(change: &Change) -> Vec<Finding> {
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
            _ => "a rate".to_owned(),
        };
        Some(Finding {
            cause: "vif-rate",
            sure: if both { Sure::Certain } else { Sure::Likely },
            limits: if both { 0.9 } else { 0.7 },
            seen: format!("{vif} has used up its credit and waits ({rate}), {}", if both { "both times" } else { "at the end" }),
            why: "netback takes no more of the guest's packets until the next period (50 ms unless set), so that each connection \
                  may wait as long"
                .to_owned(),
            change: vec![
                Remedy::by_hand("raise or take away rate= of the guest's vif in its xl configuration; rate=RATE@5ms waits less"),
                Remedy::by_hand("Fairlane shares a link without such steps: fairlane up POLICY"),
            ],
        })
    };
    rings.filter_map(finding).collect()
}

/// The number after a name, as netback's debugfs file writes it: `timer_pending: 1`, `credit: 10000`.
fn value(text: &str, name: &str) -> Option<u64> {
    let apart = |byte: char| byte.is_whitespace() || ",:=".contains(byte);
    let mut words = text.split(apart).filter(|word| !word.is_empty());
    words.find(|word| *word == name)?;
    words.next()?.parse().ok()
}
