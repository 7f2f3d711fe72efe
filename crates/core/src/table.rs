//! A hash table with 64-bit keys: open addressing, linear probing, at most half full.
//!
//! Guests choose the keys, through their addresses, so the hash is keyed by a secret seed. At most half full, a lookup
//! takes at most 2.5 probes on average (Knuth, The Art of Computer Programming, 6.4). Removal moves later entries back,
//! so no tombstone lengthens a search.

/// No key.
const NONE: u64 = 0;

#[derive(Clone, Copy, Default)]
struct Slot<V> {
    key: u64,
    value: V,
}

/// Values by key; a key is never 0.
pub(crate) struct Table<V> {
    /// A power of two, at least twice the number of entries.
    slots: Box<[Slot<V>]>,
    used: usize,
    secrets: Secrets<4>,
}

impl<V: Copy + Default> Table<V> {
    /// An empty table. Someone who knows the seed can make it slow.
    pub(crate) fn new(seed: u64) -> Table<V> {
        Table { slots: vec![Slot::default(); 16].into(), used: 0, secrets: Secrets::new(seed) }
    }

    /// Makes room for `entries` in total.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let size = (2 * entries).next_power_of_two();
        if size > self.slots.len() {
            let old = std::mem::replace(&mut self.slots, vec![Slot::default(); size].into());
            self.used = 0;
            for slot in old.into_iter().filter(|slot| slot.key != NONE) {
                self.insert(slot.key, slot.value);
            }
        }
    }

    /// The value of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<V> {
        let slot = &self.slots[self.probe(key)];
        (slot.key == key).then_some(slot.value)
    }

    /// The value of a key, mutable.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let at = self.probe(key);
        let slot = &mut self.slots[at];
        (slot.key == key).then_some(&mut slot.value)
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// If the key is new and no room was reserved for it.
    pub(crate) fn insert(&mut self, key: u64, value: V) {
        let at = self.probe(key);
        if self.slots[at].key == NONE {
            assert!(2 * (self.used + 1) <= self.slots.len(), "room must be reserved before an insertion");
            self.used += 1;
        }
        self.slots[at] = Slot { key, value };
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: u64) {
        let mut hole = self.probe(key);
        if self.slots[hole].key != key {
            return;
        }
        self.used -= 1;
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.key == NONE {
                break;
            }
            // It may move back into the hole unless its home lies after the hole.
            if at.wrapping_sub(self.home(slot.key)) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = Slot::default();
    }

    /// Removes every key for which `which` returns true.
    pub(crate) fn remove_where(&mut self, which: impl Fn(u64) -> bool) {
        let keys: Vec<u64> = self.slots.iter().map(|slot| slot.key).filter(|key| *key != NONE && which(*key)).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    /// The number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// The slot of a key, or the empty slot for it.
    #[inline]
    fn probe(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].key != key && self.slots[at].key != NONE {
            at = (at + 1) & mask;
        }
        at
    }

    /// The first slot to probe for a key.
    #[inline]
    fn home(&self, key: u64) -> usize {
        let [a, b, c, d] = self.secrets.0;
        fold(fold(key ^ a, b) ^ c, d) as usize & (self.slots.len() - 1)
    }
}

/// The secrets of a keyed hash: one for each factor.
#[derive(Clone, Copy)]
pub(crate) struct Secrets<const COUNT: usize>(pub [u64; COUNT]);

impl<const COUNT: usize> Secrets<COUNT> {
    /// Derives all from one seed by SplitMix64 (Steele, Lea, Flood, OOPSLA'14). They are odd, so none is zero.
    pub(crate) fn new(seed: u64) -> Secrets<COUNT> {
        let mut state = seed;
        Secrets(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31 | 1
        }))
    }
}

/// The exclusive or of both halves of a 128-bit product, as in wyhash. With a single round, regular keys get regular
/// slots.
#[inline]
pub(crate) fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(seed: u64, steps in proptest::collection::vec((0u8..4, 1u64..100, 0u32..9), 0..400)) {
            let mut table = Table::new(seed);
            let mut model: HashMap<u64, u32> = HashMap::new();
            for (step, key, value) in steps {
                match step {
                    0 => {
                        table.remove(key);
                        model.remove(&key);
                    }
                    1 if value == 0 => {
                        table.remove_where(|known| known % 8 == key % 8);
                        model.retain(|known, _| known % 8 != key % 8);
                    }
                    _ => {
                        table.reserve(model.len() + 1);
                        table.insert(key, value);
                        model.insert(key, value);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 1..100 {
                    prop_assert_eq!(table.get(key), model.get(&key).copied());
                    prop_assert_eq!(table.get_mut(key).copied(), model.get(&key).copied());
                }
            }
        }

        #[test]
        fn regular_keys_spread(seed: u64, shift in 0u32..40) {
            let mut table = Table::new(seed);
            table.reserve(2048);
            for index in 0..2048u64 {
                table.insert(1 << 63 | index << shift, ());
            }
            let mask = table.slots.len() - 1;
            let used = table.slots.iter().enumerate().filter(|(_, slot)| slot.key != NONE);
            let probes: usize = used.map(|(at, slot)| (at.wrapping_sub(table.home(slot.key)) & mask) + 1).sum();
            prop_assert!(probes < 3 * table.len(), "{probes} probes for {} entries", table.len());
        }
    }
}
