//! A stream's receiver: it takes what arrives at once, answers every other segment, the last one of several, and each one out of order
//! (RFC 5681, 4.2), and lets its window grow with what arrived, as Linux does (`tcp_grow_window`).

use std::collections::BTreeSet;

/// Bytes of the first window, as in Linux: of the largest that fits a SYN.
const FIRST_WINDOW: u64 = u16::MAX as u64;

/// A stream's receiver. Numbers count segments.
pub(crate) struct Receiver {
    /// All before this number arrived, and these after it.
    expected: u32,
    ahead: BTreeSet<u32>,
    unanswered: u32,
    /// Bytes that the sender may have in flight, and may have at most.
    window: u64,
    largest: u64,
}

impl Receiver {
    /// A receiver whose window is at most so many bytes.
    pub(crate) fn new(largest: u64) -> Receiver {
        let window = FIRST_WINDOW.min(largest);
        Receiver { expected: 0, ahead: BTreeSet::new(), unanswered: 0, window, largest }
    }

    /// A connection begins.
    pub(crate) fn open(&mut self) {
        *self = Receiver::new(self.largest);
    }

    /// Up to which number all arrived.
    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// Bytes that the sender may send beyond what arrived in order.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// A segment of `bytes` bytes arrived. Returns whether it is answered.
    pub(crate) fn receive(&mut self, number: u32, bytes: u32, is_last: bool) -> bool {
        let in_order = number == self.expected && self.ahead.is_empty();
        if number == self.expected {
            self.expected += 1;
            while self.ahead.remove(&self.expected) {
                self.expected += 1;
            }
            self.window = self.largest.min(self.window + 2 * u64::from(bytes));
        } else if number > self.expected {
            self.ahead.insert(number);
        }
        self.unanswered += 1;
        let answers = !in_order || is_last || self.unanswered >= 2;
        if answers {
            self.unanswered = 0;
        }
        answers
    }
}
