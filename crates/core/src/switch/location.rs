//! Entries of the switch's address table.

use crate::PortId;
use crate::packet::Mac;
use crate::time::Nanos;

const USED: u64 = 1 << 63;
const MAC: u64 = (1 << 48) - 1;

/// The table key of a MAC address in a VLAN.
#[inline]
pub(super) fn key(mac: Mac, vlan: u16) -> u64 {
    USED | u64::from(vlan & 0xfff) << 48 | u64::from(mac)
}

/// Whether a key belongs to this address, in any VLAN.
pub(super) fn is_of(key: u64, mac: Mac) -> bool {
    key & MAC == mac.into()
}

/// Where an address is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Location {
    pub port: PortId,
    /// When a frame from the address was last seen; [`Nanos::NEVER`] for a pinned address, which does not age.
    pub seen: Nanos,
}

impl Location {
    /// The location of a port's pinned address. Its key has VLAN 0, which most frames look up first; it is valid in all
    /// VLANs.
    pub(super) fn pinned(port: PortId) -> Location {
        Location { port, seen: Nanos::NEVER }
    }

    #[inline]
    pub(super) fn is_pinned(&self) -> bool {
        self.seen == Nanos::NEVER
    }
}
