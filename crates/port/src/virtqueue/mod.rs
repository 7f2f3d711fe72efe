//! Virtqueues: guest memory, the ring itself, and a burst of frames out of one or into one.
//!
//! A [`Ring`] has independent parts. `format` is what the two layouts have in common, [`split`] and [`packed`]: the only
//! files that know where in memory each field is and how it is read. `chain` follows descriptors; `notification` decides
//! whether to notify the driver; `moderation` decides how soon.

mod budget;
mod chain;
mod format;
mod guard;
mod layout;
mod log;
mod memory;
mod moderation;
mod notification;
mod packed;
#[cfg(test)]
mod race;
mod receive;
mod ring;
mod shared;
mod split;
mod table;
mod transmit;
mod violation;

pub(crate) use format::{Format, Mapped};
pub(crate) use layout::{Layout, MAX_SIZE};
pub(crate) use log::{DirtyLog, LogError, UsedLog};
pub(crate) use memory::{GuestMemory, MAX_REGIONS, Region, RegionError};
pub(crate) use packed::Packed;
pub(crate) use receive::Receive;
pub(crate) use ring::Ring;
pub(crate) use split::Split;
pub(crate) use transmit::Transmit;
pub(crate) use violation::Violation;
