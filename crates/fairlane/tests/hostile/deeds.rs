//! What a hostile frontend does, each deed once a call.

mod load;
mod memory;
mod messages;
mod rings;

use super::attack::{Attacker, Card};
use fairlane_engine::snapshot::State;

/// A deed.
pub struct Deed {
    pub name: &'static str,
    /// What its card is disabled for in the end; nothing where it breaks no rule.
    reason: Option<&'static str>,
    /// Whether it takes huge pages.
    pub huge: bool,
    /// Whether its own card may not be met any more in the end.
    pub unmet: bool,
    pub run: fn(&Attacker) -> Card,
}

impl Deed {
    /// Whether a vif in this state is what it leads to, while its last card is still there.
    pub fn ends_in(&self, state: &State) -> bool {
        match (state, self.reason) {
            (State::Disabled { reason }, Some(expected)) => reason.contains(expected),
            (State::Up, None) => true,
            (State::Waiting, None) => self.unmet,
            _ => false,
        }
    }
}

const EMPTY: Option<&str> = Some("a descriptor of 0 bytes");
const TORN: Option<&str> = Some("truncated its guest's memory");

/// All of them.
pub static DEEDS: &[Deed] = &[
    deed("empty receive buffers", EMPTY, rings::empty_receive_buffers),
    deed("one table of empty buffers", EMPTY, rings::one_table_of_empty_buffers),
    deed("empty frames", EMPTY, rings::empty_frames),
    deed("indirect, not negotiated", Some("was not negotiated"), rings::indirect_not_negotiated),
    deed("chain in a circle", Some("an endless chain of descriptors"), rings::chain_in_a_circle),
    deed("index that runs", Some("the available index"), rings::index_that_runs),
    deed("too many descriptors", Some("descriptors came with a message"), messages::too_many_descriptors),
    deed("messages that lie", Some("is not one that a frontend sends"), messages::messages_that_lie),
    deed("full eventfds that wait", EMPTY, messages::full_eventfds_that_wait),
    deed("kicks by closed pipes", None, messages::kicks_by_closed_pipes),
    deed("kicks without end", None, messages::kicks_without_end),
    deed("flood of memory tables", None, messages::flood_of_memory_tables),
    deed("sparse memory", Some("more than 1024 GiB of files"), memory::sparse_memory),
    Deed { huge: true, ..deed("huge pages truncated", TORN, memory::huge_pages_truncated) },
    deed("memory truncated", TORN, memory::memory_truncated),
    deed("log truncated", Some("truncated the dirty log"), memory::log_truncated),
    deed("storm of logged pages", None, memory::storm_of_logged_pages),
    deed("lends by the drop", None, load::lends_by_the_drop),
    deed("stops to lend", None, load::stops_to_lend),
    deed("lends in small pieces", None, load::lends_in_small_pieces),
    deed("cheap and dear frames", None, load::cheap_and_dear_frames),
    deed("smallest frames", None, load::smallest_frames),
    // Whoever comes to its socket is met after all connections that it leaves behind, at a hundredth of the time.
    Deed { unmet: true, ..deed("connections without end", None, messages::connections_without_end) },
];

const fn deed(name: &'static str, reason: Option<&'static str>, run: fn(&Attacker) -> Card) -> Deed {
    Deed { name, reason, huge: false, unmet: false, run }
}
