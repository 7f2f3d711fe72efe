//! A KVM host whose guests exit to the hypervisor for each access to an emulated card.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::Change;

const KVM: &str = "/sys/kernel/debug/kvm/";

/// Over 10,000 exits per second to emulated devices, and over a fifth of all exits.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let grown = |name: &str| change.number_grown(&format!("{KVM}{name}"));
    let (all, halts) = (grown("exits"), grown("halt_exits"));
    let devices = grown("io_exits").saturating_add(grown("mmio_exits"));
    let rate = change.rate(devices);
    let fraction = devices as f64 / all.max(devices).max(1) as f64;
    if rate <= 10_000.0 || fraction <= 0.2 {
        return Vec::new();
    }
    vec![Finding {
        cause: "exits",
        confidence: Confidence::Possible,
        limits: fraction,
        seen: format!(
            "{rate:.0} exits/s to devices, of {:.0} exits/s in total ({:.0} to halt)",
            change.rate(all),
            change.rate(halts)
        ),
        why: "an emulated card (e1000, rtl8139) causes several exits to the emulator per packet; a paravirtual one only notifies \
              the other side"
            .to_owned(),
        change: vec![Remedy::by_hand(
            "use virtio-net with vhost-net or vhost-user for the guests' cards; set ioeventfd=on if it is off",
        )],
    }]
}
