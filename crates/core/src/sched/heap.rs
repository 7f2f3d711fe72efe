//! A binary heap of ports ordered by time, from which any port can be removed.
//!
//! Memory for a port is reserved when it is configured; after that nothing is allocated. Operations are O(log n) in the
//! number of ports in the heap (Cormen et al., "Introduction to Algorithms", chapter 6).

use super::list::NONE;
use crate::time::Nanos;

/// Ports by time, earliest first.
#[derive(Default)]
pub(crate) struct Heap {
    items: Vec<(Nanos, u32)>,
    /// Where each port is in `items`.
    places: Vec<u32>,
}

impl Heap {
    /// Makes room for ports below `ports`.
    pub(crate) fn grow(&mut self, ports: usize) {
        if self.places.len() < ports {
            self.places.resize(ports, NONE);
            self.items.reserve(ports - self.items.len());
        }
    }

    /// The number of ports in the heap.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The earliest port.
    #[inline]
    pub(crate) fn peek(&self) -> Option<(Nanos, u32)> {
        self.items.first().copied()
    }

    /// Whether a port is in the heap.
    #[inline]
    pub(crate) fn contains(&self, port: u32) -> bool {
        self.places[port as usize] != NONE
    }

    /// The time of a port, if it is in the heap.
    #[inline]
    pub(crate) fn time_of(&self, port: u32) -> Option<Nanos> {
        let place = self.places[port as usize];
        (place != NONE).then(|| self.items[place as usize].0)
    }

    /// Adds a port that is not in the heap.
    pub(crate) fn push(&mut self, port: u32, at: Nanos) {
        self.items.push((at, port));
        self.rise(self.items.len() - 1);
    }

    /// Removes a port. Returns whether it was in the heap.
    pub(crate) fn remove(&mut self, port: u32) -> bool {
        let place = std::mem::replace(&mut self.places[port as usize], NONE);
        if place == NONE {
            return false;
        }
        self.items.swap_remove(place as usize);
        if (place as usize) < self.items.len() {
            let place = self.rise(place as usize);
            self.sink(place);
        }
        true
    }

    /// Removes the earliest port if its time is not after `now`.
    pub(crate) fn pop_until(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        let first = self.peek().filter(|(at, _)| *at <= now)?;
        self.remove(first.1);
        Some(first)
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.items[parent].0 <= self.items[place].0 {
                break;
            }
            self.swap(place, parent);
            place = parent;
        }
        self.places[self.items[place].1 as usize] = place as u32;
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let left = 2 * place + 1;
            let right = left + 1;
            let Some(mut child) = (left < self.items.len()).then_some(left) else { return };
            if right < self.items.len() && self.items[right].0 < self.items[left].0 {
                child = right;
            }
            if self.items[place].0 <= self.items[child].0 {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
        self.places[self.items[a].1 as usize] = a as u32;
        self.places[self.items[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn pops_ports_in_order_of_time(steps in prop::collection::vec((0u8..3, 0u32..16, 0u64..100), 0..300)) {
            let mut heap = Heap::default();
            heap.grow(16);
            let mut model = BTreeMap::new();
            for (step, port, time) in steps {
                match step {
                    0 if !model.contains_key(&port) => { heap.push(port, Nanos(time)); model.insert(port, Nanos(time)); }
                    1 => prop_assert_eq!(heap.remove(port), model.remove(&port).is_some()),
                    _ => match heap.pop_until(Nanos(time)) {
                        Some((at, port)) => {
                            prop_assert_eq!(model.values().min(), Some(&at));
                            prop_assert_eq!(model.remove(&port), Some(at));
                        }
                        None => prop_assert!(model.values().all(|at| *at > Nanos(time))),
                    },
                }
                prop_assert_eq!(heap.time_of(port), model.get(&port).copied());
                prop_assert_eq!(heap.peek().map(|(at, _)| at), model.values().min().copied());
            }
        }
    }
}
