//! The decisions of the network path, and nothing else.
//!
//! Core sees frames, lengths and a time, and answers with a verdict. It does no I/O, reads no clock (time is an
//! argument), starts no thread: the same code serves live rings, tests and virtual time.

#![forbid(unsafe_code)]

pub mod ack;
pub mod codel;
pub mod packet;
pub mod receive;
pub mod sched;
pub mod stats;
pub mod switch;
mod table;
pub mod time;

/// A port of one link: the uplink or a guest's vif. Numbers are small, dense and reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u32);

impl PortId {
    /// The number as an index into a table of ports.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
