//! The receive queue of a guest, for frames that its ring has no room for, and the memory that a link's queues share.
//!
//! A frame is copied here from its sender's ring, so that neither the sender nor the uplink waits for a guest that waits for its
//! CPU. It is copied into the guest's ring when that has room. Frames are stored in chunks, each frame in one chunk.

use crate::forward::UPLINK;
use crate::senders::Senders;
use fairlane_core::PortId;
use fairlane_core::codel::{Codel, Running, Verdict};
use fairlane_core::packet::{Offload, ecn};
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{BURST, Batch, Burst};
use std::collections::VecDeque;

/// Bytes of the largest chunk, unless a single frame is longer.
const CHUNK: usize = 64 << 10;

/// Bytes of the smallest chunk.
const SMALLEST_CHUNK: usize = 4 << 10;

/// Number of large chunks that a link keeps for reuse while a queue has frames.
const SPARE: usize = 64;

/// Bytes charged for each queued frame in addition to its own: its entry.
const ENTRY: u64 = 64;

/// Frames for one guest, oldest first.
#[derive(Default)]
pub(crate) struct RxQueue {
    frames: VecDeque<Queued>,
    chunks: VecDeque<Vec<u8>>,
    /// Offset of the oldest frame in the first chunk.
    start: usize,
    /// Bytes charged for its frames.
    charged: u64,
    senders: Senders,
    codel: Codel,
    /// Time while the guest takes frames.
    running: Running,
    /// Number of the oldest frames that CoDel let pass.
    judged: usize,
    /// Whether CoDel drops the next frame.
    condemned: bool,
    /// Bytes of the frames that CoDel has not judged.
    unjudged: u64,
}

/// What CoDel did to the frames that may be offered next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub marked: u64,
    pub dropped: u64,
}

/// A queued frame.
#[derive(Clone, Copy)]
pub(crate) struct Queued {
    pub len: u32,
    pub offload: Offload,
    /// When it was queued.
    pub since: Nanos,
    /// The same on the queue's own clock.
    stamp: Nanos,
    sender: PortId,
}

impl Queued {
    /// Whether it came from the uplink.
    pub(crate) fn is_from_uplink(&self) -> bool {
        self.sender == UPLINK
    }
}

impl RxQueue {
    /// Whether no frame is queued.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Number of queued frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Bytes charged for its frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.charged
    }

    /// The oldest frame.
    pub(crate) fn front(&self) -> Option<&Queued> {
        self.frames.front()
    }

    /// Whether it has frames, and every one is from this sender.
    pub(crate) fn is_of(&self, sender: PortId) -> bool {
        self.senders.only() == Some(sender)
    }

    /// Whether a frame of `bytes` of a sender with this weight leaves others their part of the queue, which is limited to `bound`
    /// bytes.
    pub(crate) fn admits(&self, (sender, weight): (PortId, u32), bytes: u64, bound: u64) -> bool {
        self.senders.admits(sender, weight, cost(bytes), self.charged, bound)
    }

    /// Appends a copy of a frame of a sender with this weight, which the pool and the queue admit. Returns false if its bytes in
    /// the sender's memory can no longer be read.
    pub(crate) fn push(
        &mut self,
        pool: &mut RxPool,
        (sender, weight): (PortId, u32),
        batch: &Batch<'_>,
        frame: usize,
        now: Nanos,
    ) -> bool {
        let len = batch.bytes(frame) as usize;
        let fits = self.chunks.back().is_some_and(|chunk| chunk.capacity() - chunk.len() >= len);
        if !fits {
            let wanted = (self.charged as usize).clamp(SMALLEST_CHUNK, CHUNK).max(len);
            self.chunks.push_back(pool.chunk(wanted));
        }
        let Some(chunk) = self.chunks.back_mut() else { return false };
        let before = chunk.len();
        if !batch.read(frame, chunk) {
            // A chunk without a frame would stand where the next one's is looked for.
            if !fits {
                pool.spare(self.chunks.pop_back());
            }
            return false;
        }
        let len = (chunk.len() - before) as u32;
        self.senders.add(sender, weight, cost(len.into()));
        let stamp = self.running.at(now);
        self.frames.push_back(Queued { len, offload: batch.offload(frame), since: now, stamp, sender });
        self.unjudged += u64::from(len);
        self.charged += cost(len.into());
        pool.used += cost(len.into());
        true
    }

    /// CoDel (RFC 8289) judges the frames that may be offered next, and marks or drops some. Called while the guest takes frames.
    pub(crate) fn judge(&mut self, pool: &mut RxPool, now: Nanos) -> Judged {
        let mut done = Judged::default();
        let clock = self.running.advance(now);
        loop {
            if self.condemned {
                if self.judged > 0 {
                    // The frames before it are delivered first.
                    break;
                }
                self.pop(pool);
                done.dropped += 1;
                continue;
            }
            let Some(frame) = self.frames.get(self.judged).filter(|_| self.judged < BURST) else { break };
            self.unjudged -= u64::from(frame.len);
            let verdict = self.codel.dequeue(clock.since(frame.stamp), self.unjudged, clock);
            if verdict == Verdict::Pass {
                self.judged += 1;
            } else if self.mark(self.judged) {
                self.judged += 1;
                done.marked += 1;
            } else {
                self.condemned = true;
            }
        }
        done
    }

    /// Marks a frame, counted from the oldest. Returns false if it cannot carry a mark.
    #[cold]
    fn mark(&mut self, index: usize) -> bool {
        let (mut chunk, mut start) = (0, self.start);
        for (at, frame) in self.frames.iter().enumerate().take(index + 1) {
            if start == self.chunks[chunk].len() {
                (chunk, start) = (chunk + 1, 0);
            }
            let end = start + frame.len as usize;
            if at == index {
                return ecn::mark(&mut self.chunks[chunk][start..end]);
            }
            start = end;
        }
        false
    }

    /// The oldest judged frames within the budget, at most [`BURST`].
    pub(crate) fn offer<'a>(&'a self, burst: &'a mut Burst, budget: Budget) -> Batch<'a> {
        let (mut chunk, mut start) = (0, self.start);
        let frames = self.frames.iter().take(self.judged).map(|frame| {
            if start == self.chunks[chunk].len() {
                (chunk, start) = (chunk + 1, 0);
            }
            let bytes = &self.chunks[chunk][start..start + frame.len as usize];
            start += frame.len as usize;
            (bytes, frame.offload)
        });
        let mut filler = burst.fill();
        filler.push_all(budget, frames);
        filler.done()
    }

    /// Removes the oldest frame.
    #[inline]
    pub(crate) fn pop(&mut self, pool: &mut RxPool) -> Option<Queued> {
        let frame = self.frames.pop_front()?;
        if self.judged > 0 {
            self.judged -= 1;
        } else if !std::mem::take(&mut self.condemned) {
            self.unjudged -= u64::from(frame.len);
        }
        self.charged -= cost(frame.len.into());
        self.senders.remove(frame.sender, cost(frame.len.into()));
        pool.used -= cost(frame.len.into());
        // If the frame did not fit into the previous chunk, it is the first of the next one.
        if self.chunks.front().is_some_and(|chunk| self.start == chunk.len()) {
            self.drop_chunk(pool);
        }
        self.start += frame.len as usize;
        if self.frames.is_empty() {
            self.drop_chunks(pool);
        }
        Some(frame)
    }

    /// Gives memory back once no frame is left. A small chunk is kept, so that a ring that is sometimes full costs no allocation
    /// each time.
    #[inline(never)]
    fn drop_chunks(&mut self, pool: &mut RxPool) {
        while self.chunks.len() > 1 || self.chunks.front().is_some_and(|chunk| chunk.capacity() > SMALLEST_CHUNK) {
            self.drop_chunk(pool);
        }
        self.chunks.iter_mut().for_each(Vec::clear);
        self.start = 0;
        if pool.used == 0 {
            pool.spare = Vec::new();
        }
    }

    #[inline(never)]
    fn drop_chunk(&mut self, pool: &mut RxPool) {
        pool.spare(self.chunks.pop_front());
        self.start = 0;
    }
}

