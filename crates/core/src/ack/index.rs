//! Numbers of flows by the hash of their names: open addressing, linear probing, at most half full.
//!
//! A slot is a hash of 32 bits and a number, so a line of the processor's cache has eight, and a lookup takes one line, seldom
//! two. Equal hashes prove nothing: who looks up says by the flow itself whether it is the one. [`crate::table`], whose keys are
//! whole, would take twice the memory, and mix once more what is mixed already.

/// Stands for "no flow".
pub const NONE: u32 = u32::MAX;

/// A flow's hash and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    hash: u32,
    flow: u32,
}

impl Slot {
    /// One that nothing is in.
    pub const EMPTY: Slot = Slot { hash: 0, flow: NONE };
}

/// The numbers of all flows.
pub struct Index {
    /// A power of two, twice the flows or more.
    slots: Box<[Slot]>,
    /// The bits of a number that say which.
    mask: u32,
}

impl Index {
    /// Room for so many flows.
    pub fn new(flows: usize) -> Index {
        let slots = vec![Slot::EMPTY; (2 * flows).next_power_of_two()];
        Index { mask: (slots.len() - 1) as u32, slots: slots.into() }
    }

    /// Makes room for so many flows.
    pub fn grow(&mut self, flows: usize) {
        let larger = Index::new(flows);
        if larger.slots.len() > self.slots.len() {
            let old = std::mem::replace(self, larger);
            for slot in old.slots.iter().filter(|slot| slot.flow != NONE) {
                self.insert(slot.hash, slot.flow as usize);
            }
        }
    }

    /// What stands where a flow with this hash would be best: the first of the slots where it can be.
    #[inline]
    pub fn first(&self, hash: u32) -> Slot {
        self.slots[self.home(hash)]
    }

    /// The flow with this hash that `is` the one, if the index has it.
    #[inline]
    pub fn find(&self, hash: u32, is: impl Fn(usize) -> bool) -> Option<usize> {
        self.find_from(self.first(hash), hash, is)
    }

    /// The same, if the [first](Index::first) slot was read already.
    #[inline]
    pub fn find_from(&self, first: Slot, hash: u32, is: impl Fn(usize) -> bool) -> Option<usize> {
        let (mut slot, mut at) = (first, self.home(hash));
        while slot.flow != NONE {
            if slot.hash == hash && is(slot.flow as usize) {
                return Some(slot.flow as usize);
            }
            at = self.behind(at);
            slot = self.slots[at];
        }
        None
    }

    /// Puts a flow that is not there. There is room for as many as there are flows.
    pub fn insert(&mut self, hash: u32, flow: usize) {
        let mut at = self.home(hash);
        while self.slots[at].flow != NONE {
            at = self.behind(at);
        }
        self.slots[at] = Slot { hash, flow: flow as u32 };
    }

    /// Takes out a flow that is there. Flows behind it move back, so nothing is left that would lengthen a search.
    pub fn remove(&mut self, hash: u32, flow: usize) {
        let mut hole = self.home(hash);
        while self.slots[hole].flow != flow as u32 {
            hole = self.behind(hole);
        }
        let mask = self.mask as usize;
        let mut at = hole;
        loop {
            at = self.behind(at);
            let slot = self.slots[at];
            if slot.flow == NONE {
                break;
            }
            // It may move back to the hole if its home is not behind the hole, counted from where it is.
            if at.wrapping_sub(self.home(slot.hash)) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = Slot::EMPTY;
    }

    /// Where a flow with this hash would be best.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash & self.mask) as usize
    }

    #[inline]
    fn behind(&self, at: usize) -> usize {
        (at + 1) & self.mask as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Few hashes for many flows: searches are long, and go over the end.
        #[test]
        fn finds_what_is_in_it(hashes in proptest::collection::vec(26u32..34, 16), steps in proptest::collection::vec(0usize..16, 0..200)) {
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
