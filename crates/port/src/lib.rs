//! Where frames enter and leave.
//!
//! A [`Port`] is one end of something that carries frames: a guest's network card, a tap, a wire. It is a [`Source`] of
//! frames, a [`Sink`] for them, and the [`Control`] of both. All ports work in bursts: the frames that a source
//! [offers](Source::offer) stay in its peer's memory until they are [consumed](Source::consume), and are copied once,
//! straight [into](Sink::put) a sink. [`Sink::flush`] publishes indices and notifies peers, once a burst.
//!
//! All unsafe code of the project is in this crate. Memory that a guest may write at the same time is read and written
//! in one way only, by `access.rs`.

mod access;
mod bpf;
mod burst;
pub mod capture;
pub mod card;
mod descriptor;
pub mod drain;
mod eventfd;
pub mod fault;
mod flow;
pub mod handover;
mod interface;
pub mod keeper;
mod map;
pub mod memory;
mod notifier;
pub mod orphan;
pub mod paced;
mod passing;
pub mod persistent;
mod poller;
mod port;
pub mod random;
mod rate;
mod refusal;
pub mod refused;
pub mod software_offload;
pub mod store;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod trace;
mod turns;
pub mod vhost_user;
mod virtqueue;
mod vnet;
pub mod wire;
mod wrapper;
pub mod xdp;
pub mod xen;

pub use burst::{BURST, Batch, Burst, Filler, Frame, HEAD, Head};
pub use poller::{Interest, Key, Poller};
pub use port::{Control, Limit, Port, Put, Room, Sink, Source, Status, Wanted, Withheld};
pub use refusal::Refusal;
pub use wrapper::Wrapper;
