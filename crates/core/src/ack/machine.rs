//! The state machine of a flow.
//!
//! ```text
//!              SYN (a)             handshake complete (b)
//!     (none) ─────────> opening ─────────────────────────> idle <──────────────────────────────┐
//!                                                            │ data                            │
//!                   ┌──────────────────────────┬─────────────┴─────────────┐                   │
//!                   │ in order, delivered,     │ window or cap (d)         │ gap (e)           │
//!                   v retained, engaged (c)    v                           v                   │
//!                active <────────────────> no buffer <──────────> unexpected sequence          │
//!                   │                          │                           │                   │
//!                   │                          └─ the guest has all (f) ───┤                   │
//!                   └───────────── learned again (j), from each of these ──┴───────────────────┘
//!
//!     between any two of these three by (c), (d), (e)
//!
//!     any state, anomaly (g) ───> draining ── nothing owed (h) ──> end-to-end
//!                                    └─────── given up (i) ──────> reset, and again; later (none)
//! ```
//! - (a), (b) Window scale, timestamps and SACK are negotiated only in SYNs (RFC 7323, 2.2 and 3.2; RFC 2018, 2), so a
//!   flow whose handshake was not seen is not in the table, and so end-to-end.
//! - (c) The vSnoop paper, "vSnoop's State Machine": only when it is safe to do so; rules 1 and 9 of [`crate::ack`].
//! - (d) The same: enough buffer space between driver domain and guest; rules 2 and 7.
//! - (e) vSnoop's *unexpected sequence*; rule 5. Data after a gap is not retained, so early ack waits for the guest.
//! - (f) The guest's own ACK; rule 7.
//! - (g), (h) [`super::Fallback`]; rule 8.
//! - (i) RFC 9293, 3.8.3 (R2); rule 8.
//! - (j) A guest that was left alone is watched again, and nothing of the flow is retained: [`super::watch`].
//!
//! A flow is removed when the guest has acknowledged the sender's FIN, on a reset from the guest, or when it is
//! [too old](super::AGEING).

use std::fmt;

/// The state of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No flow.
    #[default]
    Free = 0,
    /// A SYN was seen; the handshake is not complete.
    Opening = 1,
    /// Open, nothing retained: the guest acknowledges its data itself.
    Idle = 2,
    /// Data in order is retained and acknowledged early.
    Active = 3,
    /// The guest's window or a limit is reached; nothing more is acknowledged until the guest acknowledges data.
    NoBuffer = 4,
    /// There is a gap before the last delivered segment; the guest answers until it is filled.
    UnexpectedSequence = 5,
    /// After an anomaly: nothing more is acknowledged; what was is still retransmitted until the guest has it.
    Draining = 6,
    /// End-to-end for good.
    EndToEnd = 7,
}

/// An event of a flow, with its letter in the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// (a) The first SYN was seen.
    Syn,
    /// (b) The handshake is complete.
    Opened,
    /// (c) A segment is acknowledged early.
    Acknowledged,
    /// (d) A segment cannot be acknowledged because of the guest's window or a limit.
    Full,
    /// (e) A segment cannot be acknowledged because data is missing before it, or because it is unusual.
    Gap,
    /// (f) The guest has acknowledged everything retained.
    HasAll,
    /// (g) The flow must become end-to-end.
    Anomaly,
    /// (h) Nothing is owed to the guest any more.
    Repaid,
    /// (i) The guest does not accept what is owed: both ends are reset.
    GivenUp,
    /// (j) The flow's numbers were old, and the guest's segment gave new ones.
    Learned,
    /// The flow is removed.
    Forgotten,
}

impl State {
    /// The state after an event. An event without meaning in a state does not change it.
    #[inline]
    pub fn after(self, event: Event) -> State {
        use State::{Active, Draining, EndToEnd, Free, Idle, NoBuffer, Opening, UnexpectedSequence};
        match (event, self) {
            (Event::Forgotten, _) => Free,
            (Event::Syn, Free) => Opening,
            (_, Free) => Free,
            (Event::Opened, Opening) => Idle,
            (Event::Acknowledged, Idle | Active | NoBuffer | UnexpectedSequence) => Active,
            (Event::Full, Idle | Active | NoBuffer | UnexpectedSequence) => NoBuffer,
            (Event::Gap, Idle | Active | NoBuffer | UnexpectedSequence) => UnexpectedSequence,
            (Event::HasAll, NoBuffer | UnexpectedSequence) => Idle,
            (Event::Learned, Idle | Active | NoBuffer | UnexpectedSequence) => Idle,
            (Event::Anomaly | Event::GivenUp, _) => Draining,
            (Event::Repaid, Draining) => EndToEnd,
            (_, same) => same,
        }
    }

    /// Every state of a flow, in the order of their numbers from 1.
    pub const ALL: [State; 7] = [
        State::Opening,
        State::Idle,
        State::Active,
        State::NoBuffer,
        State::UnexpectedSequence,
        State::Draining,
        State::EndToEnd,
    ];

    /// The state's name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Opening => "opening",
            State::Idle => "idle",
            State::Active => "active",
            State::NoBuffer => "no_buffer",
            State::UnexpectedSequence => "unexpected_sequence",
            State::Draining => "draining",
            State::EndToEnd => "end_to_end",
        }
    }

    /// The state with this number in memory; [`State::Free`] if there is none.
    #[inline]
    pub(super) fn of(number: u8) -> State {
        match number {
            1 => State::Opening,
            2 => State::Idle,
            3 => State::Active,
            4 => State::NoBuffer,
            5 => State::UnexpectedSequence,
            6 => State::Draining,
            7 => State::EndToEnd,
            _ => State::Free,
        }
    }

    /// The state with this number in an export, if it is one of a flow.
    pub(super) fn from_number(number: u8) -> Option<State> {
        Some(State::of(number)).filter(|state| *state != State::Free)
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 11] = [
        Event::Syn,
        Event::Opened,
        Event::Acknowledged,
        Event::Full,
        Event::Gap,
        Event::HasAll,
        Event::Anomaly,
        Event::Repaid,
        Event::GivenUp,
        Event::Learned,
        Event::Forgotten,
    ];

    /// Whether an event leads from a state to the one in which data is acknowledged early.
    fn leads_to_active(state: State) -> bool {
        EVENTS.into_iter().any(|event| state.after(event) == State::Active)
    }

    #[test]
    fn only_open_flows_are_acknowledged_early() {
        let leading: Vec<State> = State::ALL.into_iter().filter(|state| leads_to_active(*state)).collect();
        assert_eq!(leading, [State::Idle, State::Active, State::NoBuffer, State::UnexpectedSequence]);
    }

    #[test]
    fn an_end_to_end_flow_never_opens_again() {
        for state in [State::Draining, State::EndToEnd] {
            for event in EVENTS {
                let next = state.after(event);
                assert!(matches!(next, State::Draining | State::EndToEnd | State::Free), "{state} {event:?} {next}");
            }
        }
    }

    #[test]
    fn a_flow_begins_only_with_a_syn() {
        for event in EVENTS {
            assert_eq!(State::Free.after(event) == State::Opening, event == Event::Syn);
        }
    }
}
