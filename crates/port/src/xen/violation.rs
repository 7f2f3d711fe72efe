//! The rules of its rings that a frontend can break. Each disables the port, with this as the reason.
//!
//! These are the cases in which Linux netback disables a vif (linux/drivers/net/xen-netback/netback.c), and grants that
//! cannot be used.

use super::netif::MAX_SLOTS;
use thiserror::Error;

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// The frontend's index moved too far or backwards.
    #[error("the producer index {index} is not within 256 slots after {next}")]
    Producer {
        /// The index read.
        index: u32,
        /// The request it must stay within 256 slots of.
        next: u32,
    },
    /// NETTXF_more_data in the last slot that the index covers.
    #[error("a packet continues in slot {0} after its first, which the producer index does not cover")]
    Incomplete(usize),
    /// NETTXF_extra_info in the last slot that the index covers.
    #[error("a packet announces extra info that the producer index does not cover")]
    MissingExtra,
    /// An unknown type of extra info.
    #[error("extra info of type {0}; the types are 1 to 5")]
    ExtraType(u8),
    /// A segment size of 0.
    #[error("a GSO size of 0; it must be the bytes of a segment")]
    GsoSize,
    /// An unknown segmentation type.
    #[error("a GSO type of {0}; it must be TCPv4 (1) or TCPv6 (2)")]
    GsoType(u8),
    /// A slot must lie in one page.
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
    /// Never granted, granted for reading only, or revoked.
    #[error("grant reference {0} cannot be used: it was not granted, or withdrawn while in use")]
    Grant(u32),
}
