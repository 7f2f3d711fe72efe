//! The decisions of the network path, and nothing else.
//!
//! The input is frames, lengths and the time; the output is a verdict. This crate does no I/O, reads no clock (time is
//! an argument) and starts no thread, so the same code runs on live rings, in tests and in virtual time.

#![forbid(unsafe_code)]

pub mod ack;
pub mod codel;
pub mod inflow;
pub mod packet;
pub mod partition;
pub mod receive;
pub mod sched;
pub mod stats;
pub mod switch;
mod table;
pub mod time;

/// A tenant of a link, which may own several guests. Numbers are small, dense and reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

impl TenantId {
    /// The number as an index into a table of tenants.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A port of a link: the uplink or a guest's vif. Numbers are small, dense and reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

impl PortId {
    /// The number as an index into a table of ports.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
