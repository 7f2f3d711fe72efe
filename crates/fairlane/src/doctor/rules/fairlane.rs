//! Fairlane's own backend: the rates, drops, waits and states of its vifs.

use super::unserved;
use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot;
use crate::doctor::view::{Change, percent};
use fairlane_core::ack::STALL;
use fairlane_engine::Waiting;
use fairlane_engine::reading::Reading;
use fairlane_engine::snapshot::{LinkState, Snapshot, State, VifState};
use fairlane_policy::units::format_rate;
use std::time::Duration;

/// Fraction of a rate limit above which it counts as reached.
pub(super) const FULL: f64 = 0.95;

/// What counts as a long wait: early ack's bound ([`STALL`]), rounded up to a bucket of the histogram.
const LONG: Duration = Duration::from_nanos(STALL.0.next_power_of_two());

/// Part of the frames for a guest that waited for its CPU from which on that counts.
const WAITED: f64 = 0.001;

/// Vifs and links at their rate limit, vifs with dropped frames, vifs that wait for a stalled port or are not served, disabled vifs,
/// and guests that wait for their CPU.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let read = |snapshot: &snapshot::Snapshot| serde_json::from_str::<Snapshot>(snapshot.text(snapshot::FAIRLANE)).ok();
    let (Some(before), Some(after)) = (read(change.before), read(change.after)) else { return Vec::new() };
    let reading = Reading::between(&before, &after);
    let mut findings = Vec::new();
    for (index, vif) in after.vifs.iter().enumerate() {
        let earlier = before.vifs.iter().find(|each| each.name == vif.name);
        findings.extend(earlier.and_then(|earlier| capped(change, earlier, vif)));
        findings.extend(earlier.and_then(|earlier| dropping(earlier, vif)));
        let unserved = || reading.as_ref().and_then(|reading| unserved::find(reading, reading.vifs.get(index)?));
        findings.extend(earlier.and_then(|earlier| stalled(earlier, vif)).or_else(unserved));
        findings.extend(disabled(vif));
        findings.extend(earlier.and_then(|earlier| waiting(earlier, vif)));
    }
    findings.extend(after.links.iter().filter_map(|link| full(change, link, &before, &after)));
    findings
}

/// Bits per second between two counts of bytes, without Ethernet's overhead.
fn rate(change: &Change, before: u64, after: u64) -> f64 {
    8.0 * change.rate(after.saturating_sub(before))
}

fn capped(change: &Change, before: &VifState, after: &VifState) -> Option<Finding> {
    let most = after.max_rate?;
    let rate = rate(change, before.port.sent_bytes, after.port.sent_bytes);
    let used = rate / most.max(1) as f64;
    (used > FULL).then(|| Finding {
        cause: "vif-rate",
        confidence: Confidence::Likely,
        limits: 0.9,
        seen: format!(
            "vif {} sends {:.1} Mbit/s, {} of its max_rate {}",
            after.name,
            rate / 1e6,
            percent(used),
            format_rate(most)
        ),
        why: "frames above the limit wait in the guest's ring".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the limit is not intended: fairlane ctl set {} max_rate=RATE",
            after.name
        ))],
    })
}

fn dropping(before: &VifState, after: &VifState) -> Option<Finding> {
    let grown = |(reason, count): (&String, &u64)| {
        let grown = count.saturating_sub(before.port.drops.get(reason).copied().unwrap_or(0));
        (grown > 0).then(|| (grown, reason.clone()))
    };
    let drops: Vec<_> = after.port.drops.iter().filter_map(grown).collect();
    if drops.is_empty() {
        return None;
    }
    let lost = drops.iter().map(|(count, _)| *count).fold(0, u64::saturating_add);
    let sent = after.port.sent_frames.saturating_sub(before.port.sent_frames).max(lost);
    let reasons: Vec<_> = drops.iter().map(|(count, reason)| format!("{count} {reason}")).collect();
    Some(Finding {
        cause: "frames-dropped",
        confidence: Confidence::Certain,
        limits: (lost as f64 / sent.max(1) as f64).max(0.01),
        seen: format!("of {sent} frames that vif {} sent, dropped: {}", after.name, reasons.join(", ")),
        why: "TCP treats each drop as congestion, or waits for a retransmission".to_owned(),
        change: vec![Remedy::by_hand("fairlane ctl stats, and fairlane ctl capture VIF FILE to see the frames")],
    })
}

