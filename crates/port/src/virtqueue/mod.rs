//! Virtqueues: guest memory, the ring itself, and a burst of frames out of one or into one.
//!
//! A [`Ring`] is put together of parts that know nothing of each other's affairs: `split` is the layout, the only file that knows where
//! in memory something is and how it is read; `chain` follows descriptors; `notification` is who wishes to be told; `moderation` is how
//! soon. Another layout (packed, virtio 1.2, section 2.8) is a sibling of `split`, and has to offer what the others ask of
//! [`Split`](split::Split):
//!
//! - to `ring`: entries that are `available`, the `head` of each, `complete` and `take_back` in order, `publish`, and the `next` entry,
//!   from which a restarted backend goes on;
//! - to `chain`: descriptors one after the other, each read once (`Table`, `Descriptor`);
//! - to `notification`: what the driver wishes (`used_event`, `interrupts`), how far it is (`driver_index`), and where it is told what we
//!   wish (`set_available_event`, `set_kicks`).

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
