//! The rules: each finds one cause in the changes between two snapshots. Rules read nothing else.

mod accept_queue;
mod acceptor;
mod card;
mod conntrack;
mod fairlane;
mod kvm;
mod netback;
mod ports;
mod processors;
mod shaper;
mod softnet;
mod starved;
mod steal;
mod syn;
#[cfg(test)]
mod tests;
mod time_wait;
mod unserved;
mod worker;
mod xen;

use super::finding::Finding;
use super::view::Change;

/// A rule.
type Rule = fn(&Change) -> Vec<Finding>;

/// All rules. Findings of equal weight keep this order.
const RULES: [Rule; 18] = [
    accept_queue::find,
    ports::find,
    syn::queue,
    shaper::find,
    starved::find,
    acceptor::find,
    time_wait::find,
    conntrack::find,
    softnet::find,
    steal::find,
    worker::find,
    netback::find,
    xen::find,
    fairlane::find,
    kvm::find,
    card::find,
    processors::find,
    syn::loss,
];

/// Finds what limits this machine, the most limiting first.
pub(super) fn examine(change: &Change) -> Vec<Finding> {
    let mut findings: Vec<_> = RULES.iter().flat_map(|rule| rule(change)).collect();
    findings.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    findings
}
