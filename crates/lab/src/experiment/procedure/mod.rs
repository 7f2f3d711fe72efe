//! Procedures: what is measured on a machine, and the metrics that follow from its samples. One file per procedure.

mod all_to_all;
mod due;
mod executed;
mod flows;
mod packet_delay;
mod passage;
mod path_length;
mod ping;
mod receive_share;
pub(super) mod registry;
mod replacement;
mod requests;
mod stall;
mod transfer;
mod udp_share;
pub(super) mod waiting;
mod weight_steps;

use std::fmt::Debug;

use fairlane_agent::Outcome;
use fairlane_report::{Figure, ResultFile};
use serde::{Deserialize, Deserializer, de::Error};

use super::fault::Fault;
use super::plan::{Account, Addresses, Plan};
use super::record::Record;
use crate::{Machine, Node, Topology};

/// A measurement on a machine, made once per repeat. It neither starts nor waits for anything itself.
pub trait Procedure: Debug {
    /// What is invalid about it on a topology: key and message.
    fn faults(&self, topology: &Topology) -> Vec<Fault>;
    /// The names of the metrics of [`Procedure::read`] and [`Procedure::conclude`].
    fn metrics(&self, topology: &Topology) -> Vec<String>;
    /// How long a repeat takes, in seconds.
    fn seconds(&self) -> f64;
    /// Shortens it to a trial.
    fn shorten(&mut self);
    /// Makes it measure instructions instead of times, if it can; returns whether it does. On the virtual clock (icount), which is
    /// slow, it shortens itself.
    fn count(&mut self, _virtual_clock: bool) -> bool {
        false
    }
    /// Multiplies every rate.
    fn scale(&mut self, factor: f64);
    /// Prepares the machine for a repeat, and reads counters to compare with later.
    ///
    /// # Errors
    /// Those of the machine's agents.
    fn prepare(&self, _: &Topology, _: &dyn Machine, _: &mut Record) -> Result<(), crate::Error> {
        Ok(())
    }
    /// The agents' commands. Servers listen on `port`, which no other repeat used, and on the ports after it.
    fn plan(&self, topology: &Topology, at: Addresses, port: u16) -> Plan;
    /// Reads the outcomes of a plan's commands.
    fn read(&self, topology: &Topology, at: Addresses, accounts: &[Account], record: &mut Record);
    /// Reads from the machine what is not in its agents' outcomes, after a repeat.
    ///
    /// # Errors
    /// Those of the machine's agents.
    fn observe(&self, _: &Topology, _: &dyn Machine, _: &[Account], _: &mut Record) -> Result<(), crate::Error> {
        Ok(())
    }
    /// Computes what follows from all repeats together.
    fn conclude(&self, _topology: &Topology, _record: &mut Record) {}
    /// The names of the metrics of [`Procedure::compare`], for cases of these names and topologies.
    fn comparisons(&self, _cases: &[(&str, &Topology)]) -> Vec<String> {
        Vec::new()
    }
    /// Computes what follows from all cases together, from the metrics of the result, which may have been measured long ago.
    fn compare(&self, _cases: &[Finished], _result: &mut ResultFile) {}
    /// The figures of all cases.
    fn figures(&self, cases: &[Finished]) -> Vec<Figure>;
}

/// A measured case.
pub struct Finished<'a> {
    /// Its name; empty if there is only one case.
    pub name: &'a str,
    /// The prefix of its metrics' and series' names.
    pub prefix: String,
    /// The machine.
    pub topology: &'a Topology,
    /// What was measured.
    pub record: Record,
}

/// Deserializes a node: `"external"`, `"host"`, or the number of a guest.
fn node<'a, D: Deserializer<'a>>(from: D) -> Result<Node, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Guest(usize),
        Name(String),
    }
    match Word::deserialize(from) {
        Ok(Word::Guest(guest)) => Ok(Node::Guest(guest)),
        Ok(Word::Name(name)) if name == "external" => Ok(Node::External),
        Ok(Word::Name(name)) if name == "host" => Ok(Node::Host),
        _ => Err(D::Error::custom("a node is \"external\", \"host\" or the number of a guest, from 1")),
    }
}

/// Checks that the host's programs in a plan succeeded.
///
/// # Errors
/// `what` happened, and what the program said.
fn succeeded(machine: &dyn Machine, accounts: &[Account], what: &str) -> Result<(), crate::Error> {
    let failed = accounts.iter().find_map(|account| match &account.outcome {
        Outcome::Ran { status, stderr, .. } if *status != Some(0) => Some(stderr.trim()),
        _ => None,
    });
    failed.map_or(Ok(()), |said| {
        let guest = machine.agent(Node::Host).name().to_owned();
        Err(crate::Error::Failed { guest, reason: format!("{what}: {said}") })
    })
}

/// The title of a figure about one case of an experiment.
fn title(what: &str, case: &Finished) -> String {
    if case.name.is_empty() { what.to_owned() } else { format!("{what}: {}", case.name) }
}
