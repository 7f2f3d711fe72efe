//! The senders that wait for one guest, with nothing but frames for it in their rings, and whose turn it is.
//!
//! They are out of the link's scheduler, so that they hold up nobody. The guest's room is shared among them as a link of its own, by
//! start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair Queueing", IEEE/ACM ToN 1997): the sender with the least start tag
//! is called, and the bytes of its service over its weight are what its tag grows by. The link's scheduler cannot do that: it forgets how
//! far ports are from each other when all of them leave, as they do here whenever the ring is full.

use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// The senders that wait for one guest.
#[derive(Default)]
pub(crate) struct Waiters {
    /// In no particular order.
    waiting: Vec<Waiter>,
    /// The start tag of the last port that was called. It wraps, and is compared by difference.
    virtual_time: u64,
}

/// A sender that waits.
struct Waiter {
    port: PortId,
    start: u64,
    since: Nanos,
}

/// What a sender has had of the guest for which it waited last.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    /// The guest.
    pub on: PortId,
    /// The start tag of the next service.
    start: u64,
    /// Whether the sender was called, and not served since.
    pub called: bool,
}

impl Ticket {
    /// The ticket after a service of some bytes to the guest.
    pub fn used(self, bytes: u64, weight: u32) -> Ticket {
        // Fractions of a byte: at weight 10,000 a frame of 60 bytes must still count.
        let grown = (bytes << 16) / u64::from(weight.max(1));
        Ticket { start: self.start.wrapping_add(grown), called: false, ..self }
    }
}

impl Waiters {
    /// Whether nobody waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a sender, whose last ticket for this guest says how far ahead of others it is.
    pub fn add(&mut self, port: PortId, ticket: Option<Ticket>, since: Nanos) {
        let ahead = ticket.map_or(0, |ticket| ticket.start.wrapping_sub(self.virtual_time) as i64).max(0);
        let start = self.virtual_time.wrapping_add(ahead as u64);
        self.waiting.push(Waiter { port, start, since });
    }

    /// Takes out the senders that `leaves` says no longer wait; it is told since when they do.
    pub fn release(&mut self, mut leaves: impl FnMut(PortId, Nanos) -> bool) {
        self.waiting.retain(|waiter| !leaves(waiter.port, waiter.since));
    }

    /// Takes out the sender whose turn it is, and gives it a ticket for the guest `on`.
    pub fn call(&mut self, on: PortId) -> Option<(PortId, Ticket)> {
        let ahead = |index: &usize| {
            let Waiter { port, start, .. } = self.waiting[*index];
            (start.wrapping_sub(self.virtual_time) as i64, port)
        };
        let next = (0..self.waiting.len()).min_by_key(ahead)?;
        let Waiter { port, start, .. } = self.waiting.swap_remove(next);
        self.virtual_time = start;
        Some((port, Ticket { on, start, called: true }))
    }
}
