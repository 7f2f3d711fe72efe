//! A KVM host: guests that leave their processor for each access to a card.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::Change;

const KVM: &str = "/sys/kernel/debug/kvm/";

/// Exits to a program's device above 10,000 a second and above a fifth of all.
pub fn find(change: &Change) -> Vec<Finding> {
    let grown = |name: &str| change.number_grown(&format!("{KVM}{name}"));
    let (all, halts) = (grown("exits"), grown("halt_exits"));
    let devices = grown("io_exits").saturating_add(grown("mmio_exits"));
    let rate = change.rate(devices);
    let part = devices as f64 / all.max(devices).max(1) as f64;
    if rate <= 10_000.0 || part <= 0.2 {
        return Vec::new();
    }
    vec![Finding {
        cause: "exits",
        sure: Sure::Possible,
        limits: part,
        seen: format!(
            "{rate:.0} exits/s to devices, of {:.0} in all ({:.0} to sleep)",
            change.rate(all),
            change.rate(halts)
        ),
        why: "an emulated card (e1000, rtl8139) leaves the guest for the emulator several times a packet; a paravirtual one only \
              to wake the other side"
            .to_owned(),
        change: vec![Remedy::by_hand(
            "virtio-net with vhost-net or vhost-user for the guests' cards; ioeventfd=on where it was turned off",
        )],
    }]
}
