//! Senders that wait for one guest, and whose turn it is. Their rings have frames for that guest only.
//!
//! They are not in the link's scheduler, so they delay no other port. The guest's room is shared among them like a link, by
//! start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM ToN 1997): the sender with the smallest
//! start tag is served next, and its tag grows by the bytes of its service over its weight. The link's scheduler cannot do this: it
//! forgets the lags when all ports leave, as they do here whenever the ring is full.

use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// Most senders of one guest whose rings are looked at in a round: a look takes as long as a service.
const LOOKS: usize = 64;

/// Senders that wait for one guest.
#[derive(Default)]
pub(crate) struct Waiters {
    /// The guest's number, which no other has had, unlike its port's.
    guest: u64,
    /// In no particular order.
    waiting: Vec<Waiter>,
    /// The start tag of the last sender served. It wraps and is compared by difference.
    virtual_time: u64,
}

/// A waiting sender.
struct Waiter {
    port: PortId,
    start: u64,
    since: Nanos,
}

/// A sender's place among those that wait for a guest.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    /// The guest's port, and its own number.
    pub on: PortId,
    guest: u64,
    /// The start tag of its next service.
    start: u64,
    /// Whether it was released to be served, and has not been since.
    pub released: bool,
}

impl Ticket {
    /// The ticket after a service of some bytes to the guest.
    pub(crate) fn used(self, bytes: u64, weight: u32) -> Ticket {
        // With fractions of a byte: at weight 10,000 a frame of 60 bytes must still count.
        let grown = (bytes << 16) / u64::from(weight.max(1));
        Ticket { start: self.start.wrapping_add(grown), released: false, ..self }
    }
}

impl Waiters {
    /// None, for the guest with this number.
    pub(crate) fn of(guest: u64) -> Waiters {
        Waiters { guest, ..Waiters::default() }
    }

    /// Whether no sender waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a sender. Its last ticket, if it is for this guest, says how far ahead of others it is.
    pub(crate) fn add(&mut self, port: PortId, ticket: Option<Ticket>, since: Nanos) {
        let ticket = ticket.filter(|ticket| ticket.guest == self.guest);
        let ahead = ticket.map_or(0, |ticket| ticket.start.wrapping_sub(self.virtual_time) as i64).max(0);
        let start = self.virtual_time.wrapping_add(ahead as u64);
        self.waiting.push(Waiter { port, start, since });
    }

    /// Removes the senders for which `leaves` returns true. It gets the time since which they wait, and whether their ring may be looked
    /// at: [`LOOKS`] of them, and the next time others.
    pub(crate) fn release(&mut self, mut leaves: impl FnMut(PortId, Nanos, bool) -> bool) {
        let (mut place, mut looked_at) = (0, 0);
        self.waiting.retain(|waiter| {
            place += 1;
            let stays = !leaves(waiter.port, waiter.since, place <= LOOKS);
            looked_at += usize::from(stays && place <= LOOKS);
            stays
        });
        self.waiting.rotate_left(looked_at);
    }

    /// Removes the sender whose turn it is, and returns it with a ticket for the guest `on`.
    pub(crate) fn call(&mut self, on: PortId) -> Option<(PortId, Ticket)> {
        let ahead = |index: &usize| {
            let Waiter { port, start, .. } = self.waiting[*index];
            (start.wrapping_sub(self.virtual_time) as i64, port)
        };
        let next = (0..self.waiting.len()).min_by_key(ahead)?;
        let Waiter { port, start, .. } = self.waiting.swap_remove(next);
        self.virtual_time = start;
        Some((port, Ticket { on, guest: self.guest, start, released: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_a_sender_got_of_a_former_guest_does_not_count() {
        let (sender, other) = (PortId(1), PortId(2));
        let mut former = Waiters::of(0);
        former.add(sender, None, Nanos(0));
        let ticket = former.call(PortId(3)).map(|(_, ticket)| ticket.used(1 << 30, 1));
        for (guest, first) in [(0, other), (1, sender)] {
            let mut waiters = Waiters::of(guest);
            waiters.add(sender, ticket, Nanos(0));
            waiters.add(other, None, Nanos(0));
            assert_eq!(waiters.call(PortId(3)).map(|(called, _)| called), Some(first), "at guest {guest}");
        }
    }

    #[test]
    fn of_many_senders_some_are_looked_at_each_time_and_all_in_turn() {
        let mut waiters = Waiters::of(0);
        (0..200).for_each(|port| waiters.add(PortId(port), None, Nanos(0)));
        let mut seen = BTreeSet::new();
        for round in 0..4 {
            let mut looks = 0;
            waiters.release(|port, _, is_looked_at| {
                looks += usize::from(is_looked_at);
                // Some leave as soon as they are looked at.
                is_looked_at && seen.insert(port) && port.0 % 7 == 0
            });
            assert_eq!(looks, LOOKS, "in round {round}");
        }
        assert_eq!(seen.len(), 200);
    }
}
