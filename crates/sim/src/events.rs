//! Events in the order of their times, and those of one time in the order in which they were added: a radix heap (Ahuja, Mehlhorn,
//! Orlin and Tarjan, "Faster Algorithms for the Shortest Path Problem", Journal of the ACM 37(2), 1990).
//!
//! An event is in the bucket of the highest bit in which its time differs from that of the last event taken. Only the lowest bucket
//! with events has to be looked through, and each of its events goes to a lower one. So an event moves once for each bit at most, in
//! memory that is read in order, however many there are.

use fairlane_core::time::Nanos;

/// Events to come, none before the last one taken.
pub(crate) struct Events<T> {
    /// The time of the last one taken, the events of that time, and how many of those were taken.
    now: Nanos,
    due: Vec<T>,
    taken: usize,
    /// Later ones, and which buckets have some.
    buckets: [Vec<(Nanos, T)>; u64::BITS as usize],
    full: u64,
}

impl<T: Copy> Events<T> {
    /// No events.
    pub(crate) fn new() -> Events<T> {
        let buckets = std::array::from_fn(|_| Vec::new());
        Events { now: Nanos(0), due: Vec::new(), taken: 0, buckets, full: 0 }
    }

    /// Adds an event, which is due at once if its time is over.
    #[inline]
    pub(crate) fn add(&mut self, time: Nanos, event: T) {
        if time <= self.now {
            return self.due.push(event);
        }
        let bucket = (time.0 ^ self.now.0).ilog2();
        self.full |= 1 << bucket;
        self.buckets[bucket as usize].push((time, event));
    }

    /// Takes the next event, and returns its time with it.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(Nanos, T)> {
        if self.taken == self.due.len() {
            self.refill()?;
        }
        self.taken += 1;
        Some((self.now, self.due[self.taken - 1]))
    }

    /// Finds the events that are due next. None if there are no events.
    fn refill(&mut self) -> Option<()> {
        let lowest = self.full.trailing_zeros() as usize;
        let mut events = std::mem::take(self.buckets.get_mut(lowest)?);
        self.full &= self.full - 1;
        self.due.clear();
        self.taken = 0;
        self.now = events.iter().map(|(time, _)| *time).min()?;
        events.drain(..).for_each(|(time, event)| self.add(time, event));
        // Its memory is used again.
        self.buckets[lowest] = events;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// As a map sorted by time and number, whatever the distances.
        #[test]
        fn events_come_by_time_and_then_in_their_order(steps in prop::collection::vec((any::<bool>(), 0..64u32, any::<u64>()), 1..500)) {
            let mut events = Events::new();
            let mut model = BTreeMap::new();
            let mut now = Nanos(0);
            for (number, (adds, shift, distance)) in steps.into_iter().enumerate() {
                if adds {
                    let time = Nanos(now.0.saturating_add(distance >> shift));
                    events.add(time, number);
                    model.insert((time, number), ());
                } else {
                    let expected = model.pop_first().map(|(event, ())| event);
                    prop_assert_eq!(events.take(), expected);
                    now = expected.map_or(now, |(time, _)| time);
                }
            }
            while let Some((expected, ())) = model.pop_first() {
                prop_assert_eq!(events.take(), Some(expected));
            }
            prop_assert_eq!(events.take(), None);
        }
    }
}
