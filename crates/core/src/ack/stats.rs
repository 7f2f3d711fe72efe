//! Counters of early ack.

/// Why a flow became end-to-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Fallback {
    /// The flow table is full: the flow was not added, or its handshake was evicted by a later one.
    TableFull,
    /// Early ack was turned off for the guest.
    TurnedOff,
    /// Both ends sent a SYN first (RFC 9293, figure 7).
    SimultaneousOpen,
    /// The guest accepted another connection with the same addresses and ports.
    Reopened,
    /// A reset from either end that may not have ended the connection.
    Reset,
    /// Urgent data.
    Urgent,
    /// The guest acknowledged data that was not delivered to it.
    AckedUnsent,
    /// Malformed TCP options, or options that early ACKs cannot carry.
    Options,
    /// The guest sent a fragment of a segment.
    Fragment,
    /// The memory that a process left had no valid copy of acknowledged data.
    Damaged,
    /// The guest accepted no retained data in spite of all retransmissions; both ends were reset.
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

    /// The number stored in a flow, where 0 means none.
    pub(super) fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The reason for a number stored in a flow.
    pub(super) fn from_number(number: u8) -> Option<Fallback> {
        Fallback::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows added to the table.
    pub flows: u64,
    /// ACKs sent for guests.
    pub early_acks: u64,
    /// Guests' segments whose ACK was raised to what was acknowledged early.
    pub raised: u64,
    /// Guests' ACKs that had no news and were dropped.
    pub suppressed: u64,
    /// Segments retransmitted to guests.
    pub retransmissions: u64,
    /// Flows whose ends were reset.
    pub resets: u64,
    /// By number of [`Fallback`].
    fallbacks: [u64; Fallback::ALL.len()],
}

impl Stats {
    /// Flows that became end-to-end for one reason.
    pub fn fallbacks(&self, reason: Fallback) -> u64 {
        self.fallbacks[reason as usize]
    }

    pub(super) fn fell_back(&mut self, reason: Fallback) {
        self.fallbacks[reason as usize] += 1;
    }
}