/// Bytes charged for a frame of `bytes`.
fn cost(bytes: u64) -> u64 {
    bytes + ENTRY
}

/// The memory that the queues of one link share.
///
/// The first half is for every guest that needs it. Once it is used, a guest may hold its part of the other half, by weight, and no
/// more. So a guest with a full queue takes nothing of another's part. The allocated chunks are at most twice the charged bytes.
pub(crate) struct RxPool {
    limit: u64,
    used: u64,
    /// Sum of all ports' weights.
    weights: u64,
    spare: Vec<Vec<u8>>,
}

impl RxPool {
    /// A pool of `limit` bytes, without ports.
    pub(crate) fn new(limit: u64) -> RxPool {
        RxPool { limit, used: 0, weights: 0, spare: Vec::new() }
    }

    /// Changes the limit. Queued frames stay.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether any frame waits.
    pub(crate) fn is_used(&self) -> bool {
        self.used > 0
    }

    /// Changes a port's weight; `before` is 0 for a new port, `after` for a removed one.
    pub(crate) fn reweigh(&mut self, before: u32, after: u32) {
        self.weights = self.weights - u64::from(before) + u64::from(after);
    }

    /// Whether a frame of `bytes` may be queued, for a port of this weight whose queue is limited to `bound` bytes.
    pub(crate) fn admits(&self, queue: &RxQueue, bytes: u64, bound: u64, weight: u32) -> bool {
        let bytes = cost(bytes);
        let (queued, used) = (queue.charged + bytes, self.used + bytes);
        queued <= bound && used <= self.limit && (used <= self.limit / 2 || u128::from(queued) <= self.part(weight))
    }

    /// The part of the other half for a port of this weight.
    #[cold]
    fn part(&self, weight: u32) -> u128 {
        u128::from(self.limit / 2) * u128::from(weight) / u128::from(self.weights.max(1))
    }

    /// Keeps a chunk for reuse, if it is large.
    fn spare(&mut self, chunk: Option<Vec<u8>>) {
        self.spare.extend(chunk.filter(|chunk| chunk.capacity() == CHUNK && self.spare.len() < SPARE));
    }

    fn chunk(&mut self, bytes: usize) -> Vec<u8> {
        let spare = if bytes <= CHUNK { self.spare.pop() } else { None };
        spare.map_or_else(
            || Vec::with_capacity(bytes),
            |mut chunk| {
                chunk.clear();
                chunk
            },
        )
    }
}
