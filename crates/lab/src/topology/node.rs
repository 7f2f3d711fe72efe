//! The nodes of a machine, and their addresses on the shared network.

use std::fmt;
use std::net::Ipv4Addr;

use fairlane_core::packet::Mac;

/// The length of the network's prefix, in bits.
pub(crate) const PREFIX: u8 = 24;

/// The number of guests that the network has addresses for.
pub(crate) const MOST_GUESTS: usize = 200;

/// A node of a machine, where programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The machine at the other end of the host's link. It uses no measured CPU.
    External,
    /// The host's own system: the driver domain of a Xen host.
    Host,
    /// A guest, counted from 1.
    Guest(usize),
}

impl fmt::Display for Node {
    /// The node's name in messages, logs and results.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::External => f.pad("external"),
            Node::Host => f.pad("host"),
            Node::Guest(number) => f.pad(&format!("guest-{number}")),
        }
    }
}

impl Node {
    /// Its address.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// The MAC address of its card, the same in each run.
    pub(crate) fn mac(self) -> Mac {
        Mac([0x02, 0xfa, 0x1a, 0x77, 0, self.number()])
    }

    fn number(self) -> u8 {
        match self {
            Node::Host => 1,
            Node::External => 254,
            Node::Guest(number) => 1 + u8::try_from(number).expect("a topology has at most 200 guests"),
        }
    }
}
