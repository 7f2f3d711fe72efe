//! The bounds of a mapped range, readable by a signal handler even in the middle of a change: changes are counted, as
//! in Linux's seqlock, and a read during which the count was odd or changed is discarded.

use crate::access::{Processor, Word, Words};
use std::sync::atomic::Ordering;

/// First address and length of a range.
pub(super) struct Bounds<A: Words = Processor> {
    changes: A::Address,
    /// 0 while there is no range.
    start: A::Address,
    len: A::Address,
}

impl<A: Words<Address: Default>> Default for Bounds<A> {
    fn default() -> Bounds<A> {
        Bounds { changes: A::Address::default(), start: A::Address::default(), len: A::Address::default() }
    }
}

impl<A: Words> Bounds<A> {
    /// Changes the bounds. Called by one thread at a time: the range's owner, or the thread that takes the entry from
    /// the free list.
    pub(super) fn set(&self, start: usize, len: usize) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees any of the following stores also sees the odd count.
        A::fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }

    /// First address and length, consistent with each other. None if there is no range, or it changed during the call:
    /// then it is not the range in which the calling thread faulted.
    pub(super) fn get(&self) -> Option<(usize, usize)> {
        let before = self.changes.load(Ordering::Acquire);
        let found = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        A::fence(Ordering::Acquire);
        let consistent = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        (consistent && found.0 != 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::model::{Model, Modelled, Unfenced, Unordered};
    use loom::{sync::Arc, thread};

    /// Frees a range and sets it again, first elsewhere and then at the old start but shorter, while another thread
    /// reads, in every order that the memory model allows. The reader is the second thread: Loom omits orders if it is
    /// the first.
    fn no_mixed_range_is_read<A: Modelled>() {
        loom::model(|| {
            const RANGES: [(usize, usize); 3] = [(1, 5), (2, 6), (1, 3)];
            let bounds = Arc::new(Bounds::<A>::default());
            let [first, others @ ..] = RANGES;
            bounds.set(first.0, first.1);
            let reader = bounds.clone();
            let reader = thread::spawn(move || reader.get());
            others.iter().for_each(|(start, len)| bounds.set(*start, *len));
            if let Some(found) = reader.join().unwrap() {
                assert!(RANGES.contains(&found), "mixed: {found:?}");
            }
            assert_eq!(bounds.get(), Some((1, 3)));
            bounds.set(0, 0);
            assert_eq!(bounds.get(), None);
        });
    }

    #[test]
    fn no_mixed_bounds_are_read() {
        no_mixed_range_is_read::<Model>();
    }

    #[test]
    #[should_panic = "mixed"]
    fn without_fences_mixed_bounds_are_read() {
        no_mixed_range_is_read::<Unfenced>();
    }

    #[test]
    #[should_panic = "mixed"]
    fn without_acquire_and_release_mixed_bounds_are_read() {
        no_mixed_range_is_read::<Unordered>();
    }
}
