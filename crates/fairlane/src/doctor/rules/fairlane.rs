//! Fairlane's own backend: its vifs' rates, drops, waits and states.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::snapshot;
use crate::doctor::view::{Change, percent};
use fairlane_engine::snapshot::{LinkState, Snapshot, State, VifState};
use fairlane_policy::units::format_rate;

/// A part of a rate above which the rate is taken for the limit.
const FULL: f64 = 0.95;

/// Vifs and links at their rate, vifs whose frames were dropped or wait for a port that takes none, ports that were disabled.
pub fn find(change: &Change) -> Vec<Finding> {
    let read = |snapshot: &snapshot::Snapshot| serde_json::from_str::<Snapshot>(snapshot.text(snapshot::FAIRLANE)).ok();
    let (Some(before), Some(after)) = (read(change.before), read(change.after)) else { return Vec::new() };
    let mut findings = Vec::new();
    for vif in &after.vifs {
        let earlier = before.vifs.iter().find(|each| each.name == vif.name);
        findings.extend(earlier.and_then(|earlier| capped(change, earlier, vif)));
        findings.extend(earlier.and_then(|earlier| dropping(earlier, vif)));
        findings.extend(earlier.and_then(|earlier| stalled(earlier, vif)));
        findings.extend(disabled(vif));
    }
    findings.extend(after.links.iter().filter_map(|link| full(change, link, &before, &after)));
    findings
}

/// Bits a second between two counts of bytes, with Ethernet's overhead left out.
fn rate(change: &Change, before: u64, after: u64) -> f64 {
    8.0 * change.rate(after.saturating_sub(before))
}

fn capped(change: &Change, before: &VifState, after: &VifState) -> Option<Finding> {
    let most = after.max_rate?;
    let rate = rate(change, before.port.sent_bytes, after.port.sent_bytes);
    let used = rate / most.max(1) as f64;
    (used > FULL).then(|| Finding {
        cause: "vif-rate",
        sure: Sure::Likely,
        limits: 0.9,
        seen: format!(
            "vif {} sends {:.1} Mbit/s, {} of its max_rate {}",
            after.name,
            rate / 1e6,
            percent(used),
            format_rate(most)
        ),
        why: "what is above it waits in the guest's ring".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the cap is not meant: fairlane ctl set {} max_rate=RATE",
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
        sure: Sure::Certain,
        limits: (lost as f64 / sent.max(1) as f64).max(0.01),
        seen: format!("of {sent} frames that vif {} sent, dropped: {}", after.name, reasons.join(", ")),
        why: "TCP takes each for congestion, or waits for it to be sent again".to_owned(),
        change: vec![Remedy::by_hand("fairlane ctl stats, and fairlane ctl capture VIF FILE to see the frames")],
    })
}

fn stalled(before: &VifState, after: &VifState) -> Option<Finding> {
    let port = after.waits_for.as_ref().filter(|port| before.waits_for.as_ref() == Some(port))?;
    (before.port.sent_frames == after.port.sent_frames).then(|| Finding {
        cause: "vif-stalled",
        sure: Sure::Likely,
        limits: 1.0,
        seen: format!("vif {} waits for {port} and sent no frame meanwhile", after.name),
        why: "what it waits for takes no frames: a guest whose ring is full, or an uplink that is down".to_owned(),
        change: vec![Remedy::by_hand(format!("look at {port}: fairlane ctl show, then its guest or its device"))],
    })
}

fn disabled(vif: &VifState) -> Option<Finding> {
    let State::Disabled { reason } = &vif.port.state else { return None };
    Some(Finding {
        cause: "vif-disabled",
        sure: Sure::Certain,
        limits: 1.0,
        seen: format!("vif {} is disabled: {reason}", vif.name),
        why: "its frontend broke a rule of the ring, so it carries nothing".to_owned(),
        change: vec![Remedy::by_hand("look at the guest's driver, then start its card again")],
    })
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
        sure: Sure::Likely,
        limits: 0.9,
        seen: format!(
            "link {} sends {:.1} Mbit/s, {} of its rate {}",
            link.name,
            rate / 1e6,
            percent(used),
            format_rate(most)
        ),
        why: "the vifs share the link by weight, and each waits for its turn".to_owned(),
        change: vec![Remedy::by_hand(format!(
            "if the rate is not that of the wire: fairlane ctl set {} rate=RATE; weights say who has more of it",
            link.name
        ))],
    })
}
