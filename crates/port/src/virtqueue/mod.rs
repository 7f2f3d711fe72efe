//! Split virtqueues: guest memory, the ring itself, and a burst of frames out of one or into one.

mod budget;
mod guard;
mod log;
mod memory;
#[cfg(test)]
mod race;
mod receive;
mod ring;
mod shared;
mod transmit;
mod violation;

pub(crate) use log::{DirtyLog, UsedLog};
pub(crate) use memory::{GuestMemory, MAX_REGIONS, Region};
pub(crate) use receive::Receive;
pub(crate) use ring::{Layout, MAX_SIZE, Ring, used_bytes};
pub(crate) use transmit::Transmit;
pub(crate) use violation::Violation;
