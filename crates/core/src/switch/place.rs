//! What the switch remembers of addresses.

use crate::PortId;
use crate::packet::Mac;
use crate::time::Nanos;

const USED: u64 = 1 << 63;
const MAC: u64 = (1 << 48) - 1;

/// A MAC address in a VLAN, as the table's key.
#[inline]
pub fn key(mac: Mac, vlan: u16) -> u64 {
    USED | u64::from(vlan & 0xfff) << 48 | u64::from(mac)
}

/// Whether a key is of this address, in whatever VLAN.
pub fn is_of(key: u64, mac: Mac) -> bool {
    key & MAC == mac.into()
}

/// Where an address is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub port: PortId,
    /// When it last sent; never for a pinned address, which does not age.
    pub seen: Nanos,
}

impl Place {
    /// A port's own address. It stands under VLAN 0, where most frames look first, and counts in all VLANs.
    pub fn pinned(port: PortId) -> Place {
        Place { port, seen: Nanos::NEVER }
    }

    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.seen == Nanos::NEVER
    }
}
