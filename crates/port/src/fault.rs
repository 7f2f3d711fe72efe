//! A port that injects faults: it drops, duplicates, corrupts, withdraws, delays and stalls with given probabilities, in
//! each direction. What it does to a frame depends on its seed and the frames before, so that a failure can be replayed.
//!
//! Frames are copied on their way through: this is for tests, not for speed.

use crate::burst::{End, Place, Remote};
use crate::random::Random;
use crate::{BURST, Batch, Burst, HEAD, Port, Put, Refusal, Room, Sink, Source, Wanted, Wrapper};
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::collections::VecDeque;
use std::ops::Range;

/// As much as a burst holds.
const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

/// A frame held back for reordering continues after this long even if no other frame passes it.
const HOLD_TIME: Nanos = Nanos::from_millis(10);

/// How long to wait before frames are tried again that the port had no room for.
const RETRY: Nanos = Nanos::from_micros(100);

/// The probability of each fault for a frame, from 0 to 1; by default no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is dropped. Toward the peer it is refused for good, with [`DropReason::Injected`].
    pub drop: f64,
    /// The frame is duplicated.
    pub duplicate: f64,
    /// One bit of one byte is flipped.
    pub corrupt: f64,
    /// What follows the frame's [`HEAD`] can no longer be read once the frame is shown, as if its sender had revoked its
    /// grants meanwhile.
    pub withdraw: f64,
    /// The frame is held back until some later frames have passed.
    pub reorder: f64,
    /// The most frames that pass one held back; 0 disables reordering.
    pub reorder_by: u64,
    /// Nothing passes for a while, from this frame on.
    pub stall: f64,
    /// How long a stall lasts, in nanoseconds.
    pub stall_for: Nanos,
}

/// What was done in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Frames that arrived.
    pub frames: u64,
    /// Frames dropped.
    pub dropped: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames whose body was withdrawn.
    pub withdrawn: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Stalls.
    pub stalls: u64,
}

/// A port with injected faults.
pub struct Faulty<P> {
    port: P,
    /// The direction from the port's peer, and the one toward it.
    sent: Direction,
    received: Direction,
    burst: Box<Burst>,
    /// The latest time it was called with.
    seen: Nanos,
}

impl<P: Port> Faulty<P> {
    /// Wraps `port` in faults: `sent` for the frames from its peer, `received` for those toward it.
    pub fn new(port: P, seed: u64, sent: Faults, received: Faults) -> Faulty<P> {
        let mut seeds = Random::new(seed);
        let mut direction = |faults| Direction {
            faults,
            random: Random::new(seeds.below(u64::MAX)),
            ready: VecDeque::new(),
            held: Vec::new(),
            until: Nanos(0),
            done: Done::default(),
        };
        Faulty { port, sent: direction(sent), received: direction(received), burst: Burst::new(), seen: Nanos(0) }
    }

    /// What was done to the frames from the peer, and to those toward it.
    pub fn done(&self) -> (Done, Done) {
        (self.sent.done, self.received.done)
    }

    /// Takes frames from the inner port, through the faults.
    fn pull(&mut self, now: Nanos) {
        self.sent.release(now);
        if self.sent.stalled(now) || self.sent.ready.len() >= BURST {
            return;
        }
        let batch = self.port.offer(&mut self.burst, ALL, now);
        let frames = batch.len();
        for index in 0..frames {
            self.sent.pass(&batch, index, now);
        }
        self.port.consume(frames);
    }

    /// Passes frames that went through the faults on to the inner port.
    fn push(&mut self, now: Nanos) {
        self.received.release(now);
        while !self.received.stalled(now) && !self.received.ready.is_empty() {
            let batch = self.received.batch(&mut self.burst, ALL);
            let put = self.port.put(&batch, 0..batch.len(), now);
            let never = matches!(put.refusal, Some(Refusal::Never(_)));
            let gone = put.accepted + usize::from(never);
            self.received.ready.drain(..gone);
            if gone == 0 {
                return;
            }
        }
    }
}

/// A copied frame.
struct Copied {
    bytes: Vec<u8>,
    offload: Offload,
    is_withdrawn: bool,
}

/// A frame that is held back.
struct Held {
    /// How many frames must still pass it.
    left: u64,
    /// When it continues in any case.
    due: Nanos,
    frame: Copied,
}

struct Direction {
    faults: Faults,
    random: Random,
    /// Frames that went through the faults, in the order in which they continue.
    ready: VecDeque<Copied>,
    /// Frames held back.
    held: Vec<Held>,
    /// The end of the last stall.
    until: Nanos,
    done: Done,
}

