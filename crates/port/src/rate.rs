//! A link's rate and the queue before it, in integers: used by both the wire and a paced port.
//!
//! The queue is not stored. A link that drains its queue at a known rate has `(free - now) * rate` left in it, so the
//! time at which it will be free is all its state (a virtual queue, equivalent to GCRA in its scheduling form).

use crate::Room;
use fairlane_core::time::{Nanos, SECOND};

/// A link with a rate and a bounded queue, to the nanosecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Bits a second; `None` passes everything at once.
    rate: Option<u64>,
    /// Size of the queue in bytes.
    queue: u64,
    /// The time that a full queue takes to drain.
    queue_time: Nanos,
    /// When everything admitted will have passed, and the fraction of a nanosecond beyond that, in units of 1/rate.
    free: Nanos,
    fraction: u64,
    /// When there is room again after a refusal.
    resume: Nanos,
}

impl Link {
    /// An idle link. A rate of 0 means no limit.
    pub(crate) fn new(rate: Option<u64>, queue: u64) -> Link {
        let rate = rate.filter(|rate| *rate > 0);
        let queue_time = Nanos(rate.map_or(0, |rate| duration(queue, rate)));
        Link { rate, queue, queue_time, free: Nanos(0), fraction: 0, resume: Nanos(0) }
    }

    /// Changes the rate. Bytes that are queued now pass at the new one.
    pub(crate) fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        let old = *self;
        *self = Link::new(rate, self.queue);
        if let (Some(before), Some(after)) = (old.rate, self.rate) {
            let left = u128::from(old.free.since(now).0) * u128::from(before) / u128::from(after);
            self.free = now + Nanos(u64::try_from(left).unwrap_or(u64::MAX));
        }
    }

    /// Admits a frame if the queue has room for it or is empty. Returns when its last bit has passed.
    ///
    /// The remainder of each division is carried to the next frame, so that a busy link's rate is exact over any time.
    #[inline]
    pub(crate) fn admit(&mut self, bytes: u64, now: Nanos) -> Option<Nanos> {
        let Some(rate) = self.rate else { return Some(now) };
        let (start, fraction) = if now > self.free { (now, 0) } else { (self.free, self.fraction) };
        let work = bytes * 8 * SECOND + fraction;
        let finish = start + Nanos(work / rate);
        if self.free > now && finish.since(now) > self.queue_time {
            // There must be room for this frame again, and half the queue empty: a waiting sender is not woken for each
            // frame.
            let own = Nanos(duration(bytes, rate) + 1);
            let left = Nanos(self.queue_time.0 / 2).min(self.queue_time.since(own));
            self.resume = self.free.since(left);
            return None;
        }
        (self.free, self.fraction) = (finish, work % rate);
        Some(finish)
    }

    /// Whether the frame refused last would be admitted, or when.
    pub(crate) fn room(&self, now: Nanos) -> Room {
        if now >= self.resume { Room::Now } else { Room::At(self.resume) }
    }
}

/// Whole nanoseconds that `bytes` take.
fn duration(bytes: u64, rate: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 8 * u128::from(SECOND) / u128::from(rate)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A busy link passes exactly its rate: the n-th finish is the sum of all bits over the rate, rounded once.
        #[test]
        fn remainders_are_carried(rate in 1_000..400_000_000_000u64, sizes in prop::collection::vec(1..65_550u64, 1..300), start: u32) {
            let mut link = Link::new(Some(rate), u64::MAX);
            let mut bits = 0u128;
            for size in sizes {
                bits += u128::from(size) * 8;
                let finish = link.admit(size, Nanos(start.into())).unwrap();
                prop_assert_eq!(u128::from(finish.0), u128::from(start) + bits * 1_000_000_000 / u128::from(rate));
            }
        }

        /// A refused frame is admitted at the time that the link names, and by then at least half the queue has
        /// drained.
        #[test]
        fn there_is_room_at_the_time_named(rate in 1_000..400_000_000_000u64, queue in 0..1_000_000u64, sizes in prop::collection::vec(1..65_550u64, 1..300)) {
            let mut link = Link::new(Some(rate), queue);
            let mut now = Nanos(0);
            for size in sizes {
                if link.admit(size, now).is_none() {
                    let Room::At(time) = link.room(now) else { return Err(TestCaseError::fail("refused, yet there is room")) };
                    prop_assert!(time > now);
                    now = time;
                    prop_assert!(link.free.since(now) <= Nanos(link.queue_time.0 / 2));
                    prop_assert_eq!(link.room(now), Room::Now);
                    prop_assert!(link.admit(size, now).is_some());
                }
            }
        }
    }

    #[test]
    fn an_empty_queue_admits_any_frame_and_an_unlimited_link_all() {
        let mut small = Link::new(Some(8_000_000_000), 100);
        assert_eq!(small.admit(65_550, Nanos(5)), Some(Nanos(65_555)));
        assert_eq!(small.admit(10, Nanos(5)), None);
        assert_eq!(small.room(Nanos(5)), Room::At(Nanos(65_505)));
        let mut unlimited = Link::new(None, 0);
        assert!((0..1000).all(|time| unlimited.admit(65_550, Nanos(time)) == Some(Nanos(time))));
    }

    #[test]
    fn a_changed_rate_applies_to_queued_bytes() {
        let mut link = Link::new(Some(8_000_000_000), 1_000_000);
        link.admit(1_000, Nanos(0));
        link.set_rate(Some(4_000_000_000), Nanos(500));
        assert_eq!(link.admit(1_000, Nanos(500)), Some(Nanos(500 + 1_000 + 2_000)));
    }
}
