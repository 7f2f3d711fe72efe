//! The machine of a flow: its states, and what leads from one to the next.
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
//!                   └────────────── learned anew (j), from each of these ──┴───────────────────┘
//!
//!     between any two of these three by (c), (d), (e)
//!
//!     any of all, anomaly (g) ──> draining ── nothing owed (h) ──> end-to-end
//!                                    └─────── given up (i) ──────> reset, and again; later (none)
//! ```
//! - (a), (b) Window scale, timestamps and SACK are said in the SYN alone (RFC 7323, 2.2 and 3.2; RFC 2018, 2), so a flow whose
//!   handshake was not seen is not known, and so end-to-end.
//! - (c) Seed 003, "vSnoop's State Machine": only when it is safe to do so; rules 1 and 9 of [`crate::ack`].
//! - (d) Seed 003, ibid.: enough buffer space between driver domain and guest; rules 2 and 7.
//! - (e) vSnoop's *unexpected sequence*; rule 5. What came behind a gap is not retained, so the guest is waited for.
//! - (f) The guest's own ACK; rule 7.
//! - (g), (h) [`super::Fallback`]; rule 8.
//! - (i) RFC 9293, 3.8.3 (R2); rule 8.
//! - (j) A guest that was let alone is watched again, and nothing of the flow is retained: [`super::watch`].
//!
//! A flow is forgotten with its last copy after the sender's FIN, with a reset of the guest's, or when it grows [old](super::AGEING).

use std::fmt;

/// Where a flow's machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No flow.
    #[default]
    Free = 0,
    /// A SYN was seen; the handshake is not complete.
    Opening = 1,
    /// Watched, nothing retained: the guest answers for itself.
    Idle = 2,
    /// Data in order are retained and acknowledged early.
    Active = 3,
    /// The guest's window or a cap is reached; nothing more is acknowledged until the guest takes something.
    NoBuffer = 4,
    /// A gap came before what was last delivered; the guest answers until it is filled.
    UnexpectedSequence = 5,
    /// Something was not as it should be: nothing more is acknowledged, what was is brought to its end.
    Draining = 6,
    /// Left to its two ends for good.
    EndToEnd = 7,
}

/// What happens to a flow, by the letters of the diagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// (a) Its first SYN is seen.
    Syn,
    /// (b) Its handshake is complete.
    Opened,
    /// (c) A segment of it is acknowledged early.
    Acknowledged,
    /// (d) A segment would be, but for the guest's window or a cap.
    Full,
    /// (e) A segment cannot be, as something is missing before it or it is not as it should be.
    Gap,
    /// (f) The guest has all that was delivered.
    HasAll,
    /// (g) It is to be left to its ends.
    Anomaly,
    /// (h) Nothing of it is owed to the guest.
    Repaid,
    /// (i) The guest does not take what is owed to it: both ends are reset.
    GivenUp,
    /// (j) What is known of it is old, and the guest said where it is.
    Learned,
    /// It is no flow any more.
    Forgotten,
}

impl State {
    /// The state that an event leads to. What means nothing in a state leaves it as it is.
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

    /// Every state a flow can be in, in the order of their numbers from 1.
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

    /// The state with this number in memory; none where there is no such state.
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

    /// The state of a flow with this number in an export, if there is one.
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

    /// Whether an event leads from a state to where data are acknowledged early.
    fn leads_to_active(state: State) -> bool {
        EVENTS.into_iter().any(|event| state.after(event) == State::Active)
    }

    #[test]
    fn only_open_flows_are_acknowledged_early() {
        let leading: Vec<State> = State::ALL.into_iter().filter(|state| leads_to_active(*state)).collect();
        assert_eq!(leading, [State::Idle, State::Active, State::NoBuffer, State::UnexpectedSequence]);
    }

    #[test]
    fn what_was_left_to_its_ends_opens_no_more() {
        for state in [State::Draining, State::EndToEnd] {
            for event in EVENTS {
                let next = state.after(event);
                assert!(matches!(next, State::Draining | State::EndToEnd | State::Free), "{state} {event:?} {next}");
            }
        }
    }

    #[test]
    fn what_is_no_flow_begins_with_a_syn_alone() {
        for event in EVENTS {
            assert_eq!(State::Free.after(event) == State::Opening, event == Event::Syn);
        }
    }
}
