//! What a port is to a bridge: a source of frames, a sink for them, and what is behind both.

use crate::burst::{Batch, Burst};
use crate::poller::{Key, Poller};
use crate::refusal::Refusal;
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::Drops;
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

/// What became of the frames given to [`Sink::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// How many were taken, from the first on.
    pub accepted: usize,
    /// Why the next one was not, where there is a next one.
    pub refusal: Option<Refusal>,
}

/// Whether a port has room for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// More than when it last said [`Refusal::Full`].
    Now,
    /// Not before this time.
    At(Nanos),
    /// When the peer makes some; [`Control::enable_notifications`] asks it to tell.
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

/// Where frames come from: those that a guest transmits. No method blocks.
pub trait Source {
    /// Shows frames that wait, at most [`BURST`](crate::BURST) and about what the budget allows, without taking them.
    ///
    /// The batch borrows the port: frames stay readable while it lives. Offering again without [`Source::consume`] shows
    /// the same frames, read anew. Empty if nothing waits, or the port is not [`Status::Up`].
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a>;

    /// Takes the first `frames` frames of the last batch: their memory goes back to the peer at the next [`Sink::flush`].
    fn consume(&mut self, frames: usize);

    /// Whether frames wait; cheap enough to ask often.
    fn waiting(&mut self, now: Nanos) -> bool;

    /// Whether frames wait beyond those of the last [`Source::offer`], none of which was consumed since. If none do and `notify` is set,
    /// asks the peer to wake the worker for the next one. A source that cannot tell says that some do.
    fn more(&mut self, _notify: bool) -> bool {
        true
    }
}

/// Where frames go: those that a guest receives. No method blocks.
pub trait Sink {
    /// Takes frames toward the peer, in order, until one is refused.
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put;

    /// Whether [`Sink::put`] would do better than at its last refusal.
    fn room(&mut self, now: Nanos) -> Room;

    /// How the peer's receive ring stands. One that cannot tell says that nothing waits there.
    fn ring(&self) -> Ring;

    /// Publishes everything put, and consumed of the port's source, since the last call, and notifies the peer once. Answers when it is
    /// to be called again even without more frames, because a notification is held back until then; [`Nanos::NEVER`] if none is.
    fn flush(&mut self, now: Nanos) -> Nanos;
}

/// What is behind a port's two directions: its peer, its descriptors, and when it wants to be asked. No method blocks.
pub trait Control {
    /// Asks the peer to wake the worker through the poller. True if something wanted is there already: then do not sleep.
    fn enable_notifications(&mut self, wanted: Wanted) -> bool;

    /// Tells the peer that the worker looks by itself again. A port without notifications to stop has nothing to tell.
    fn disable_notifications(&mut self) {}

    /// When something will happen without the peer (a frame on a wire arrives); [`Nanos::NEVER`] if nothing will.
    fn next_event(&self) -> Nanos {
        Nanos::NEVER
    }

    /// Joins the worker's poller: every descriptor of the port is added under `key` with a number of the port's own. A port may have none.
    ///
    /// # Errors
    /// What the system says.
    fn register(&mut self, _poller: &Poller, _key: Key) -> io::Result<()> {
        Ok(())
    }

    /// Handles a ready descriptor: a control message, a kick, a connection.
    fn event(&mut self, _number: u32, _poller: &Poller, _now: Nanos) {}

    /// Whether an event is a message of the peer's, or its coming and going: the worker's time for it is measured and the peer's. All
    /// others only say that there are frames, or room.
    fn is_message(&self, _number: u32) -> bool {
        false
    }

    /// Has the peer's messages heard, or left where they are until later. Frames and room are told of all the same.
    fn hear(&mut self, _messages: bool) {}

    /// Whether it can carry frames.
    fn status(&self) -> Status;

    /// Frames that were lost in the port itself, on their way from its peer or after [`Sink::put`] took them, since it was made.
    fn lost(&self) -> Drops {
        Drops::default()
    }

    /// What its peer is limited to beside the policy; may change with each [`Control::event`].
    fn limit(&self) -> Option<Limit> {
        None
    }

    /// Changes the rate of the link inside, in bits a second, where there is one; others have no rate to change.
    fn set_rate(&mut self, _rate: Option<u64>, _now: Nanos) {}
}

/// A place where frames enter and leave: frames are *offered* by it (a guest transmits) and *put* into it (a guest receives).
/// One worker owns it.
pub trait Port: Source + Sink + Control + Send {}

impl<P: Source + Sink + Control + Send + ?Sized> Port for P {}
