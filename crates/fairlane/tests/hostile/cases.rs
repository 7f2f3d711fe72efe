//! The attacks of a hostile frontend. Each call carries one out.

mod load;
mod memory;
mod messages;
mod rings;

use super::attack::{Attacker, Card};
use fairlane_engine::snapshot::State;

/// An attack.
pub(crate) struct Case {
    pub name: &'static str,
    /// Why its card is disabled in the end; none if it violates no rule.
    reason: Option<&'static str>,
    /// Whether it needs huge pages.
    pub huge: bool,
    /// Whether its own last card may still wait for its connection in the end.
    pub unreachable: bool,
    pub run: fn(&Attacker) -> Card,
}

impl Case {
    /// Whether a vif in this state is the expected result, while the last card is still connected.
    pub(crate) fn ends_in(&self, state: &State) -> bool {
        match (state, self.reason) {
            (State::Disabled { reason }, Some(expected)) => reason.contains(expected),
            (State::Up, None) => true,
            (State::Waiting, None) => self.unreachable,
            _ => false,
        }
    }
}

const EMPTY: Option<&str> = Some("a descriptor of 0 bytes");
const TORN: Option<&str> = Some("truncated its guest's memory");

/// All attacks.
pub(crate) static CASES: &[Case] = &[
    case("empty receive buffers", EMPTY, rings::empty_receive_buffers),
    case("one table of empty buffers", EMPTY, rings::one_table_of_empty_buffers),
    case("empty frames", EMPTY, rings::empty_frames),
    case("indirect, not negotiated", Some("was not negotiated"), rings::indirect_not_negotiated),
    case("circular chain", Some("an endless chain of descriptors"), rings::circular_chain),
    case("index too far ahead", Some("the available index"), rings::index_too_far_ahead),
    case("too many descriptors", Some("descriptors came with a message"), messages::too_many_descriptors),
    case("unknown message", Some("is not one that a frontend sends"), messages::unknown_message),
    case("full blocking eventfds", EMPTY, messages::full_blocking_eventfds),
    case("pipe as kick", Some("with a pipe; it must be an eventfd"), messages::pipe_as_kick),
    case("endless kicks", None, messages::endless_kicks),
    case("flood of memory tables", None, messages::flood_of_memory_tables),
    case("sparse memory", Some("more than 1024 GiB of files"), memory::sparse_memory),
    Case { huge: true, ..case("huge pages truncated", TORN, memory::huge_pages_truncated) },
    case("memory truncated", TORN, memory::memory_truncated),
    case("log truncated", Some("truncated the dirty log"), memory::log_truncated),
    case("storm of logged pages", None, memory::storm_of_logged_pages),
    case("receive buffers of one byte", None, load::receive_buffers_of_one_byte),
    case("receive buffers withheld", None, load::receive_buffers_withheld),
    case("receive buffers in segments", None, load::receive_buffers_in_segments),
    case("cheap and expensive frames", None, load::cheap_and_expensive_frames),
    case("smallest frames", None, load::smallest_frames),
    // A new connection is accepted after all those left behind, which the worker handles in a hundredth of its time.
    Case { unreachable: true, ..case("endless connections", None, messages::endless_connections) },
];

const fn case(name: &'static str, reason: Option<&'static str>, run: fn(&Attacker) -> Card) -> Case {
    Case { name, reason, huge: false, unreachable: false, run }
}
