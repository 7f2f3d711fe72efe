//! What a port is to a bridge: a source of frames, a sink for frames, and the control of both.

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
    /// No peer is connected.
    Waiting,
    /// Carries frames.
    Up,
    /// The peer broke a rule (the text says which). The port stays disabled until the peer connects again.
    Disabled(String),
}

/// What became of the frames given to [`Sink::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// How many were accepted, counted from the first.
    pub accepted: usize,
    /// Why the next frame was refused, if one was.
    pub refusal: Option<Refusal>,
}

/// Whether a port has room for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// More room than at the last [`Refusal::Full`].
    Now,
    /// Not before this time.
    At(Nanos),
    /// Unknown: when the peer makes some. [`Control::enable_notifications`] asks the peer to notify us.
    Unknown,
}

/// What a sleeping worker wants to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Frames to forward.
    pub frames: bool,
    /// Room for frames.
    pub room: bool,
}

/// Of which of the peer's rings half of the slots or more were used since the last [`Sink::flush`]. The peer does not know of that yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    /// By frames consumed: the peer may have more to send, and no slot for it.
    pub sent: bool,
    /// By frames put: the peer had no time to take them.
    pub received: bool,
}

/// A bound on what a peer sends, set outside the policy by the creator of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bits a second.
    pub rate: u64,
    /// Bytes that may be sent at once after an idle time.
    pub burst: u64,
}

/// Where frames come from: those that the guest transmits. No method blocks.
pub trait Source {
    /// Shows waiting frames without consuming them: at most [`BURST`](crate::BURST), and about what the budget allows.
    ///
    /// The batch borrows the port, so its frames stay readable while it lives. Offering again without
    /// [`Source::consume`] shows the same frames, read again. The batch is empty if no frame waits or the port is not
    /// [`Status::Up`].
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a>;

    /// Consumes the first `frames` frames of the last batch. Their memory returns to the peer at the next
    /// [`Sink::flush`].
    fn consume(&mut self, frames: usize);

    /// Whether frames wait. Cheap enough to call often.
    fn waiting(&mut self, now: Nanos) -> bool;

    /// Whether frames wait beyond those of the last [`Source::offer`], none of which was consumed since. If none do and `notify` is set,
    /// asks the peer to wake the worker for the next one. A source that cannot tell says that some do.
    fn more(&mut self, _notify: bool) -> bool {
        true
    }
}

/// Where frames go: those that the guest receives. No method blocks.
pub trait Sink {
    /// Copies frames to the peer, in order, until one is refused.
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put;

    /// Whether [`Sink::put`] would accept more than at its last refusal.
    fn room(&mut self, now: Nanos) -> Room;

    /// The state of the peer's receive ring. A port that cannot know it reports an empty ring.
    fn ring(&self) -> Ring;

    /// Publishes all frames put, and all frames consumed from the port's source, since the last call, and notifies the
    /// peer once. Returns when to call it again even without more frames, because a notification is held back until
    /// then; [`Nanos::NEVER`] if none is.
    fn flush(&mut self, now: Nanos) -> Nanos;
}

/// What a port's two directions share: the peer, its descriptors, and when the port needs attention. No method blocks.
pub trait Control {
    /// Asks the peer to wake the worker through the poller. True if something wanted is already there: then do not
    /// sleep.
    ///
    /// Called before the worker sleeps, if the port was served or had an event since the last call, or if its room is
    /// wanted; an uplink is always called. Also called when a busy worker stops polling a port ([`Control::wakes`]).
    fn enable_notifications(&mut self, wanted: Wanted) -> bool;

    /// Tells the peer that the worker serves the port again. A port whose peer needs no such hint does nothing.
    fn disable_notifications(&mut self) {}

    /// Whether a peer that was asked to wake the worker does so for each frame that may follow, so that it need not be polled.
    fn wakes(&self) -> bool {
        false
    }

    /// When something happens without the peer (a frame on a wire arrives); [`Nanos::NEVER`] if nothing will.
    fn next_event(&self) -> Nanos {
        Nanos::NEVER
    }

    /// Joins the worker's poller: adds each descriptor of the port, if it has any, under `key` and a number of the
    /// port's own.
    ///
    /// # Errors
    /// The system's error.
    fn register(&mut self, _poller: &Poller, _key: Key) -> io::Result<()> {
        Ok(())
    }

    /// Handles a ready descriptor: a control message, a kick, a connection.
    fn event(&mut self, _number: u32, _poller: &Poller, _now: Nanos) {}

    /// Whether an event is a message from the peer, or the peer connecting or leaving. The worker's time for such
    /// events is measured and charged to the peer. All others only signal frames or room.
    fn is_message(&self, _number: u32) -> bool {
        false
    }

    /// Enables or suspends the handling of the peer's messages. Frames and room are signalled in either case.
    fn set_messages_enabled(&mut self, _messages: bool) {}

    /// Leaves the peer to another process, which has its descriptors or connects to it anew: publishes what is to be published, and touches no ring any
    /// more. Nothing else is called until [`Control::take_back`].
    fn let_go(&mut self) {}

    /// Goes on where that process, which has ended, left the peer.
    fn take_back(&mut self) {}

    /// Which rings are to be flushed so that the peer can go on. None of a port without rings.
    fn withheld(&self) -> Withheld {
        Withheld::default()
    }

    /// Whether the port can carry frames.
    fn status(&self) -> Status;

    /// Frames lost inside the port since it was created: on their way from the peer, or after [`Sink::put`] accepted
    /// them.
    fn lost(&self) -> Drops {
        Drops::default()
    }

    /// The limit set for the peer outside the policy. May change with each [`Control::event`].
    fn limit(&self) -> Option<Limit> {
        None
    }

    /// Changes the rate of the link inside the port, in bits a second. Ports without one ignore it.
    fn set_rate(&mut self, _rate: Option<u64>, _now: Nanos) {}
}

/// A place where frames enter and leave: it *offers* the frames that a guest transmits, and frames for the guest are
/// *put* into it. One worker owns it.
pub trait Port: Source + Sink + Control + Send {}

impl<P: Source + Sink + Control + Send + ?Sized> Port for P {}
