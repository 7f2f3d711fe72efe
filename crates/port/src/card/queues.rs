//! The frames from the wire: they wait in several queues, filled by destination and read in [turn](crate::turns).
//!
//! A queue is two rings, with small and with large slots. Large frames are merged segments, of up to 64 KiB, and few; in one ring for
//! all, each of the smallest would take as much memory as one of those. A guest's frames pass in the order in which they arrived,
//! which the kernel's times tell.

use super::receive::Receive;
use super::slots::Form;
use crate::{BURST, turns};
use fairlane_core::packet::Offload;
use std::collections::VecDeque;
use std::iter::from_fn;
use std::os::fd::{AsFd, BorrowedFd};

/// Queues of a card: a power of two. Half as many as of a tap: a poll that finds nothing looks at two rings of each.
pub(super) const QUEUES: usize = 8;

/// Rings of a card: the small ones of each queue, then the large ones.
pub(super) const RINGS: usize = 2 * QUEUES;

/// The rings' forms. Nothing pushes back on the wire, so each must hold the frames for a guest that arrive while the worker waits for
/// its CPU, some milliseconds: 1,024, as many as Linux keeps for a tap or for a CPU (`txqueuelen` and `netdev_max_backlog`, 1,000), and
/// 120 large ones, which are 6 ms of 10 Gbit/s. Together they have 80 MiB, of memory that is never used for anything else; a ring of
/// 1,020 large slots for all guests had 68. A queue of 1,020 such slots for each would have 544.
const SMALL: Form = Form::small(1);
const LARGE: Form = Form::large(4);

/// The form of a ring.
pub(super) fn form(ring: usize) -> Form {
    if ring < QUEUES { SMALL } else { LARGE }
}

/// The queues.
pub(super) struct Queues {
    rings: Vec<Receive>,
    /// Where the frames that wait are, in the order in which they are offered: there is always room for one more run.
    runs: VecDeque<Run>,
    /// How many they are, in all rings and in each.
    count: usize,
    waiting: [usize; RINGS],
    /// The queue whose turn it is.
    turn: usize,
}

/// Frames of one ring, one after another.
struct Run {
    ring: usize,
    frames: usize,
}

impl Queues {
    /// Over rings of these [forms](form), with the frames that wait in them.
    pub(super) fn new(rings: Vec<Receive>) -> Queues {
        assert!(rings.len() == RINGS);
        Queues { rings, runs: VecDeque::with_capacity(BURST), count: 0, waiting: [0; RINGS], turn: 0 }
    }

    /// Finds the first frames that are not consumed, after another process had the rings.
    pub(super) fn find(&mut self) {
        self.rings.iter_mut().for_each(Receive::find);
        self.runs.clear();
        (self.count, self.waiting) = (0, [0; RINGS]);
    }

    /// Reads rings until `wanted` frames wait. Returns how many do.
    #[inline]
    pub(super) fn fill(&mut self, wanted: usize) -> usize {
        let missing = wanted.min(BURST).saturating_sub(self.count);
        if missing > 0 {
            let arrived = self.arrived();
            self.turn = turns::read(QUEUES, arrived, self.turn, missing, |queue, most| Some(self.read(queue, most)));
        }
        self.count
    }

    /// The queues that have more, a bit for each.
    #[inline]
    fn arrived(&self) -> u32 {
        let (small, large) = self.rings.split_at(QUEUES);
        let has_more = small.iter().zip(large).map(|(small, large)| u32::from(small.has_next() | large.has_next()));
        has_more.rev().fold(0, |queues, has_more| queues << 1 | has_more)
    }

    /// Reads at most `most` frames of a queue. Returns how many: fewer if it has no more.
    fn read(&mut self, queue: usize, most: usize) -> usize {
        let (small, large) = (queue, queue + QUEUES);
        let mut count = 0;
        while count < most {
            let left = most - count;
            let mut smalls = self.more(small, left);
            let larges = self.more(large, left);
            if smalls == 0 && larges > 0 {
                // One that arrived before those may have been written since.
                smalls = self.more(small, left);
            }
            let (ring, frames) = match (smalls, larges) {
                (0, 0) => break,
                (smalls, 0) => (small, smalls),
                (0, larges) => (large, larges),
                _ if self.arrival(large) < self.arrival(small) => (large, 1),
                _ => (small, 1),
            };
            self.append(ring, frames);
            count += frames;
        }
        count
    }

    /// How many frames a ring has beside those that wait, of at most so many.
    #[inline]
    fn more(&mut self, ring: usize, most: usize) -> usize {
        let waiting = self.waiting[ring];
        let ring = &mut self.rings[ring];
        if ring.has_next() { ring.fill(waiting + most).min(waiting + most) - waiting } else { 0 }
    }

    /// When the next frame of a ring arrived.
    fn arrival(&self, ring: usize) -> (u32, u32) {
        self.rings[ring].arrival(self.waiting[ring])
    }

    /// Appends the next frames of a ring to those that wait.
    fn append(&mut self, ring: usize, frames: usize) {
        match self.runs.back_mut() {
            Some(last) if last.ring == ring => last.frames += frames,
            _ => self.runs.push_back(Run { ring, frames }),
        }
        self.count += frames;
        self.waiting[ring] += frames;
        self.rings[ring].look_at(self.waiting[ring]);
    }

    /// The frames that wait, at most so many.
    #[inline]
    pub(super) fn frames(&self, most: usize) -> impl Iterator<Item = (&[u8], Offload)> {
        let (mut next, mut runs) = ([0; RINGS], self.runs.iter());
        let (mut left, mut ring, mut frames) = (most, &self.rings[0], 0..0);
        from_fn(move || {
            if frames.is_empty() {
                let run = runs.next()?;
                ring = &self.rings[run.ring];
                frames = next[run.ring]..next[run.ring] + run.frames.min(left);
                (next[run.ring], left) = (frames.end, left - frames.len());
            }
            frames.next().map(|index| ring.frame(index))
        })
    }

    /// Returns the slots of the first frames to the kernel.
    pub(super) fn consume(&mut self, frames: usize) {
        assert!(frames <= self.count, "no more frames are consumed than were offered");
        self.count -= frames;
        let mut left = frames;
        while let Some(run) = self.runs.front_mut().filter(|_| left > 0) {
            let here = left.min(run.frames);
            self.rings[run.ring].consume(here);
            self.waiting[run.ring] -= here;
            (left, run.frames) = (left - here, run.frames - here);
            if run.frames == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Frames that found no free slot.
    pub(super) fn missed(&self) -> u64 {
        self.rings.iter().map(Receive::missed).sum()
    }

    /// Clears the errors that sockets hold since their interface went down.
    pub(super) fn clear_errors(&self) {
        self.rings.iter().for_each(Receive::clear_error);
    }

    /// The sockets.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(AsFd::as_fd)
    }
}
