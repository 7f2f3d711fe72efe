//! Network cards that carry the load: offloads that are off, and emulated cards in a guest.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::{DRIVER, OFFLOADS};
use crate::doctor::view::Change;

/// Offloads, with ethtool's long and short names.
const WANTED: [(&str, &str); 4] = [
    ("scatter-gather", "sg"),
    ("tcp-segmentation-offload", "tso"),
    ("generic-segmentation-offload", "gso"),
    ("generic-receive-offload", "gro"),
];
/// Drivers of cards that hypervisors emulate.
const EMULATED: [&str; 7] = ["e1000", "e1000e", "8139cp", "8139too", "ne2k-pci", "pcnet32", "tulip"];
/// Packets per second above which a card counts as carrying the load.
const MIN_RATE: f64 = 1000.0;

/// Offloads that are off and could be on, and emulated cards.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let devices = change.after.devices();
    let rate = |device: &str| change.rate(change.after.packets(device).saturating_sub(change.before.packets(device)));
    let loaded = devices.iter().map(|device| (device.as_str(), rate(device))).filter(|(_, rate)| *rate > MIN_RATE);
    loaded
        .flat_map(|(device, rate)| [offloads(change, device, rate), emulated(change, device, rate)])
        .flatten()
        .collect()
}

fn offloads(change: &Change, device: &str, rate: f64) -> Option<Finding> {
    let output = format!("{OFFLOADS}{device}");
    // `off [fixed]` means that the card does not support it.
    let off: Vec<_> = WANTED.iter().filter(|(name, _)| change.after.value(&output, name) == Some("off")).collect();
    if off.is_empty() {
        return None;
    }
    let (names, words): (Vec<&str>, Vec<String>) =
        off.iter().map(|(name, short)| (*name, format!("{short} on"))).unzip();
    Some(Finding {
        cause: "offloads",
        confidence: Confidence::Possible,
        limits: 0.3,
        seen: format!("{device} carries {rate:.0} packets/s with {} off", names.join(", ")),
        why: "each segment passes through stack, bridge and ring on its own instead of up to 64 KiB at once; small requests \
              gain little"
            .to_owned(),
        change: vec![Remedy::by_hand(format!("ethtool -K {device} {}", words.join(" ")))],
    })
}

fn emulated(change: &Change, device: &str, rate: f64) -> Option<Finding> {
    let driver = change.after.value(&format!("{DRIVER}{device}"), "driver")?;
    if !change.after.is_guest() || !EMULATED.contains(&driver) {
        return None;
    }
    Some(Finding {
        cause: "emulated-card",
        confidence: Confidence::Likely,
        limits: 0.8,
        seen: format!("{device} carries {rate:.0} packets/s and is an emulated card (driver {driver})"),
        why: "the hypervisor emulates the hardware of a real card, which costs several exits per packet".to_owned(),
        change: vec![Remedy::by_hand(
            "use a paravirtual card for this guest: virtio-net (KVM), xen-netfront (Xen), vmxnet3 (ESXi), hv_netvsc (Hyper-V)",
        )],
    })
}
