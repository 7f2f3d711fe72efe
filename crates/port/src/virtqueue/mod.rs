//! Virtqueues: guest memory, the ring itself, and a burst of frames out of one or into one.
//!
//! A [`Ring`] has independent parts: `split` is the layout, the only file that knows where in memory each field is and
//! how it is read; `chain` follows descriptors; `notification` decides whether to notify the driver; `moderation`
//! decides how soon. Another layout (packed, virtio 1.2, section 2.8) would be a sibling of `split`, with the methods
//! that the others use of [`Split`](split::Split):
//!
//! - for `ring`: the number of entries that are `available`, the `head` of each, `complete` and `take_back` in order,
//!   `publish`, and the `next` entry, from which a restarted backend resumes;
//! - for `chain`: descriptors, each read once (`Table`, `Descriptor`);
//! - for `notification`: what the driver asked for (`used_event`, `interrupts`), its index (`driver_index`), and what
//!   we ask of it (`set_available_event`, `set_kicks`).

mod budget;
mod chain;
mod guard;
mod layout;
mod log;
mod memory;
mod moderation;
mod notification;
#[cfg(test)]
mod race;
mod receive;
mod ring;
mod shared;
mod split;
mod transmit;
mod violation;

pub(crate) use layout::{Layout, MAX_SIZE};
pub(crate) use log::{DirtyLog, LogError, UsedLog};
pub(crate) use memory::{GuestMemory, MAX_REGIONS, Region, RegionError};
pub(crate) use receive::Receive;
pub(crate) use ring::Ring;
pub(crate) use split::used_bytes;
pub(crate) use transmit::Transmit;
pub(crate) use violation::Violation;
