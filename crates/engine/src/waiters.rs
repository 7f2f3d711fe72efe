//! Senders that wait for one guest, and whose turn it is. Their rings have frames for that guest only.
//!
//! They are not in the link's scheduler, so they delay no other port. The guest's room is shared among them like a link, by
//! start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM ToN 1997): the sender with the smallest
//! start tag is served next, and its tag grows by the bytes of its service over its weight. The link's scheduler cannot do this: it
//! forgets the lags when all ports leave, as they do here whenever the ring is full.

use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// Senders that wait for one guest.
#[derive(Default)]
pub(crate) struct Waiters {
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
    /// The guest.
    pub on: PortId,
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
    /// Whether no sender waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a sender. Its last ticket for this guest says how far ahead of others it is.
    pub(crate) fn add(&mut self, port: PortId, ticket: Option<Ticket>, since: Nanos) {
        let ahead = ticket.map_or(0, |ticket| ticket.start.wrapping_sub(self.virtual_time) as i64).max(0);
        let start = self.virtual_time.wrapping_add(ahead as u64);
        self.waiting.push(Waiter { port, start, since });
    }

    /// Removes the senders for which `leaves` returns true. It gets the time since which they wait.
    pub(crate) fn release(&mut self, mut leaves: impl FnMut(PortId, Nanos) -> bool) {
        self.waiting.retain(|waiter| !leaves(waiter.port, waiter.since));
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
        Some((port, Ticket { on, start, released: true }))
    }
}