impl Direction {
    /// Passes a frame through the faults. False if it was dropped.
    fn pass(&mut self, batch: &Batch<'_>, index: usize, now: Nanos) -> bool {
        let Direction { faults, random, done, .. } = self;
        let original = batch.frame(index);
        let mut frame = Copied { bytes: Vec::new(), offload: original.offload(), is_withdrawn: false };
        original.read(&mut frame.bytes);
        done.frames += 1;
        if random.chance(faults.stall) {
            done.stalls += 1;
            self.until = now + faults.stall_for;
        }
        if random.chance(faults.drop) {
            done.dropped += 1;
            return false;
        }
        if random.chance(faults.corrupt) && !frame.bytes.is_empty() {
            done.corrupted += 1;
            let byte = random.below(frame.bytes.len() as u64) as usize;
            frame.bytes[byte] ^= 1 << random.below(8);
        }
        if random.chance(faults.duplicate) {
            done.duplicated += 1;
            self.ready.push_back(Copied { bytes: frame.bytes.clone(), ..frame });
        }
        if random.chance(faults.withdraw) && frame.bytes.len() > HEAD {
            done.withdrawn += 1;
            frame.is_withdrawn = true;
            frame.bytes[HEAD..].fill(0);
        }
        let passing = random.below(faults.reorder_by) + 1;
        let hold = random.chance(faults.reorder) && faults.reorder_by > 0;
        for held in &mut self.held {
            held.left -= 1;
        }
        if hold {
            done.reordered += 1;
            self.held.push(Held { left: passing, due: now + HOLD_TIME, frame });
        } else {
            self.ready.push_back(frame);
        }
        self.release(now);
        true
    }

    /// Releases held frames that are due.
    fn release(&mut self, now: Nanos) {
        let due = self.held.extract_if(.., |held| held.left == 0 || held.due <= now);
        self.ready.extend(due.map(|held| held.frame));
    }

    fn stalled(&self, now: Nanos) -> bool {
        now < self.until
    }

    /// When a stall ends or a held frame continues.
    fn next_event(&self, seen: Nanos) -> Nanos {
        let times = self.held.iter().map(|held| held.due).chain([self.until]);
        times.filter(|time| *time > seen).min().unwrap_or(Nanos::NEVER)
    }

    /// Shows the frames that are ready.
    fn batch<'a>(&'a self, burst: &'a mut Burst, budget: Budget) -> Batch<'a> {
        let mut filler = burst.fill();
        filler.push_all(budget, self.ready.iter().map(|frame| (&frame.bytes[..], frame.offload)));
        if self.faults.withdraw > 0.0 { filler.done_remote(self) } else { filler.done() }
    }
}

/// A frame is one segment, so segments have the numbers of the frames that are ready.
impl Remote for Direction {
    fn whole(&self, _frame: usize) -> Option<End> {
        None
    }

    fn place(&self, segment: usize) -> End {
        let frame = &self.ready[segment];
        // A grant that nobody gave cannot be copied from.
        let body = || End::Ours(frame.bytes[HEAD..].as_ptr().cast_mut());
        if frame.is_withdrawn { End::Guest(Place::default()) } else { body() }
    }

    fn fetch(&self, mut segments: Range<usize>) -> Option<usize> {
        segments.find(|segment| self.ready[*segment].is_withdrawn)
    }

    fn withdraw(&self, _segment: usize) {}
}

impl<P: Port> Source for Faulty<P> {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.seen = now;
        self.pull(now);
        let frames = if self.sent.stalled(now) { 0 } else { budget.frames };
        self.sent.batch(burst, Budget { frames, ..budget })
    }

    fn consume(&mut self, frames: usize) {
        self.sent.ready.drain(..frames);
    }

    fn waiting(&mut self, now: Nanos) -> bool {
        self.seen = now;
        self.push(now);
        self.sent.release(now);
        !self.sent.stalled(now) && (!self.sent.ready.is_empty() || self.port.waiting(now))
    }
}

impl<P: Port> Sink for Faulty<P> {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        let (frames, lost) = batch.fetch(frames);
        let mut accepted = 0;
        for index in frames {
            if self.room(now) != Room::Now {
                return Put { accepted, refusal: Some(Refusal::Full) };
            }
            if !self.received.pass(batch, index, now) {
                return Put { accepted, refusal: Some(Refusal::Never(DropReason::Injected)) };
            }
            accepted += 1;
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, now: Nanos) -> Room {
        self.seen = now;
        if self.received.stalled(now) {
            return Room::At(self.received.until);
        }
        if self.received.ready.len() >= BURST {
            self.push(now);
        }
        if self.received.ready.len() < BURST { Room::Now } else { self.port.room(now) }
    }

    fn ring(&self) -> Ring {
        self.port.ring()
    }

    fn flush(&mut self, now: Nanos) -> Nanos {
        self.seen = now;
        self.push(now);
        // Frames that the port has no room for are tried again: nobody else waits for it.
        let again = if self.received.ready.is_empty() { Nanos::NEVER } else { now + RETRY };
        self.port.flush(now).min(again)
    }
}

impl<P: Port> Wrapper for Faulty<P> {
    type Inner = P;

    fn inner(&self) -> &P {
        &self.port
    }

    fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        // Frames on their way to the peer need room too.
        let inner = Wanted { room: wanted.room || !self.received.ready.is_empty(), ..wanted };
        self.port.enable_notifications(inner)
            || (wanted.frames && !self.sent.stalled(self.seen) && !self.sent.ready.is_empty())
    }

    fn next_event(&self) -> Nanos {
        self.port.next_event().min(self.sent.next_event(self.seen)).min(self.received.next_event(self.seen))
    }
}

#[cfg(test)]
mod tests;
