//! Frames of a burst, read and looked up before they are judged.
//!
//! Among many flows, what is known of one is in main memory, and waiting for it takes longer than judging the frame: a line of
//! the index says which flow it is, a second has its name, a third the rest of its numbers, one wait after the other. So a burst
//! is gone over step by step, each step for all of its frames, and the processor waits for many lines at once. Of the time of a
//! frame among 100,000 flows, that leaves a fifth in bursts of 32; one that comes alone waits as before.
//!
//! What did not help: a further step that only reads the lines of the flows (the third step's loop is short enough for the
//! processor to run ahead in); pages of 2 MiB (a tenth less among 100,000 flows, and files in memory have none unless the
//! system's `shmem_enabled` says so).

use super::index::{NONE, Slot};
use super::segment::Segment;
use super::{EarlyAck, Way, seconds};
use crate::PortId;
use crate::time::Nanos;

/// A frame that was looked at, for [`EarlyAck::delivered`] or [`EarlyAck::from_guest`].
pub struct Sight(Option<Seen>);

/// A segment, and its flow.
struct Seen {
    segment: Segment,
    /// The hash of its flow's name.
    hash: u32,
    /// The first slot of the index where the flow can be.
    first: Slot,
    /// The flow's number; [`NONE`] if it is not known.
    flow: u32,
    /// [`EarlyAck::changes`] when it was looked up.
    changes: u64,
}

impl EarlyAck<'_> {
    /// Looks at the frames of a burst that go `way` at a guest, which are shown next: each by its head and how many bytes it has.
    /// `sights` then has one for each, in their order; what it had before is dropped.
    pub fn look<'f>(
        &mut self,
        sights: &mut Vec<Sight>,
        guest: PortId,
        way: Way,
        frames: impl Iterator<Item = (&'f [u8], usize)>,
        now: Nanos,
    ) {
        sights.clear();
        if self.is_out(guest) {
            sights.extend(frames.map(|_| Sight(None)));
            return;
        }
        let (seed, changes, seconds) = (self.config.seed, self.changes, seconds(now));
        sights.extend(frames.map(|(head, len)| {
            Sight(Segment::read(guest, way, head, len).map(|segment| {
                let hash = segment.key.hash(seed);
                Seen { segment, hash, first: Slot::EMPTY, flow: NONE, changes }
            }))
        }));
        // Nothing is decided by what is read here, so that no wait for a line ends in a wrong guess.
        for seen in sights.iter_mut().filter_map(|sight| sight.0.as_mut()) {
            seen.first = self.index.first(seen.hash);
        }
        // One line has the name, the other when it was heard of last. That is read first, as a store waits for what is before it.
        for seen in sights.iter_mut().filter_map(|sight| sight.0.as_mut()) {
            let key = &seen.segment.key;
            if let Some(at) = self.index.find_from(seen.first, seen.hash, |at| self.flows[at].key == *key) {
                seen.flow = at as u32;
                let heard = &mut self.flows[at].heard;
                if *heard != seconds {
                    *heard = seconds;
                }
            }
        }
    }

    /// The segment of a frame that was looked at, and its flow as it is now: frames before it may have opened or ended it.
    #[inline]
    pub(super) fn recall<'s>(&self, sight: &'s Sight) -> Option<(&'s Segment, Option<usize>)> {
        let Seen { segment, flow, changes, .. } = sight.0.as_ref()?;
        let at =
            if *changes == self.changes { (*flow != NONE).then_some(*flow as usize) } else { self.find(&segment.key) };
        Some((segment, at))
    }
}
