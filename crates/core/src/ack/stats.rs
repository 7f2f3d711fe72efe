//! What early ack counts.

/// Why a flow is left to its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fallback {
    /// The table of flows is full; the flow never came in, or its handshake gave way to a later one.
    TableFull,
    /// The guest's early ack was turned off.
    TurnedOff,
    /// Both ends sent a SYN first (RFC 9293, figure 7).
    SimultaneousOpen,
    /// The guest accepted another connection of the same ports.
    Reopened,
    /// A reset, from outside or from the guest, that need not end the connection.
    Reset,
    /// Urgent data.
    Urgent,
    /// The guest acknowledged what was not delivered to it.
    AckedUnsent,
    /// TCP options that cannot be, or that early ACKs could not carry.
    Options,
    /// The guest sent a fragment of a segment.
    Fragment,
    /// The memory of an ended process held no sound copy of what was acknowledged.
    Damaged,
    /// The guest did not take retained bytes in spite of all retransmissions; the sender was reset.
    GaveUp,
}

impl Fallback {
    /// Every reason.
    pub const ALL: [Fallback; 11] = [
        Fallback::TableFull,
        Fallback::TurnedOff,
        Fallback::SimultaneousOpen,
        Fallback::Reopened,
        Fallback::Reset,
        Fallback::Urgent,
        Fallback::AckedUnsent,
        Fallback::Options,
        Fallback::Fragment,
        Fallback::Damaged,
        Fallback::GaveUp,
    ];

    /// The name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Fallback::TableFull => "table_full",
            Fallback::TurnedOff => "turned_off",
            Fallback::SimultaneousOpen => "simultaneous_open",
            Fallback::Reopened => "reopened",
            Fallback::Reset => "reset",
            Fallback::Urgent => "urgent",
            Fallback::AckedUnsent => "acked_unsent",
            Fallback::Options => "options",
            Fallback::Fragment => "fragment",
            Fallback::Damaged => "damaged",
            Fallback::GaveUp => "gave_up",
        }
    }

    /// The number in a flow: 0 stands for none.
    pub(super) fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The reason with this number in a flow.
    pub(super) fn from_number(number: u8) -> Option<Fallback> {
        Fallback::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows that came into the table.
    pub flows: u64,
    /// ACKs sent for guests.
    pub early_acks: u64,
    /// Segments of guests whose ACK was raised to what was acknowledged for them.
    pub raised: u64,
    /// ACKs of guests that said nothing new and were dropped.
    pub suppressed: u64,
    /// Segments sent to guests again.
    pub retransmissions: u64,
    /// Senders that were reset.
    pub resets: u64,
    /// By number of [`Fallback`].
    fallbacks: [u64; Fallback::ALL.len()],
}

impl Stats {
    /// Flows left to their ends, for one reason.
    pub fn fallbacks(&self, reason: Fallback) -> u64 {
        self.fallbacks[reason as usize]
    }

    pub(super) fn fell_back(&mut self, reason: Fallback) {
        self.fallbacks[reason as usize] += 1;
    }
}
