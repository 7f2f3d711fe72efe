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
    /// Frames that arrive, with the time of their last bit, in order.
    arriving: VecDeque<(Nanos, Frame)>,
    /// Frames that found the card's ring full.
    lost: u64,
}

impl Wire {
    /// With a rate, and bytes that may wait for it.
    pub(crate) fn new(rate: u64, queue: u64) -> Wire {
        Wire { outward: Line::new(rate, queue), left: Vec::new(), arriving: VecDeque::new(), lost: 0 }
    }

    /// A frame arrives at a time, no earlier than those before it. False if it is lost, as the ring is full.
    pub(crate) fn arrive(&mut self, at: Nanos, frame: Frame) -> bool {
        let fits = self.arriving.len() < RING;
        if fits {
            self.arriving.push_back((at, frame));
        } else {
            self.lost += 1;
        }
        fits
    }

    /// Frames that left or arrive and were not taken.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Frame> {
        self.left.iter().chain(&self.arriving).map(|(_, frame)| frame)
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
        let wire = self.wire.lock();
        let here = wire.arriving.iter().take_while(|(at, _)| *at <= now).map(|(_, frame)| frame);
        frame::offer(here, budget, burst)
    }

    fn consume(&mut self, frames: usize) {
        let mut wire = self.wire.lock();
        self.backend.spend(wire.arriving.drain(..frames).map(|(_, frame)| frame.len));
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.seen = now;
        self.wire.lock().arriving.front().is_some_and(|(at, _)| *at <= now)
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
        wanted.frames && self.wire.lock().arriving.front().is_some_and(|(at, _)| *at <= self.seen)
    }

    /// The next arrival. A frame that arrived already is not included: [`Source::waiting`] reports it.
    fn next_event(&self) -> Nanos {
        let wire = self.wire.lock();
        wire.arriving.front().map_or(Nanos::NEVER, |(at, _)| if *at > self.seen { *at } else { Nanos::NEVER })
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
