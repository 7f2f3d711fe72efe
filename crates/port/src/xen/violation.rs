//! What a frontend can do against the rules of its rings. Any of it disables the port, with this as the reason.
//!
//! These are the cases in which Linux netback disables a vif (linux/drivers/net/xen-netback/netback.c), and grants that
//! do not hold.

use super::netif::MAX_SLOTS;
use thiserror::Error;

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The frontend's index ran or went back.
    #[error("the producer index {index} is not within 256 slots after {next}")]
    Producer {
        /// The index read.
        index: u32,
        /// The request it must not run away from, nor fall behind.
        next: u32,
    },
    /// NETTXF_more_data without more.
    #[error("a packet goes on in slot {0} after its first, which the producer index does not cover")]
    Incomplete(usize),
    /// NETTXF_extra_info without it.
    #[error("a packet announces extra info that the producer index does not cover")]
    MissingExtra,
    /// No such extra info.
    #[error("extra info of type {0}; the types are 1 to 5")]
    ExtraType(u8),
    /// Nothing to cut into.
    #[error("a GSO size of 0; it must be the bytes of a segment")]
    GsoSize,
    /// No such segmentation.
    #[error("a GSO type of {0}; it must be TCPv4 (1) or TCPv6 (2)")]
    GsoType(u8),
    /// A slot is one page at most.
    #[error("a slot of {size} bytes at offset {offset} crosses the end of its page")]
    PageCrossing {
        /// Where it begins in the page.
        offset: u16,
        /// Bytes.
        size: u16,
    },
    /// More slots than any frame needs.
    #[error("a packet of more than {MAX_SLOTS} slots")]
    TooManySlots,
    /// Never granted, granted for reading only, or withdrawn.
    #[error("grant reference {0} cannot be used: it was not granted, or withdrawn while in use")]
    Grant(u32),
}
