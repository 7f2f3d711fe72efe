//! Who waits for room in a guest's port, and who is called when there is some.
//!
//! Ports that wait for a guest are out of the link's scheduler, so that they hold up nobody. So a guest that several send
//! more than it takes is shared as a link of its own, by start-time fair queueing (Goyal, Vin and Cheng, "Start-time Fair
//! Queueing", IEEE/ACM ToN 1997): the port with the least start tag is called, and the bytes of its service over its weight
//! are what its tag grows by. Whoever comes uncalled while others wait has to wait as well.

use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// The ports that wait for one guest.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Ports and their start tags, in no order.
    waiting: Vec<(PortId, u64)>,
    /// The start tag of the last port that was called. It wraps, and is compared by difference.
    virtual_time: u64,
}

/// What a port has had of the last guest for which it waited.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    /// The guest.
    pub on: PortId,
    /// The start tag of the next service.
    start: u64,
    /// Whether the port was called, and not served since.
    pub called: bool,
    /// How long the guest had taken nothing of those who wait when it called.
    pub waited: Nanos,
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

    /// Whether a port waits.
    pub fn contains(&self, port: PortId) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == port)
    }

    /// Adds a port, whose last ticket for this guest says how far ahead of others it is.
    pub fn add(&mut self, port: PortId, ticket: Option<Ticket>) {
        let ahead = ticket.map_or(0, |ticket| ticket.start.wrapping_sub(self.virtual_time) as i64).max(0);
        self.waiting.push((port, self.virtual_time.wrapping_add(ahead as u64)));
    }

    /// Takes a port out; false if it did not wait.
    pub fn remove(&mut self, port: PortId) -> bool {
        let index = self.waiting.iter().position(|(waiting, _)| *waiting == port);
        index.map(|index| self.waiting.swap_remove(index)).is_some()
    }

    /// Takes out the port whose turn it is, and gives it a ticket for the guest `on`, which says how long was `waited`.
    pub fn call(&mut self, on: PortId, waited: Nanos) -> Option<(PortId, Ticket)> {
        let ahead = |index: &usize| {
            let (port, start) = self.waiting[*index];
            (start.wrapping_sub(self.virtual_time) as i64, port)
        };
        let next = (0..self.waiting.len()).min_by_key(ahead)?;
        let (port, start) = self.waiting.swap_remove(next);
        self.virtual_time = start;
        Some((port, Ticket { on, start, called: true, waited }))
    }
}
