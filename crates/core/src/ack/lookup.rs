//! Frames of a burst, read and looked up before they are judged.
//!
//! Among many flows, what is known of one is in main memory, and waiting for it takes longer than judging the frame: a line of
//! the index says which flow it is, a second has its name, a third the rest of its numbers, one wait after the other. So a burst
//! is gone over step by step, each step for all of its frames, and the processor waits for many lines at once. Of the time of a
//! frame among 100,000 flows, that leaves a fifth in bursts of 32; one that comes alone waits as before.
//!
//! Most frames of a burst are of the same flow as the one before. Of these only the numbers are read, and the flow is known already.
//! And while nothing is acknowledged early, segments for a guest that come in order are noted as one.
//!
//! What did not help: a further step that only reads the lines of the flows (the third step's loop is short enough for the
//! processor to run ahead in); pages of 2 MiB (a tenth less among 100,000 flows, and files in memory have none unless the
//! system's `shmem_enabled` says so).

use super::index::{NONE, Slot};
use super::segment::{Segment, carries_data_alone};
use super::{Direction, EarlyAck, seconds};
use crate::time::Nanos;

/// A frame that was looked at, for [`EarlyAck::delivered`] or [`EarlyAck::from_guest`].
pub struct LookupBatch(Option<Seen>);

/// A segment, and its flow.
#[derive(Clone, Copy)]
struct Seen {
    segment: Segment,
    /// The hash of its flow's name.
    hash: u32,
    /// The first slot of the index where the flow can be.
    first: Slot,
    /// The flow's number; [`NONE`] if it is not known.
    flow: u32,
    /// Whether the one before in the burst is of the same flow.
    follows: bool,
    /// [`EarlyAck::changes`] when it was looked up.
    changes: u64,
}

impl EarlyAck<'_> {
    /// Looks at the frames of a burst that go this `way`, which are shown next: each by its head and how many bytes it has.
    /// `sights` then has one for each, in their order; what it had before is dropped. Returns whether any of them needs to be shown.
    pub fn look<'f>(
        &mut self,
        sights: &mut Vec<LookupBatch>,
        way: Direction,
        frames: impl Iterator<Item = (&'f [u8], usize)>,
        now: Nanos,
    ) -> bool {
        sights.clear();
        if self.is_out() {
            sights.extend(frames.map(|_| LookupBatch(None)));
            return false;
        }
        let is_watched = self.guest.watch(now);
        if is_watched {
            // Where no flow comes in, those that never opened grow old all the same, and their guest is let alone again.
            self.age(now);
        }
        let (noted, skipped) = self.read(sights, way, frames, is_watched, now);
        self.guest.skips |= skipped > 0;
        if way == Direction::Out && noted + skipped > 0 && self.guest.frozen {
            self.thaw(now);
        }
        if noted == 0 {
            return false;
        }
        self.look_up(sights, now);
        true
    }

    /// The first step: what the frames are, and which of them need no look. Returns how many are to be noted, and how many are not.
    #[inline(always)]
    fn read<'f>(
        &mut self,
        sights: &mut Vec<LookupBatch>,
        way: Direction,
        frames: impl Iterator<Item = (&'f [u8], usize)>,
        is_watched: bool,
        now: Nanos,
    ) -> (u32, u32) {
        // Who was told of what the guest lacks is answered, segment by segment.
        let is_quiet = way == Direction::In && !self.is_engaged(now) && self.retained() == 0;
        let mut before: &[u8] = &[];
        // The last segment, where it is in `sights`.
        let mut last = None;
        let (mut noted, mut skipped) = (0, 0);
        for (head, len) in frames {
            let at = sights.len();
            if !is_watched && carries_data_alone(head) {
                sights.push(LookupBatch(None));
                (last, skipped) = (None, skipped + 1);
                continue;
            }
            noted += 1;
            if let Some(seen) = last.and_then(|last: usize| sights[last].0.as_mut())
                && let Some(next) = seen.segment.next(before, head, len)
            {
                if is_quiet && seen.segment.is_covered_by(&next) {
                    seen.segment.renew(next, true);
                    sights.push(LookupBatch(None));
                } else {
                    let mut seen = Seen { follows: true, ..*seen };
                    seen.segment.renew(next, false);
                    sights.push(LookupBatch(Some(seen)));
                    last = Some(at);
                }
            } else {
                let segment = Segment::read(way, head, len);
                if segment.is_none() && way == Direction::Out {
                    self.note_fragment(head);
                }
                last = segment.is_some().then_some(at);
                sights.push(LookupBatch(segment.map(|segment| self.unknown(segment))));
            }
            before = head;
        }
        (noted, skipped)
    }

    /// The steps after it: whose flow each segment is of.
    #[inline(always)]
    fn look_up(&mut self, sights: &mut [LookupBatch], now: Nanos) {
        // Nothing is decided by what is read here, so that no wait for a line ends in a wrong guess.
        let index = &self.index;
        for seen in sights.iter_mut().filter_map(|sight| sight.0.as_mut()) {
            seen.first = index.first(seen.hash);
        }
        // One line has the name, the other when it was heard of last. That is read first, as a store waits for what is before it.
        let (mut before, seconds) = (NONE, seconds(now));
        for seen in sights.iter_mut().filter_map(|sight| sight.0.as_mut()) {
            let key = &seen.segment.key;
            if seen.follows {
                seen.flow = before;
            } else if let Some(at) = self.index.find_from(seen.first, seen.hash, |at| self.flows[at].key == *key) {
                seen.flow = at as u32;
                let heard = &mut self.flows[at].heard;
                if *heard != seconds {
                    *heard = seconds;
                }
            }
            before = seen.flow;
        }
    }

    /// A segment whose flow is to be looked up.
    #[inline]
    fn unknown(&self, segment: Segment) -> Seen {
        let hash = segment.key.hash(&self.secrets);
        Seen { segment, hash, first: Slot::EMPTY, flow: NONE, follows: false, changes: self.changes }
    }

    /// The segment of a frame that was looked at, and its flow as it is now: frames before it may have opened or ended it.
    #[inline]
    pub(super) fn recall<'s>(&self, sight: &'s LookupBatch) -> Option<(&'s Segment, Option<usize>)> {
        let Seen { segment, flow, changes, .. } = sight.0.as_ref()?;
        let at =
            if *changes == self.changes { (*flow != NONE).then_some(*flow as usize) } else { self.find(&segment.key) };
        Some((segment, at))
    }
}
