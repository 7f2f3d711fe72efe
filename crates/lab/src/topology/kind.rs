//! The kinds of machine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::NameError;

/// A kind of machine under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineKind {
    /// Network namespaces of this host: guests are processes.
    Native,
    /// User-Mode Linux guests on this host.
    Uml,
    /// QEMU guests with virtio cards on this host.
    Qemu,
    /// QEMU guests with emulated e1000 cards on this host.
    QemuE1000,
    /// The emulated PC with native Linux: guests are processes.
    Box,
    /// The emulated PC as a KVM host.
    Kvm,
    /// The emulated PC as a Xen host of paravirtual guests (PV).
    Xen,
    /// The same with PVH guests: their cards are paravirtual, their memory is hardware-assisted.
    XenPvh,
}

impl MachineKind {
    /// All kinds.
    pub const ALL: [MachineKind; 8] = [
        MachineKind::Native,
        MachineKind::Uml,
        MachineKind::Qemu,
        MachineKind::QemuE1000,
        MachineKind::Box,
        MachineKind::Kvm,
        MachineKind::Xen,
        MachineKind::XenPvh,
    ];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            MachineKind::Native => "native",
            MachineKind::Uml => "uml",
            MachineKind::Qemu => "qemu",
            MachineKind::QemuE1000 => "qemu-e1000",
            MachineKind::Box => "box",
            MachineKind::Kvm => "kvm",
            MachineKind::Xen => "xen",
            MachineKind::XenPvh => "xen-pvh",
        }
    }

    /// Native Linux on the hardware of this kind: the emulated PC or this host.
    pub(crate) fn bare(self) -> MachineKind {
        match self {
            MachineKind::Native | MachineKind::Uml | MachineKind::Qemu | MachineKind::QemuE1000 => MachineKind::Native,
            MachineKind::Box | MachineKind::Kvm | MachineKind::Xen | MachineKind::XenPvh => MachineKind::Box,
        }
    }

    /// Whether it can run on the virtual clock (icount). Native Linux does not bring up a second CPU with it, which the external
    /// machine would need.
    pub fn has_virtual_clock(self) -> bool {
        matches!(self, MachineKind::Xen | MachineKind::XenPvh)
    }

    /// Whether instructions can be counted: only on the emulated PC.
    pub fn counts(self) -> bool {
        matches!(self, MachineKind::Box | MachineKind::Kvm | MachineKind::Xen | MachineKind::XenPvh)
    }

    /// Whether Fairlane can serve its guests' cards.
    pub fn supports_fairlane(self) -> bool {
        matches!(self, MachineKind::Uml | MachineKind::Qemu | MachineKind::Kvm | MachineKind::Xen)
    }

    /// Whether its host has a block backend, which serves its guests' disks.
    pub(crate) fn serves_disks(self) -> bool {
        matches!(self, MachineKind::Kvm | MachineKind::Xen | MachineKind::XenPvh)
    }
}

impl fmt::Display for MachineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MachineKind {
    type Err = NameError;

    fn from_str(word: &str) -> Result<MachineKind, NameError> {
        let known = || MachineKind::ALL.map(MachineKind::name).join(", ");
        let unknown = || NameError { word: word.to_owned(), kind: "kind of machine", known: known() };
        MachineKind::ALL.into_iter().find(|kind| kind.name() == word).ok_or_else(unknown)
    }
}

/// The kinds of machine that can have Fairlane as a backend, in words.
pub fn with_fairlane() -> String {
    let kinds = MachineKind::ALL.into_iter().filter(|kind| kind.supports_fairlane());
    kinds.map(MachineKind::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_serialized_alike() {
        for kind in MachineKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        let error = "vmware".parse::<MachineKind>().unwrap_err();
        assert_eq!((error.word.as_str(), error.kind), ("vmware", "kind of machine"));
        assert!(error.to_string().contains("vmware is no kind of machine; there are native, uml"), "{error}");
    }
}
