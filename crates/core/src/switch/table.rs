//! The switch's memory of addresses: open addressing, linear probing, at most half full.
//!
//! Guests choose the keys, so the hash is keyed by a secret seed. Half full, a lookup then takes 2.5 probes at the
//! most on average (Knuth, The Art of Computer Programming, 6.4). Removal moves later entries back, so nothing is left
//! behind that would lengthen probes.

use crate::PortId;
use crate::packet::Mac;
use crate::time::Nanos;

/// A MAC address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    const NONE: Key = Key(0);
    const USED: u64 = 1 << 63;
    const MAC: u64 = (1 << 48) - 1;

    #[inline]
    pub fn new(mac: Mac, vlan: u16) -> Key {
        Key(Key::USED | u64::from(vlan & 0xfff) << 48 | u64::from(mac))
    }
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub port: PortId,
    /// When it last sent; never for a pinned address, which does not age.
    pub seen: Nanos,
}

impl Place {
    /// A port's own address. It stands under VLAN 0, where most frames look first, and counts in all VLANs.
    pub fn pinned(port: PortId) -> Place {
        Place { port, seen: Nanos::NEVER }
    }

    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.seen == Nanos::NEVER
    }
}

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    place: Place,
}

const EMPTY: Slot = Slot { key: Key::NONE, place: Place { port: PortId(0), seen: Nanos(0) } };

/// Addresses and their places.
pub struct Table {
    /// A power of two, twice the entries or more.
    slots: Box<[Slot]>,
    used: usize,
    seed: u64,
}

impl Table {
    /// An empty table. Whoever knows the seed can make it slow.
    pub fn new(seed: u64) -> Table {
        Table { slots: vec![EMPTY; 16].into(), used: 0, seed }
    }

    /// Makes room for `entries` in all.
    pub fn reserve(&mut self, entries: usize) {
        let size = (2 * entries).next_power_of_two();
        if size > self.slots.len() {
            let old = std::mem::replace(&mut self.slots, vec![EMPTY; size].into());
            self.used = 0;
            for slot in old.into_iter().filter(|slot| slot.key != Key::NONE) {
                self.insert(slot.key, slot.place);
            }
        }
    }

    /// Where a key is.
    #[inline]
    pub fn get(&self, key: Key) -> Option<Place> {
        let slot = &self.slots[self.probe(key)];
        (slot.key == key).then_some(slot.place)
    }

    /// Where a key is, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Place> {
        let at = self.probe(key);
        let slot = &mut self.slots[at];
        (slot.key == key).then_some(&mut slot.place)
    }

    /// Puts a key, new or known.
    ///
    /// # Panics
    /// If no room was reserved for it.
    pub fn insert(&mut self, key: Key, place: Place) {
        let at = self.probe(key);
        if self.slots[at].key == Key::NONE {
            assert!(2 * (self.used + 1) <= self.slots.len(), "room is reserved before entries are put");
            self.used += 1;
        }
        self.slots[at] = Slot { key, place };
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: Key) {
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
            if slot.key == Key::NONE {
                break;
            }
            // It may move back to the hole if its home is not behind the hole, counted from where it is.
            if at.wrapping_sub(self.home(slot.key)) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }

    /// Forgets an address in every VLAN.
    pub fn forget(&mut self, mac: Mac) {
        let keys: Vec<Key> = self
            .slots
            .iter()
            .map(|slot| slot.key)
            .filter(|key| key.0 & Key::MAC == mac.into() && *key != Key::NONE)
            .collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }

    /// How many entries there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.used
    }

    /// The slot of a key, or the empty one where it would be.
    #[inline]
    fn probe(&self, key: Key) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].key != key && self.slots[at].key != Key::NONE {
            at = (at + 1) & mask;
        }
        at
    }

    /// Where a key would best be.
    #[inline]
    fn home(&self, key: Key) -> usize {
        let mixed = fold(key.0 ^ self.seed, 0x9e37_79b9_7f4a_7c15);
        fold(mixed ^ self.seed.rotate_left(32), 0xd6e8_feb8_6659_fd93) as usize & (self.slots.len() - 1)
    }
}

/// Both halves of a 128-bit product in one, as wyhash mixes. One round alone leaves regular keys in regular places.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
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
        fn as_a_map(seed: u64, steps in proptest::collection::vec((0u8..4, 0u8..40, 0u16..3, 0u32..9), 0..400)) {
            let mut table = Table::new(seed);
            let mut model: HashMap<(u8, u16), Place> = HashMap::new();
            for (step, mac, vlan, port) in steps {
                let address = Mac([2, 0, 0, 0, 0, mac]);
                let key = Key::new(address, vlan);
                let place = Place { port: PortId(port), seen: Nanos(port.into()) };
                match step {
                    0 => {
                        table.remove(key);
                        model.remove(&(mac, vlan));
                    }
                    1 if port == 0 => {
                        table.forget(address);
                        model.retain(|known, _| known.0 != mac);
                    }
                    _ => {
                        table.reserve(model.len() + 1);
                        table.insert(key, place);
                        model.insert((mac, vlan), place);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                for mac in 0..40 {
                    for vlan in 0..3 {
                        let key = Key::new(Mac([2, 0, 0, 0, 0, mac]), vlan);
                        prop_assert_eq!(table.get(key), model.get(&(mac, vlan)).copied());
                        prop_assert_eq!(table.get_mut(key).copied(), model.get(&(mac, vlan)).copied());
                    }
                }
            }
        }

        #[test]
        fn regular_keys_spread(seed: u64, shift in 0u32..40) {
            let mut table = Table::new(seed);
            table.reserve(2048);
            for index in 0..2048u64 {
                let [_, _, mac @ ..] = (index << shift).to_be_bytes();
                table.insert(Key::new(Mac(mac), 0), EMPTY.place);
            }
            let mask = table.slots.len() - 1;
            let used = table.slots.iter().enumerate().filter(|(_, slot)| slot.key != Key::NONE);
            let probes: usize = used.map(|(at, slot)| (at.wrapping_sub(table.home(slot.key)) & mask) + 1).sum();
            prop_assert!(probes < 3 * table.len(), "{probes} probes for {} entries", table.len());
        }
    }
}
