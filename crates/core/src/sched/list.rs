//! Intrusive doubly linked lists of ports.
//!
//! Every port has one link, in one table, so it is in at most one list at a time; every operation takes constant time
//! and allocates nothing. A list is circular: the head's predecessor is the tail.

/// No port.
pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    prev: u32,
}

/// The links of all ports, for all lists.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

/// A list: its first port.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
}

impl List {
    pub(super) const EMPTY: List = List { head: NONE };

    /// The first port.
    #[inline]
    pub(super) fn head(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

impl Links {
    /// Makes room for ports below `ports`.
    pub(super) fn grow(&mut self, ports: usize) {
        if self.0.len() < ports {
            self.0.resize(ports, Link { next: NONE, prev: NONE });
        }
    }

    /// Appends a port that is in no list.
    #[inline]
    pub(super) fn push_back(&mut self, list: &mut List, port: u32) {
        if list.head == NONE {
            self.0[port as usize] = Link { next: port, prev: port };
            list.head = port;
            return;
        }
        let head = list.head;
        let tail = std::mem::replace(&mut self.0[head as usize].prev, port);
        self.0[tail as usize].next = port;
        self.0[port as usize] = Link { next: head, prev: tail };
    }

    /// Prepends a port that is in no list.
    #[inline]
    pub(super) fn push_front(&mut self, list: &mut List, port: u32) {
        self.push_back(list, port);
        list.head = port;
    }

    /// Removes a port that is in this list.
    #[inline]
    pub(super) fn remove(&mut self, list: &mut List, port: u32) {
        let Link { next, prev } = self.0[port as usize];
        if next == port {
            list.head = NONE;
            return;
        }
        self.0[prev as usize].next = next;
        self.0[next as usize].prev = prev;
        if list.head == port {
            list.head = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_like_a_deque(steps in prop::collection::vec((0u8..3, 0u32..8), 0..200)) {
            let mut links = Links::default();
            links.grow(8);
            let (mut list, mut model) = (List::EMPTY, VecDeque::new());
            for (step, port) in steps {
                let at = model.iter().position(|p| *p == port);
                match (step, at) {
                    (0, None) => { links.push_back(&mut list, port); model.push_back(port); }
                    (1, None) => { links.push_front(&mut list, port); model.push_front(port); }
                    (2, Some(at)) => { links.remove(&mut list, port); model.remove(at); }
                    _ => {}
                }
                prop_assert_eq!(list.head(), model.front().copied());
            }
            while let Some(port) = list.head() {
                prop_assert_eq!(Some(port), model.pop_front());
                links.remove(&mut list, port);
            }
            prop_assert!(model.is_empty());
        }
    }
}
