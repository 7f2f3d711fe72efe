//! Whose frames wait in a receive queue, so that a flood of one sender leaves room for the frames of others.
//!
//! A queue's frames leave it in their order, so what a sender gets of its guest's ring is its part of the queue. A sender alone may use
//! all of it. Of several, each may have so many times as much as is free, by its weight (Choudhury and Hahne, "Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches", IEEE/ACM ToN 1998): those who want more than their part share what others leave by
//! weight, and there is room for who comes next. Whatever its weight, a sender may have one frame.

use fairlane_core::PortId;

/// How many times the free bytes all senders together may have in a queue.
const TIMES: u64 = 2;

/// The senders that have frames in a queue.
#[derive(Default)]
pub(crate) struct Senders {
    /// By their ports.
    held: Vec<Held>,
    /// Sum of their weights.
    weights: u64,
}

/// What a sender has in the queue.
struct Held {
    sender: PortId,
    weight: u32,
    bytes: u64,
}

impl Senders {
    /// The sender of all frames, if it is the same.
    pub(crate) fn only(&self) -> Option<PortId> {
        if let [Held { sender, .. }] = self.held[..] { Some(sender) } else { None }
    }

    /// Whether a sender of this weight may have `bytes` more in a queue with room for them, of whose `bound` bytes so many are used.
    pub(crate) fn admits(&self, sender: PortId, weight: u32, bytes: u64, used: u64, bound: u64) -> bool {
        let (own, weights) = match self.find(sender) {
            Ok(index) => (self.held[index].bytes, self.weights),
            Err(_) => (0, self.weights + u64::from(weight)),
        };
        let free = bound.saturating_sub(used);
        let most = u128::from(TIMES * free) * u128::from(weight);
        own == 0 || own == used || u128::from(own + bytes) * u128::from(weights) <= most
    }

    /// Adds a frame of a sender.
    pub(crate) fn add(&mut self, sender: PortId, weight: u32, bytes: u64) {
        match self.find(sender) {
            Ok(index) => self.held[index].bytes += bytes,
            Err(index) => {
                self.held.insert(index, Held { sender, weight, bytes });
                self.weights += u64::from(weight);
            }
        }
    }

    /// Removes a frame of a sender.
    pub(crate) fn remove(&mut self, sender: PortId, bytes: u64) {
        let Ok(index) = self.find(sender) else { return };
        let held = &mut self.held[index];
        held.bytes -= bytes;
        if held.bytes == 0 {
            self.weights -= u64::from(held.weight);
            self.held.remove(index);
        }
    }

    fn find(&self, sender: PortId) -> Result<usize, usize> {
        self.held.binary_search_by_key(&sender, |held| held.sender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::{Demand, divide};
    use proptest::prelude::*;

    #[test]
    fn a_lone_sender_may_use_all() {
        let mut senders = Senders::default();
        senders.add(PortId(1), 7, 900);
        assert!(senders.admits(PortId(1), 7, 100, 900, 1000));
        assert_eq!(senders.only(), Some(PortId(1)));
    }

    #[test]
    fn a_sender_of_little_weight_may_have_a_frame() {
        let mut senders = Senders::default();
        senders.add(PortId(1), 10_000, 900);
        assert!(senders.admits(PortId(0), 1, 50, 900, 1000));
        senders.add(PortId(0), 1, 50);
        assert!(!senders.admits(PortId(0), 1, 50, 950, 1000) && !senders.admits(PortId(1), 10_000, 50, 950, 1000));
        assert_eq!(senders.only(), None);
        senders.remove(PortId(1), 900);
        assert!(senders.admits(PortId(0), 1, 900, 50, 1000));
    }

    proptest! {
        /// Whoever sends how much, a queue that is full and is emptied in order gives each sender its part.
        #[test]
        fn parts_of_a_full_queue_are_by_weight(flows in prop::collection::vec((1u32..10, 1u64..20), 2..6)) {
            let (mut senders, mut queue, mut got) = (Senders::default(), std::collections::VecDeque::new(), vec![0u64; flows.len()]);
            for step in 0..100_000u64 {
                for (index, (weight, every)) in flows.iter().enumerate() {
                    let port = PortId(index as u32);
                    let used = queue.len() as u64;
                    if step % every == 0 && used < 500 && senders.admits(port, *weight, 1, used, 500) {
                        senders.add(port, *weight, 1);
                        queue.push_back(port);
                    }
                }
                if step % 2 == 0 && let Some(port) = queue.pop_front() {
                    senders.remove(port, 1);
                    got[port.index()] += u64::from(step >= 50_000);
                }
            }
            let demands: Vec<_> = flows.iter().map(|(weight, every)| Demand::of(*weight, 50_000.0 / *every as f64)).collect();
            let due = divide(&demands, 25_000.0);
            let near = got.iter().zip(&due).all(|(got, due)| (*got as f64 - due).abs() < 0.05 * 25_000.0);
            prop_assert!(near, "{got:?}, not {due:?}");
        }
    }
}
