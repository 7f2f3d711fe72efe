//! Where a mapped range is, as a signal's handler reads it, which may come in the midst of a change: so changes are counted, as in Linux's
//! seqlock, and what was read while the count was odd or changed is nothing.

use crate::access::{Processor, Word, Words};
use std::sync::atomic::Ordering;

/// First address and length of a range.
pub struct Bounds<A: Words = Processor> {
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
    /// Changes them. One thread does at a time: the owner's of the range, or the one that takes the place from those that are free.
    pub fn set(&self, start: usize, len: usize) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(1), Ordering::Relaxed);
        // Who finds anything of what follows finds that it changes.
        A::fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.changes.store(changes.wrapping_add(2), Ordering::Release);
    }

    /// First address and length, as they were together at one moment of the call. None where there is no range, or it was changed
    /// meanwhile: then it is not the range of a thread that faults in it.
    pub fn get(&self) -> Option<(usize, usize)> {
        let before = self.changes.load(Ordering::Acquire);
        let found = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        A::fence(Ordering::Acquire);
        let stands = before.is_multiple_of(2) && self.changes.load(Ordering::Relaxed) == before;
        (stands && found.0 != 0).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::model::{Model, Modelled, Unfenced, Unordered};
    use loom::{sync::Arc, thread};

    /// A range that is given up and taken anew, elsewhere and then where the first was, but shorter, while another thread looks, in every
    /// order that the memory model allows. Who looks is the second thread: Loom leaves orders out where it is the first.
    fn none_is_found_half_way<A: Modelled>() {
        loom::model(|| {
            const RANGES: [(usize, usize); 3] = [(1, 5), (2, 6), (1, 3)];
            let bounds = Arc::new(Bounds::<A>::default());
            let [first, others @ ..] = RANGES;
            bounds.set(first.0, first.1);
            let looker = bounds.clone();
            let looker = thread::spawn(move || looker.get());
            others.iter().for_each(|(start, len)| bounds.set(*start, *len));
            if let Some(found) = looker.join().unwrap() {
                assert!(RANGES.contains(&found), "half way: {found:?}");
            }
            assert_eq!(bounds.get(), Some((1, 3)));
            bounds.set(0, 0);
            assert_eq!(bounds.get(), None);
        });
    }

    #[test]
    fn no_range_is_found_half_way_between_two() {
        none_is_found_half_way::<Model>();
    }

    #[test]
    #[should_panic = "half way"]
    fn that_takes_fences() {
        none_is_found_half_way::<Unfenced>();
    }

    #[test]
    #[should_panic = "half way"]
    fn that_takes_acquire_and_release() {
        none_is_found_half_way::<Unordered>();
    }
}
