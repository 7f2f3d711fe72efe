//! What is wrong with an experiment's section, and checks that several share.

use crate::{Node, Topology};

/// Something wrong with a section: the key it stands at, and the message.
pub(super) type Fault = (&'static str, String);

/// Says so where a guest does not exist.
pub(super) fn guest_fault(key: &'static str, guest: usize, topology: &Topology) -> Option<Fault> {
    let there = topology.guests.len();
    let known = match there {
        0 => "the topology has none".to_owned(),
        1 => "the topology has guest 1 only".to_owned(),
        _ => format!("the topology has guests 1 to {there}"),
    };
    (!(1..=there).contains(&guest)).then(|| (key, format!("there is no guest {guest}: {known}")))
}

/// As [`guest_fault`], for a node.
pub(super) fn node_fault(key: &'static str, node: Node, topology: &Topology) -> Option<Fault> {
    match node {
        Node::Guest(guest) => guest_fault(key, guest, topology),
        Node::External | Node::Host => None,
    }
}

/// Says so where a number is not within its limits.
pub(super) fn limits(faults: &mut Vec<Fault>, key: &'static str, value: f64, least: f64, most: f64) {
    if !(least..=most).contains(&value) {
        faults.push((key, format!("{key} must be {least} to {most}, not {value}")));
    }
}
