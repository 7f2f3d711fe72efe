//! Parses the frames of a burst and looks up their flows before they are judged.
//!
//! With many flows a flow is in main memory, and waiting for it takes longer than judging the frame: one cache line of
//! the index has the flow's number, a second the flow's key, a third the rest of its state, each dependent on the one
//! before. So a burst is processed in steps, each for all frames, and the processor waits for many cache lines at once.
//! With 100,000 flows and bursts of 32 this takes a fifth of the time per frame; a single frame waits as before. While
//! data is acknowledged early, a fourth line of the flow and one of its timer are read in the same step: with a million
//! flows that takes a fifth off the time of a frame that is acknowledged.
//!
//! Most frames of a burst have the same flow as the one before. Of these only the numbers are read, without a lookup.
//! And while nothing is acknowledged early, consecutive segments to the guest are merged into one.
//!
//! What did not help: a further step that only prefetches the flows' cache lines (the third step's loop is short enough
//! for the processor to run ahead); pages of 2 MiB (a tenth less time with 100,000 flows, but files in memory have them
//! only if the system's `shmem_enabled` allows it).

use super::index::{NONE, Slot};
use super::segment::{Segment, is_plain_data};
use super::{Direction, EarlyAck, seconds};
use crate::time::Nanos;
use std::hint::black_box;

/// The lookup of one frame of a burst, for [`EarlyAck::delivered`] or [`EarlyAck::from_guest`]; empty if the frame need
/// not be noted.
pub struct LookupBatch(Option<Found>);

/// A segment and its flow.
#[derive(Clone, Copy)]
struct Found {
    segment: Segment,
    /// The hash of the flow's key.
    hash: u32,
    /// The hash's first slot in the index.
    first: Slot,
    /// The flow's number; [`NONE`] if the flow is not in the table.
    flow: u32,
    /// Whether the frame before has the same flow.
    follows: bool,
    /// [`EarlyAck::changes`] at the time of the lookup.
    changes: u64,
}

impl EarlyAck<'_> {
    /// Parses the frames of a burst, each given by its head and its length in bytes, and looks up their flows. Replaces
    /// `lookups` by one entry per frame, in order. Returns whether any of the frames has to be noted; then all must be
    /// reported.
    pub fn look_up<'f>(
        &mut self,
        lookups: &mut Vec<LookupBatch>,
        direction: Direction,
        frames: impl Iterator<Item = (&'f [u8], usize)>,
        now: Nanos,
    ) -> bool {
        lookups.clear();
        if self.is_off() {
            lookups.extend(frames.map(|_| LookupBatch(None)));
            return false;
        }
        let is_watched = self.guest.watch(now);
        if is_watched {
            // Without new flows, flows that never opened must age all the same, so that the guest is left alone again.
            self.age(now);
        }
        let (noted, skipped) = self.read(lookups, direction, frames, is_watched, now);
        self.guest.skips |= skipped > 0;
        if direction == Direction::Out && noted + skipped > 0 && self.guest.frozen {
            self.thaw(now);
        }
        if noted == 0 {
            return false;
        }
        self.find_flows(lookups, now);
        true
    }

    /// The first step: parses the frames. Returns how many have to be noted and how many not.
    #[inline(always)]
    fn read<'f>(
        &mut self,
        lookups: &mut Vec<LookupBatch>,
        direction: Direction,
        frames: impl Iterator<Item = (&'f [u8], usize)>,
        is_watched: bool,
        now: Nanos,
    ) -> (u32, u32) {
        // While early ACKs are owed to the guest, each segment must be answered on its own.
        let is_quiet = direction == Direction::In && !self.is_engaged(now) && self.retained() == 0;
        let mut before: &[u8] = &[];
        // The index of the last segment in `lookups`.
        let mut last = None;
        let (mut noted, mut skipped) = (0, 0);
        for (head, len) in frames {
            let at = lookups.len();
            if !is_watched && is_plain_data(head) {
                lookups.push(LookupBatch(None));
                (last, skipped) = (None, skipped + 1);
                continue;
            }
            noted += 1;
            if let Some(found) = last.and_then(|last: usize| lookups[last].0.as_mut())
                && let Some(next) = found.segment.read_next(before, head, len)
            {
                if is_quiet && found.segment.is_covered_by(&next) {
                    found.segment.set_numbers(next, true);
                    lookups.push(LookupBatch(None));
                } else {
                    let mut found = Found { follows: true, ..*found };
                    found.segment.set_numbers(next, false);
                    lookups.push(LookupBatch(Some(found)));
                    last = Some(at);
                }
            } else {
                let segment = Segment::read(direction, head, len);
                if segment.is_none() && direction == Direction::Out {
                    self.note_fragment(head);
                }
                last = segment.is_some().then_some(at);
                lookups.push(LookupBatch(segment.map(|segment| self.unresolved(segment))));
            }
            before = head;
        }
        (noted, skipped)
    }

    /// The further steps: finds the flow of each segment.
    #[inline(always)]
    fn find_flows(&mut self, lookups: &mut [LookupBatch], now: Nanos) {
        // No branch depends on what is read here, so that no wait for a cache line ends in a misprediction.
        let index = &self.index;
        for found in lookups.iter_mut().filter_map(|lookup| lookup.0.as_mut()) {
            found.first = index.first(found.hash);
        }
        // One cache line has the key, another `last_seen`, which is read before it is stored, as a store waits for
        // earlier ones.
        let (mut before, seconds, is_engaged) = (NONE, seconds(now), self.is_engaged(now));
        for found in lookups.iter_mut().filter_map(|lookup| lookup.0.as_mut()) {
            let key = &found.segment.key;
            if found.follows {
                found.flow = before;
            } else if let Some(at) = self.index.find_from(found.first, found.hash, |at| self.flows[at].key == *key) {
                found.flow = at as u32;
                let last_seen = &mut self.flows[at].last_seen;
                if *last_seen != seconds {
                    *last_seen = seconds;
                }
                if is_engaged {
                    // The lines are needed when the frame is judged; here only the wait for them begins.
                    black_box((self.flows[at].recover, self.timers.contains(at as u32)));
                }
            }
            before = found.flow;
        }
    }

    /// A segment whose flow is not yet looked up.
    #[inline]
    fn unresolved(&self, segment: Segment) -> Found {
        let hash = segment.key.hash(&self.secrets);
        Found { segment, hash, first: Slot::EMPTY, flow: NONE, follows: false, changes: self.changes }
    }

    /// The segment of a lookup and its present flow: earlier frames may have opened or ended it since.
    #[inline]
    pub(super) fn recall<'l>(&self, lookup: &'l LookupBatch) -> Option<(&'l Segment, Option<usize>)> {
        let Found { segment, flow, changes, .. } = lookup.0.as_ref()?;
        let at =
            if *changes == self.changes { (*flow != NONE).then_some(*flow as usize) } else { self.find(&segment.key) };
        Some((segment, at))
    }
}
