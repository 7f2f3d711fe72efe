//! The running queues of a device, in the format that its driver negotiated.
//!
//! A device has queues of one format only, so [`Queues`] is called a few times a burst; all that is done for each frame
//! is compiled for the format.

use super::features::Features;
use crate::burst::{Batch, Filler};
use crate::flow::{self, Turn};
use crate::notifier::Notifier;
use crate::software_offload::SoftwareOffload;
use crate::virtqueue::{
    DirtyLog, Format, GuestMemory, Layout, LogError, Mapped, Packed, Receive, Ring, Split, Transmit, UsedLog, Violation,
};
use crate::{Put, Refusal, Room, Wanted, Withheld};
use fairlane_core::ack;
use fairlane_core::packet::{Checksum, GsoKind, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::ops::Range;
use std::sync::Arc;

/// What a queue needs besides its layout.
pub(super) struct Setting {
    pub call: Option<Arc<Notifier>>,
    /// The dirty log and the device area's address in it, if writes to the ring are logged.
    pub ring_log: Option<(Arc<DirtyLog>, u64)>,
    /// The dirty log, if writes to buffers are logged.
    pub page_log: Option<Arc<DirtyLog>>,
    /// VIRTIO_NET_F_MRG_RXBUF
    pub mergeable: bool,
}

/// Why a queue cannot run.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A ring that breaks a rule of virtio.
    #[error(transparent)]
    Ring(#[from] Violation),
    /// A log that cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Running queues. They come in pairs: the guest's receive queue has an even number, its transmit queue the next.
pub(super) trait Queues: Send {
    /// Starts a queue.
    ///
    /// # Errors
    /// Its layout breaks a rule, or the log is too short.
    fn start(&mut self, index: usize, layout: Layout, setting: Setting, memory: &GuestMemory) -> Result<(), Error>;

    /// Stops a queue if it runs: publishes its completions. Returns where it stopped, for GET_VRING_BASE.
    fn stop(&mut self, index: usize) -> Option<u32>;

    /// Whether a queue runs.
    fn runs(&self, index: usize) -> bool;

    /// Whether the guest can receive.
    fn up(&self) -> bool;

    /// [`Source::offer`](crate::Source::offer)
    ///
    /// # Errors
    /// The rule that the driver broke; the burst is then empty.
    fn offer(&mut self, memory: &GuestMemory, filler: &mut Filler<'_>, budget: Budget) -> Result<(), Violation>;

    /// [`Source::consume`](crate::Source::consume)
    fn consume(&mut self, frames: usize);

    /// [`Source::waiting`](crate::Source::waiting)
    fn waiting(&self) -> bool;

    /// [`Source::more`](crate::Source::more)
    fn more(&mut self, notify: bool) -> bool;

    /// [`Sink::put`](crate::Sink::put); and the rule that the driver broke, if it broke one.
    fn put(
        &mut self,
        memory: &GuestMemory,
        features: Features,
        batch: &Batch<'_>,
        frames: Range<usize>,
    ) -> (Put, Option<Violation>);

    /// [`Sink::room`](crate::Sink::room)
    fn room(&mut self) -> Room;

    /// [`Sink::ring`](crate::Sink::ring)
    fn ring(&self) -> ack::Ring;

    /// [`Sink::flush`](crate::Sink::flush)
    fn flush(&mut self, now: Nanos) -> Nanos;

    /// [`Control::withheld`](crate::Control::withheld)
    fn withheld(&self) -> Withheld;

    /// [`Control::enable_notifications`](crate::Control::enable_notifications)
    fn enable_notifications(&mut self, wanted: Wanted) -> bool;

    /// [`Control::disable_notifications`](crate::Control::disable_notifications)
    fn disable_notifications(&mut self);
}

/// No running queue of `pairs` pairs, in the format that was negotiated.
pub(super) fn none(pairs: usize, packed: bool) -> Box<dyn Queues> {
    if packed { Box::new(Pairs::<Packed>::new(pairs)) } else { Box::new(Pairs::<Split>::new(pairs)) }
}

/// Pairs of queues of one format.
struct Pairs<F: Format> {
    receive: Vec<Option<Receive<F>>>,
    transmit: Vec<Option<Transmit<F>>>,
    /// The transmit queues' turns.
    turn: Turn,
    /// The receive queue that was full last: a sender waits for room in this queue only.
    full: usize,
    /// Buffers for frames whose checksum or segmentation is done in software.
    software_offload: SoftwareOffload,
}

impl<F: Format> Pairs<F> {
    fn new(pairs: usize) -> Pairs<F> {
        Pairs {
            receive: (0..pairs).map(|_| None).collect(),
            transmit: (0..pairs).map(|_| None).collect(),
            turn: Turn::default(),
            full: 0,
            software_offload: SoftwareOffload::default(),
        }
    }
}

impl<F: Mapped> Queues for Pairs<F> {
    fn start(&mut self, index: usize, layout: Layout, setting: Setting, memory: &GuestMemory) -> Result<(), Error> {
        let Setting { call, ring_log, page_log, mergeable } = setting;
        let ring_log = ring_log.map(|(log, start)| UsedLog::new(log, start, F::device_area(layout.size)));
        let ring = Ring::new(layout, call, ring_log.transpose()?, memory)?;
        // Waiting buffers may have been announced by a kick that was lost, and the last backend may have ended before a
        // notification that it owed.
        ring.call();
        if index.is_multiple_of(2) {
            self.receive[index / 2] = Some(Receive::new(ring, mergeable, page_log));
        } else {
            self.transmit[index / 2] = Some(Transmit::new(ring));
        }
        Ok(())
    }

    fn stop(&mut self, index: usize) -> Option<u32> {
        let ring = if index.is_multiple_of(2) {
            self.receive[index / 2].take().map(|queue| queue.ring)
        } else {
            self.transmit[index / 2].take().map(|queue| queue.ring)
        };
        ring.map(|mut ring| {
            ring.publish(Nanos::NEVER, true);
            ring.base()
        })
    }

    fn runs(&self, index: usize) -> bool {
        if index.is_multiple_of(2) { self.receive[index / 2].is_some() } else { self.transmit[index / 2].is_some() }
    }

    fn up(&self) -> bool {
        self.receive.iter().any(Option::is_some)
    }

    fn offer(&mut self, memory: &GuestMemory, filler: &mut Filler<'_>, budget: Budget) -> Result<(), Violation> {
        let transmit = &mut self.transmit;
        let waiting = |index: usize| transmit[index].as_ref().is_some_and(|queue| queue.ring.waiting());
        let Some(index) = self.turn.next(transmit.len(), waiting) else { return Ok(()) };
        let outcome = match &mut transmit[index] {
            Some(queue) => queue.offer(memory, filler, budget),
            None => Ok(()),
        };
        if outcome.is_err() {
            filler.clear();
        }
        self.turn.offered(index, filler.len());
        outcome
    }

    fn consume(&mut self, frames: usize) {
        if let Some(queue) = &mut self.transmit[self.turn.taken(frames)] {
            queue.consume(frames);
        }
    }

    fn waiting(&self) -> bool {
        self.transmit.iter().flatten().any(|queue| queue.ring.waiting())
    }

    fn more(&mut self, notify: bool) -> bool {
        let (shown, frames) = self.turn.shown();
        self.transmit.iter_mut().enumerate().any(|(index, queue)| {
            let Some(queue) = queue else { return false };
            queue.more(if index == shown { frames } else { 0 }, notify)
        })
    }

    fn put(
        &mut self,
        memory: &GuestMemory,
        features: Features,
        batch: &Batch<'_>,
        frames: Range<usize>,
    ) -> (Put, Option<Violation>) {
        const DOWN: Option<Refusal> = Some(Refusal::Never(DropReason::ReceiverDown));
        let (Range { start, end }, lost) = batch.fetch(frames);
        for index in start..end {
            let accepted = index - start;
            let Some((chosen, queue)) = choose(&mut self.receive, batch.head(index)) else {
                return (Put { accepted, refusal: DOWN }, None);
            };
            let outcome = if supports(features, batch.offload(index)) {
                queue.put(memory, &batch.frame(index))
            } else {
                queue.put_with_software_offload(memory, &batch.frame(index), &mut self.software_offload)
            };
            match outcome {
                Ok(None) => {}
                Ok(refusal) => {
                    if refusal == Some(Refusal::Full) {
                        self.full = chosen;
                    }
                    return (Put { accepted, refusal }, None);
                }
                Err(violation) => return (Put { accepted, refusal: DOWN }, Some(violation)),
            }
        }
        (Put { accepted: end - start, refusal: lost }, None)
    }

    fn room(&mut self) -> Room {
        let full = self.receive.get_mut(self.full).and_then(Option::as_mut);
        // If the queue does not run or is broken, the next `put` reports it.
        if full.is_none_or(|queue| queue.has_room().unwrap_or(true)) { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> ack::Ring {
        flow::combined(self.receive.iter().flatten().map(|queue| queue.ring.driver_state()))
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        let received = self.receive.iter_mut().flatten().map(|queue| queue.publish(now));
        let sent = self.transmit.iter_mut().flatten().map(|queue| queue.publish(now));
        received.chain(sent).fold(Nanos::NEVER, Nanos::min)
    }

    fn withheld(&self) -> Withheld {
        Withheld {
            sent: self.transmit.iter().flatten().any(|queue| queue.ring.is_withheld()),
            received: self.receive.iter().flatten().any(|queue| queue.ring.is_withheld()),
        }
    }

    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let mut ready = false;
        if wanted.frames {
            self.transmit.iter_mut().flatten().for_each(|queue| ready |= queue.ring.enable_notifications(0));
        }
        if wanted.room {
            let full = self.receive.get_mut(self.full).and_then(Option::as_mut);
            ready |= full.is_some_and(Receive::enable_notifications);
        }
        ready
    }

    fn disable_notifications(&mut self) {
        self.receive.iter_mut().flatten().for_each(|queue| queue.ring.disable_notifications());
        self.transmit.iter_mut().flatten().for_each(|queue| queue.ring.disable_notifications());
    }
}

/// The running receive queue for a frame, and its index.
#[inline]
fn choose<'a, F: Format>(queues: &'a mut [Option<Receive<F>>], head: &[u8]) -> Option<(usize, &'a mut Receive<F>)> {
    if let [only] = queues {
        return only.as_mut().map(|queue| (0, queue));
    }
    let running = queues.iter().flatten().count();
    if running == 0 {
        return None;
    }
    let mut places = queues.iter_mut().enumerate().filter_map(|(place, queue)| Some((place, queue.as_mut()?)));
    places.nth(flow::queue(head, running))
}

/// Whether the guest's driver negotiated what a frame needs.
#[inline]
fn supports(features: Features, offload: Offload) -> bool {
    if offload == Offload::default() {
        return true;
    }
    let [tso4, tso6, ecn] = features.guest_segmentation();
    let segmentation =
        offload.gso.is_none_or(|gso| (if gso.kind == GsoKind::Tcp4 { tso4 } else { tso6 }) && (ecn || !gso.ecn));
    segmentation && (features.guest_checksum() || offload.checksum == Checksum::Present)
}
