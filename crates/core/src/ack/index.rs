//! A hash table of flow numbers: open addressing, linear probing, at most half full.
//!
//! A slot is a 32-bit hash and a flow number, so a cache line has eight slots and a lookup reads one line, rarely two.
//! Equal hashes do not identify a flow: the caller compares the flow's key. [`crate::table`], which stores whole keys,
//! would take twice the memory and hash the hash again.

/// No flow.
pub(super) const NONE: u32 = u32::MAX;

/// A flow's hash and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    hash: u32,
    flow: u32,
}

impl Slot {
    /// An empty slot.
    pub(super) const EMPTY: Slot = Slot { hash: 0, flow: NONE };
}

/// The numbers of all flows, by hash.
pub(super) struct Index {
    /// A power of two, at least twice the number of flows.
    slots: Box<[Slot]>,
    /// The bits of a hash that select its slot.
    mask: u32,
}

impl Index {
    /// An empty index with room for `flows` flows.
    pub(super) fn new(flows: usize) -> Index {
        let slots = vec![Slot::EMPTY; (2 * flows).next_power_of_two()];
        Index { mask: (slots.len() - 1) as u32, slots: slots.into() }
    }

    /// Makes room for `flows` flows in total.
    pub(super) fn grow(&mut self, flows: usize) {
        let larger = Index::new(flows);
        if larger.slots.len() > self.slots.len() {
            let old = std::mem::replace(self, larger);
            for slot in old.slots.iter().filter(|slot| slot.flow != NONE) {
                self.insert(slot.hash, slot.flow as usize);
            }
        }
    }

    /// The home slot of a hash: the first slot where its flow can be.
    #[inline]
    pub(super) fn first(&self, hash: u32) -> Slot {
        self.slots[self.home(hash)]
    }

    /// The flow with this hash for which `is` returns true, if there is one.
    #[inline]
    pub(super) fn find(&self, hash: u32, is: impl Fn(usize) -> bool) -> Option<usize> {
        self.find_from(self.first(hash), hash, is)
    }

    /// The same as [`Index::find`], if the [first](Index::first) slot was already read.
    #[inline]
    pub(super) fn find_from(&self, first: Slot, hash: u32, is: impl Fn(usize) -> bool) -> Option<usize> {
        let (mut slot, mut at) = (first, self.home(hash));
        while slot.flow != NONE {
            if slot.hash == hash && is(slot.flow as usize) {
                return Some(slot.flow as usize);
            }
            at = self.next(at);
            slot = self.slots[at];
        }
        None
    }

    /// Adds a flow that is not in the index. The caller reserved room for it.
    pub(super) fn insert(&mut self, hash: u32, flow: usize) {
        let mut at = self.home(hash);
        while self.slots[at].flow != NONE {
            at = self.next(at);
        }
        self.slots[at] = Slot { hash, flow: flow as u32 };
    }

    /// Removes a flow that is in the index. Later flows move back, so no tombstone lengthens a search.
    pub(super) fn remove(&mut self, hash: u32, flow: usize) {
        let mut hole = self.home(hash);
        while self.slots[hole].flow != flow as u32 {
            hole = self.next(hole);
        }
        let mask = self.mask as usize;
        let mut at = hole;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if slot.flow == NONE {
                break;
            }
            // It may move back into the hole unless its home lies after the hole.
            if at.wrapping_sub(self.home(slot.hash)) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = Slot::EMPTY;
    }

    /// The position of a hash's home slot.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash & self.mask) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & self.mask as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Few hashes for many flows, so that searches are long and wrap.
        #[test]
        fn finds_exactly_the_flows_it_holds(hashes in proptest::collection::vec(26u32..34, 16), steps in proptest::collection::vec(0usize..16, 0..200)) {
            let mut index = Index::new(16);
            let mut present = [false; 16];
            for flow in steps {
                if present[flow] {
                    index.remove(hashes[flow], flow);
                } else {
                    index.insert(hashes[flow], flow);
                }
                present[flow] = !present[flow];
                for (flow, hash) in hashes.iter().enumerate() {
                    prop_assert_eq!(index.find(*hash, |at| at == flow), present[flow].then_some(flow));
                }
            }
        }
    }
}
