//! Faults of an experiment's section, and checks that several sections share.

use crate::{Node, Topology};

/// A fault of a section: the key at fault, and the message.
pub(super) type Fault = (&'static str, String);

/// A fault if the topology has no such guest.
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

/// Adds a fault if a number is outside its limits.
pub(super) fn limits(faults: &mut Vec<Fault>, key: &'static str, value: f64, least: f64, most: f64) {
    if !(least..=most).contains(&value) {
        faults.push((key, format!("{key} must be {least} to {most}, not {value}")));
    }
}
