//! Where frames enter and leave.
//!
//! A [`Port`] is one end of something that carries frames: a guest's card, a tap, a wire. It is a [`Source`] of frames, a [`Sink`] for
//! them, and the [`Control`] of what is behind both. All ports speak in bursts: what a source [offers](Source::offer) lies in its peer's
//! memory until it is [consumed](Source::consume), and goes from there [into](Sink::put) a sink with one copy. Indices are published and
//! peers notified once a burst, by [`Sink::flush`].
//!
//! All the unsafe code of the project is in this crate. What a guest may write to meanwhile is read and written in one way, that of
//! `access.rs`.

mod access;
mod burst;
pub mod capture;
pub mod card;
mod descriptor;
pub mod drain;
pub mod fault;
mod flow;
mod interface;
mod map;
pub mod memory;
mod notifier;
pub mod paced;
pub mod persistent;
mod poller;
mod port;
pub mod random;
mod rate;
mod refusal;
pub mod refused;
pub mod software_offload;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod vhost_user;
mod virtqueue;
mod vnet;
pub mod wire;
mod wrapper;
pub mod xen;

pub use burst::{BURST, Batch, Burst, Filler, Frame, HEAD, Head};
pub use poller::{Interest, Key, Poller};
pub use port::{Control, Limit, Port, Put, Room, Sink, Source, Status, Wanted};
pub use refusal::Refusal;
pub use wrapper::Wrapper;
