//! A port that misbehaves on purpose: it drops, doubles, damages, delays and stalls, with given probabilities, in each
//! direction. What it does to a frame depends on its seed and the frames before, so that a failure can be replayed.
//!
//! Frames are copied on their way through: this is for tests, not for speed.

use crate::random::Random;
use crate::{BURST, Batch, Burst, Port, Put, Refusal, Room, Sink, Source, Wanted, Wrapper};
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::collections::VecDeque;
use std::ops::Range;

/// As much as a burst takes.
const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

/// A frame that others are to pass goes on after this long even if none comes.
const KEPT: Nanos = Nanos::from_millis(10);

/// How likely each fault is for a frame, from 0 to 1; nothing unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame vanishes. Toward the peer it is refused for good, with [`DropReason::Injected`].
    pub drop: f64,
    /// It comes twice.
    pub duplicate: f64,
    /// One bit of one byte is flipped.
    pub corrupt: f64,
    /// It is kept until some later frames have passed.
    pub reorder: f64,
    /// The most frames that pass a kept one; 0 keeps none.
    pub reorder_by: u64,
    /// Nothing passes for a while, from this frame on.
    pub stall: f64,
    /// How long that is, in nanoseconds.
    pub stall_for: Nanos,
}

/// What a direction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Frames that came.
    pub frames: u64,
    /// Frames that vanished.
    pub dropped: u64,
    /// Frames that came twice.
    pub duplicated: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames that were kept.
    pub reordered: u64,
    /// Stalls.
    pub stalls: u64,
}

/// A port behind faults.
pub struct Faulty<P> {
    port: P,
    /// From the port's peer, and toward it.
    sent: Direction,
    received: Direction,
    burst: Box<Burst>,
    /// The latest time it was told.
    seen: Nanos,
}

impl<P: Port> Faulty<P> {
    /// Puts `port` behind faults: `sent` for the frames of its peer, `received` for those toward it.
    pub fn new(port: P, seed: u64, sent: Faults, received: Faults) -> Faulty<P> {
        let mut seeds = Random::new(seed);
        let mut direction = |faults| Direction {
            faults,
            random: Random::new(seeds.below(u64::MAX)),
            ready: VecDeque::new(),
            kept: Vec::new(),
            until: Nanos(0),
            done: Done::default(),
        };
        Faulty { port, sent: direction(sent), received: direction(received), burst: Burst::new(), seen: Nanos(0) }
    }

    /// What was done to frames of the peer, and toward it.
    pub fn done(&self) -> (Done, Done) {
        (self.sent.done, self.received.done)
    }

    /// Takes frames from the port behind, through the faults.
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

    /// Passes what went through the faults on to the port behind.
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

/// A frame on its own.
struct Loose {
    bytes: Vec<u8>,
    offload: Offload,
}

/// A frame that others are to pass.
struct Kept {
    /// How many still do.
    left: u64,
    /// When it goes on in any case.
    due: Nanos,
    loose: Loose,
}

struct Direction {
    faults: Faults,
    random: Random,
    /// Through the faults, in the order in which they go on.
    ready: VecDeque<Loose>,
    /// Not yet to go on.
    kept: Vec<Kept>,
    /// The end of the last stall.
    until: Nanos,
    done: Done,
}

impl Direction {
    /// Takes a frame through the faults. False if it vanished.
    fn pass(&mut self, batch: &Batch<'_>, index: usize, now: Nanos) -> bool {
        let Direction { faults, random, done, .. } = self;
        let frame = batch.frame(index);
        let mut loose = Loose { bytes: Vec::new(), offload: frame.offload() };
        frame.read(&mut loose.bytes);
        done.frames += 1;
        if random.chance(faults.stall) {
            done.stalls += 1;
            self.until = now + faults.stall_for;
        }
        if random.chance(faults.drop) {
            done.dropped += 1;
            return false;
        }
        if random.chance(faults.corrupt) && !loose.bytes.is_empty() {
            done.corrupted += 1;
            let byte = random.below(loose.bytes.len() as u64) as usize;
            loose.bytes[byte] ^= 1 << random.below(8);
        }
        if random.chance(faults.duplicate) {
            done.duplicated += 1;
            self.ready.push_back(Loose { bytes: loose.bytes.clone(), offload: loose.offload });
        }
        let passers = random.below(faults.reorder_by) + 1;
        let keep = random.chance(faults.reorder) && faults.reorder_by > 0;
        for kept in &mut self.kept {
            kept.left -= 1;
        }
        if keep {
            done.reordered += 1;
            self.kept.push(Kept { left: passers, due: now + KEPT, loose });
        } else {
            self.ready.push_back(loose);
        }
        self.release(now);
        true
    }

    /// Lets kept frames go whose time has come.
    fn release(&mut self, now: Nanos) {
        let ripe = self.kept.extract_if(.., |kept| kept.left == 0 || kept.due <= now);
        self.ready.extend(ripe.map(|kept| kept.loose));
    }

    fn stalled(&self, now: Nanos) -> bool {
        now < self.until
    }

    /// When a stall ends or a kept frame goes on.
    fn next_event(&self, seen: Nanos) -> Nanos {
        let times = self.kept.iter().map(|kept| kept.due).chain([self.until]);
        times.filter(|time| *time > seen).min().unwrap_or(Nanos::NEVER)
    }

    /// Shows the frames that are ready.
    fn batch<'a>(&'a self, burst: &'a mut Burst, budget: Budget) -> Batch<'a> {
        let mut filler = burst.fill();
        filler.push_all(budget, self.ready.iter().map(|loose| (&loose.bytes[..], loose.offload)));
        filler.done()
    }
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
        self.port.flush(now)
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
        // Frames on their way to the peer want room too.
        let behind = Wanted { room: wanted.room || !self.received.ready.is_empty(), ..wanted };
        self.port.enable_notifications(behind)
            || (wanted.frames && !self.sent.stalled(self.seen) && !self.sent.ready.is_empty())
    }

    fn next_event(&self) -> Nanos {
        self.port.next_event().min(self.sent.next_event(self.seen)).min(self.received.next_event(self.seen))
    }
}

#[cfg(test)]
mod tests;
