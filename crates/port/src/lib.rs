//! Where frames enter and leave.
//!
//! A [`Port`] is one end of something that carries frames: a guest's card, a tap, a wire. All ports speak in bursts:
//! what a port [offers](Port::offer) lies in its peer's memory until it is [consumed](Port::consume), and goes from there
//! [into](Port::put) another port with one copy. Indices are published and peers notified once a burst, by [`Port::flush`].
//!
//! All the unsafe code of the project is in this crate. What a guest may write to meanwhile is read and written in one way, that of
//! `access.rs`.

mod access;
mod burst;
pub mod capture;
pub mod card;
mod descriptor;
pub mod fault;
mod flow;
mod interface;
pub mod kept;
mod map;
pub mod memory;
mod notifier;
pub mod paced;
pub mod plain;
mod poller;
pub mod random;
mod rate;
pub mod refused;
pub mod sink;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod vhost_user;
mod virtqueue;
mod vnet;
pub mod wire;
pub mod xen;

pub use burst::{BURST, Batch, Burst, Filler, Frame, HEAD, Head};
pub use poller::{Interest, Key, Poller};

use fairlane_core::ack::Ring;
use fairlane_core::sched::Grant;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::time::Nanos;
use std::io;
use std::ops::Range;

/// Whether a port can carry frames, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// No peer yet, or it left.
    Waiting,
    /// Carries frames.
    Up,
    /// The peer broke a rule; it stays disabled until the peer connects anew.
    Disabled(String),
}

/// What became of the frames given to [`Port::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// How many were taken, from the first on.
    pub accepted: usize,
    /// Why the next one was not, where there is a next one.
    pub refusal: Option<Refusal>,
}

/// Why a port did not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No room now; wait for [`Port::room`].
    Full,
    /// This frame will never be taken.
    Never(DropReason),
}

/// Whether a port has room for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// More than when it last said [`Refusal::Full`].
    Now,
    /// Not before this time.
    At(Nanos),
    /// When the peer makes some; [`Port::arm`] asks it to tell.
    Unknown,
}

/// What a sleeping worker wants to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Frames to take.
    pub frames: bool,
    /// Room for frames.
    pub room: bool,
}

/// A bound on what a peer sends, set beside the policy by whoever made the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits a second.
    pub rate: u64,
    /// Bytes that pass at once after a silence.
    pub burst: u64,
}

/// A place where frames enter and leave. One worker owns it; no method blocks.
///
/// Frames are *offered* by the port (a guest transmits) and *put* into it (a guest receives).
pub trait Port: Send {
    /// Shows frames that wait, at most [`BURST`] and about what the grant allows, without taking them.
    ///
    /// The batch borrows the port: frames stay readable while it lives. Offering again without [`Port::consume`] shows
    /// the same frames, read anew. Empty if nothing waits, or the port is not [`Status::Up`].
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, grant: Grant, now: Nanos) -> Batch<'a>;

    /// Takes the first `frames` frames of the last batch: their memory goes back to the peer at the next [`Port::flush`].
    fn consume(&mut self, frames: usize);

    /// Whether frames wait; cheap enough to ask often.
    fn waiting(&mut self, now: Nanos) -> bool;

    /// Takes frames toward the peer, in order, until one is refused.
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put;

    /// Whether [`Port::put`] would do better than at its last refusal.
    fn room(&mut self, now: Nanos) -> Room;

    /// How the peer's receive ring stands. A port that cannot tell says that nothing waits there.
    fn ring(&self) -> Ring {
        Ring::default()
    }

    /// Publishes everything consumed and put since the last call, and notifies the peer once. Answers when it is to be called
    /// again even without more frames, because a notification is held back until then; [`Nanos::NEVER`] if none is.
    fn flush(&mut self, now: Nanos) -> Nanos;

    /// Asks the peer to wake the worker through the poller. True if something wanted is there already: then do not sleep.
    fn arm(&mut self, wanted: Wanted) -> bool;

    /// Tells the peer that the worker looks by itself again.
    fn disarm(&mut self);

    /// When something will happen without the peer (a frame on a wire arrives); [`Nanos::NEVER`] if nothing will.
    fn next_event(&self) -> Nanos {
        Nanos::NEVER
    }

    /// Joins the worker's poller: every descriptor of the port is added under `key` with a number of the port's own.
    ///
    /// # Errors
    /// What the system says.
    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()>;

    /// Handles a ready descriptor: a control message, a kick, a connection.
    fn event(&mut self, number: u32, poller: &Poller, now: Nanos);

    /// Whether an event is a message of the peer's, or its coming and going: the worker's time for it is measured and the peer's. All
    /// others only say that there are frames, or room.
    fn is_message(&self, _number: u32) -> bool {
        false
    }

    /// Has the peer's messages heard, or left where they are until later. Frames and room are told of all the same.
    fn hear(&mut self, _messages: bool) {}

    /// Whether it can carry frames.
    fn status(&self) -> Status;

    /// Frames that were lost in the port itself, on their way from its peer or after [`Port::put`] took them, since it was made.
    fn lost(&self) -> Drops {
        Drops::default()
    }

    /// What its peer is limited to beside the policy; may change with each [`Port::event`].
    fn limit(&self) -> Option<Limit> {
        None
    }

    /// Changes the rate of the link inside, in bits a second, where there is one; others have no rate to change.
    fn set_rate(&mut self, _rate: Option<u64>, _now: Nanos) {}
}

/// Every kind of port is also one behind a box, so that wrappers need no second form.
impl<P: Port + ?Sized> Port for Box<P> {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, grant: Grant, now: Nanos) -> Batch<'a> {
        (**self).offer(burst, grant, now)
    }
    fn consume(&mut self, frames: usize) {
        (**self).consume(frames)
    }
    fn waiting(&mut self, now: Nanos) -> bool {
        (**self).waiting(now)
    }
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        (**self).put(batch, frames, now)
    }
    fn room(&mut self, now: Nanos) -> Room {
        (**self).room(now)
    }
    fn ring(&self) -> Ring {
        (**self).ring()
    }
    fn flush(&mut self, now: Nanos) -> Nanos {
        (**self).flush(now)
    }
    fn arm(&mut self, wanted: Wanted) -> bool {
        (**self).arm(wanted)
    }
    fn disarm(&mut self) {
        (**self).disarm()
    }
    fn next_event(&self) -> Nanos {
        (**self).next_event()
    }
    fn register(&mut self, poller: &Poller, key: Key) -> io::Result<()> {
        (**self).register(poller, key)
    }
    fn event(&mut self, number: u32, poller: &Poller, now: Nanos) {
        (**self).event(number, poller, now)
    }
    fn is_message(&self, number: u32) -> bool {
        (**self).is_message(number)
    }
    fn hear(&mut self, messages: bool) {
        (**self).hear(messages)
    }
    fn status(&self) -> Status {
        (**self).status()
    }
    fn lost(&self) -> Drops {
        (**self).lost()
    }
    fn limit(&self) -> Option<Limit> {
        (**self).limit()
    }
    fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        (**self).set_rate(rate, now)
    }
}