fn stalled(before: &VifState, after: &VifState) -> Option<Finding> {
    let port = after.waits_for.as_ref().filter(|port| before.waits_for.as_ref() == Some(port))?;
    (before.port.sent_frames == after.port.sent_frames).then(|| Finding {
        cause: "vif-stalled",
        confidence: Confidence::Likely,
        limits: 1.0,
        seen: format!("vif {} waits for {port} and sent no frame meanwhile", after.name),
        why: "the port it waits for accepts no frames: a guest whose ring is full, or an uplink that is down"
            .to_owned(),
        change: vec![Remedy::by_hand(format!("check {port}: fairlane ctl show, then its guest or its device"))],
    })
}

fn disabled(vif: &VifState) -> Option<Finding> {
    let State::Disabled { reason } = &vif.port.state else { return None };
    Some(Finding {
        cause: "vif-disabled",
        confidence: Confidence::Certain,
        limits: 1.0,
        seen: format!("vif {} is disabled: {reason}", vif.name),
        why: "its frontend violated the ring protocol, so the vif carries no frames".to_owned(),
        change: vec![Remedy::by_hand("check the guest's driver, then restart its network card")],
    })
}

/// A guest whose ring stays full for as long as early ack takes for a wait for its CPU.
fn waiting(before: &VifState, after: &VifState) -> Option<Finding> {
    let waits = after.receive.waiting.since(&before.receive.waiting);
    let waited = waited(&waits);
    let part = waited as f64 / waits.buckets.iter().sum::<u64>().max(1) as f64;
    let longest = Duration::from_nanos(waits.quantile(1.0)?);
    // With a rate, frames wait for it.
    let is_off = after.early_ack.is_none() && after.receive.max_rate.is_none();
    (is_off && part >= WAITED).then(|| Finding {
        cause: "guest-waits",
        confidence: Confidence::Possible,
        limits: part,
        seen: format!(
            "guest {} left {waited} frames, {} of those for it, waiting for {} ms or longer in front of its full ring, at most {} ms",
            after.name,
            percent(part),
            LONG.as_millis(),
            longest.as_millis(),
        ),
        why: "it probably waits for a CPU, and TCP's senders outside wait with it".to_owned(),
        change: vec![
            Remedy::by_hand("give it more of a CPU, or one of its own"),
            Remedy::by_hand(format!(
                "if it receives over connections that stay open: fairlane ctl set {} early_ack=true",
                after.name
            )),
        ],
    })
}

/// How many of these waits were long.
fn waited(waits: &Waiting) -> u64 {
    // The first bucket that has no shorter ones.
    let first = u64::BITS - (LONG.as_nanos() as u64).leading_zeros();
    waits.buckets.iter().skip(first as usize).sum()
}

fn full(change: &Change, link: &LinkState, before: &Snapshot, after: &Snapshot) -> Option<Finding> {
    let most = link.rate?;
    let sent = |snapshot: &Snapshot| {
        let ours = snapshot.links.iter().find(|each| each.name == link.name)?.uplink.as_ref()?;
        Some(ours.received_bytes)
    };
    let rate = rate(change, sent(before)?, sent(after)?);
    let used = rate / most.max(1) as f64;
    (used > FULL).then(|| Finding {
        cause: "link-rate",
        confidence: Confidence::Likely,
        limits: 0.9,
        seen: format!(
            "link {} sends {:.1} Mbit/s, {} of its rate {}",
            link.name,
            rate / 1e6,
            percent(used),
            format_rate(most)
        ),
        why: "the vifs share the link by weight, and their frames wait".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the rate is not that of the wire: fairlane ctl set {} rate=RATE; weights decide each vif's share",
            link.name
        ))],
    })
}
