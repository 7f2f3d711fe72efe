//! A host's card: what leaves it, when its last bit is on the wire, and what arrives, when its last bit came.

use crate::card::{Backend, Shared};
use crate::frame::{self, Frame};
use fairlane_core::ack::Ring;
use fairlane_core::sched::Budget;
use fairlane_core::stats::{DropReason, Drops};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::{Batch, Burst, Control, Put, Refusal, Room, Sink, Source, Status, Wanted};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Frames that a card's receive ring holds, as Linux keeps for a tap.
const RING: usize = 1020;

/// Bytes that wait in a card for the wire at most; a queue in front of the card, by the policy's rate, is the engine's.
pub(crate) const QUEUE: u64 = 256 << 10;

/// A line: sends one frame after another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Bits a second.
    rate: u64,
    /// When the last bit of all that was accepted will be sent.
    busy: Nanos,
    /// Time that a frame may wait.
    queue: Nanos,
}

impl Line {
    /// A line of `rate` bits a second with a queue of `queue` bytes.
    pub(crate) fn new(rate: u64, queue: u64) -> Line {
        let queue = u128::from(queue) * 8 * u128::from(SECOND) / u128::from(rate);
        Line { rate, busy: Nanos(0), queue: Nanos(queue as u64) }
    }

    /// When the last bit of a frame leaves; none if the queue is full.
    pub(crate) fn send(&mut self, bytes: u32, now: Nanos) -> Option<Nanos> {
        if self.opens() > now {
            return None;
        }
        // A frame's length is far below 2 GB, from which on this would overflow.
        self.busy = self.busy.max(now) + Nanos(u64::from(bytes) * 8 * SECOND / self.rate);
        Some(self.busy)
    }

    /// From when on the queue has room.
    fn opens(&self) -> Nanos {
        self.busy - self.queue
    }
}

/// What a host's card shares with the fabric.
pub(crate) struct Wire {
    outward: Line,
    /// Frames that left, with the time of their last bit.
    pub left: Vec<(Nanos, Frame)>,
    /// Frames on their way to the card, with the time of their last bit, in order.
    arriving: VecDeque<(Nanos, Frame)>,
    /// Frames in the card's ring.
    ring: VecDeque<Frame>,
    /// Frames that found the card's ring full.
    lost: u64,
}

impl Wire {
    /// With a rate, and bytes that may wait for it.
    pub(crate) fn new(rate: u64, queue: u64) -> Wire {
        let (arriving, ring) = (VecDeque::new(), VecDeque::new());
        Wire { outward: Line::new(rate, queue), left: Vec::new(), arriving, ring, lost: 0 }
    }

    /// A frame will arrive at a time, no earlier than those before it.
    pub(crate) fn arrive(&mut self, at: Nanos, frame: Frame) {
        self.arriving.push_back((at, frame));
    }

    /// Puts what arrived by `now` into the ring, which only the backend empties: so it was as full as this when they came.
    fn fill(&mut self, now: Nanos) {
        while self.arriving.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, frame)) = self.arriving.pop_front()
        {
            if self.ring.len() < RING {
                self.ring.push_back(frame);
            } else {
                self.lost += 1;
            }
        }
    }

    /// Frames that left or arrive and were not taken.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Frame> {
        self.left.iter().chain(&self.arriving).map(|(_, frame)| frame).chain(&self.ring)
    }
}

/// The backend's port at its host's card.
pub(crate) struct Uplink {
    pub wire: Shared<Wire>,
    pub backend: Arc<Backend>,
    /// What a full queue says to the next frame.
    pub refusal: Refusal,
    /// The latest time that this port was called with.
    pub seen: Nanos,
}

impl Source for Uplink {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.seen = now;
        let mut wire = self.wire.lock();
        wire.fill(now);
        frame::offer(wire.ring.iter(), budget, burst)
    }

    fn consume(&mut self, frames: usize) {
        let mut wire = self.wire.lock();
        self.backend.spend(wire.ring.drain(..frames).map(|frame| frame.len));
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.seen = now;
        let mut wire = self.wire.lock();
        wire.fill(now);
        !wire.ring.is_empty()
    }
}

impl Sink for Uplink {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        self.seen = now;
        let wire = &mut *self.wire.lock();
        let mut accepted = 0;
        for index in frames.clone() {
            let bytes = batch.bytes(index) as u32;
            let Some(left) = wire.outward.send(bytes, now) else { break };
            wire.left.push((left, Frame::read(batch.head(index), bytes.into())));
            accepted += 1;
        }
        let done = frames.start..frames.start + accepted;
        self.backend.spend(done.map(|index| batch.bytes(index) as u32));
        Put { accepted, refusal: (accepted < frames.len()).then_some(self.refusal) }
    }

    fn room(&mut self, now: Nanos) -> Room {
        self.seen = now;
        let opens = self.wire.lock().outward.opens();
        if opens <= now { Room::Now } else { Room::At(opens) }
    }

    fn ring(&self) -> Ring {
        Ring::default()
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Uplink {
    /// As a card, it does not notify of room: when there is some is known ([`Sink::room`]).
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        wanted.frames && self.waiting(self.seen)
    }

    /// The next arrival. A frame that arrived already is not included: [`Source::waiting`] reports it.
    fn next_event(&self) -> Nanos {
        let mut wire = self.wire.lock();
        wire.fill(self.seen);
        wire.arriving.front().filter(|_| wire.ring.is_empty()).map_or(Nanos::NEVER, |(at, _)| *at)
    }

    fn status(&self) -> Status {
        Status::Up
    }

    fn lost(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::RingFull, self.wire.lock().lost);
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Content, Kind, SHORTEST};
    use fairlane_core::packet::Mac;

    #[test]
    fn a_frame_on_the_wire_is_in_no_ring() {
        let content = Content { kind: Kind::Data, flow: 0, number: 0, answers: 0, sent: Nanos(0) };
        let frame = Frame::new((Mac([2; 6]), Mac([6; 6])), content, SHORTEST);
        let mut wire = Wire::new(1_000_000_000, QUEUE);
        let count = RING as u64;
        (1..=3 * count).for_each(|at| wire.arrive(Nanos(at), frame));
        let mut has = |now: u64| {
            wire.fill(Nanos(now));
            (wire.ring.len() as u64, wire.lost, wire.waiting().count() as u64)
        };
        assert_eq!(has(0), (0, 0, 3 * count));
        assert_eq!(has(count), (count, 0, 3 * count));
        assert_eq!(has(count + 5), (count, 5, 3 * count - 5), "nobody took what is in it");
        wire.ring.clear();
        let mut has = |now: u64| {
            wire.fill(Nanos(now));
            (wire.ring.len() as u64, wire.lost)
        };
        assert_eq!(has(2 * count), (count - 5, 5));
    }
}
