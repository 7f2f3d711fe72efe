//! Procedures: what is done on a machine, and what its samples say. A file a procedure.

mod all_to_all;
mod executed;
mod flows;
mod packet_delay;
mod passage;
mod path_length;
mod ping;
pub mod registry;
mod requests;
mod transfer;
mod udp_share;
mod waiting;
mod weight_steps;

use std::fmt::Debug;

use fairlane_report::{Figure, ResultFile};
use serde::{Deserialize, Deserializer, de::Error};

use super::fault::Fault;
use super::plan::{Account, Addresses, Plan};
use super::record::Record;
use crate::{Machine, Node, Topology};

/// What is done on a machine, once a repeat. It neither starts nor waits for anything itself.
pub trait Procedure: Debug {
    /// What is impossible about it on a topology: the key, and a message.
    fn faults(&self, topology: &Topology) -> Vec<Fault>;
    /// The metrics that [`Procedure::read`] and [`Procedure::conclude`] give.
    fn metrics(&self, topology: &Topology) -> Vec<String>;
    /// How long a repeat takes, in seconds.
    fn seconds(&self) -> f64;
    /// Shortens it to a trial.
    fn shorten(&mut self);
    /// Has it measure instructions instead of times, if it can; answers whether it does. Where the machine `keeps_time` on the
    /// clock of instructions, which is slow, it does so in short.
    fn count(&mut self, _keeps_time: bool) -> bool {
        false
    }
    /// Multiplies every rate.
    fn scale(&mut self, factor: f64);
    /// Asks the machine for what will have to be compared, before a repeat.
    ///
    /// # Errors
    /// Those of asking.
    fn prepare(&self, _: &Topology, _: &dyn Machine, _: &mut Record) -> Result<(), crate::Error> {
        Ok(())
    }
    /// What the agents do. Servers listen on `port`, which no other repeat used, and those after it.
    fn plan(&self, topology: &Topology, at: Addresses, port: u16) -> Plan;
    /// Reads what a plan's commands said.
    fn read(&self, topology: &Topology, at: Addresses, accounts: &[Account], record: &mut Record);
    /// Asks the machine itself for what its agents did not say.
    ///
    /// # Errors
    /// Those of asking.
    fn observe(&self, _: &Topology, _: &dyn Machine, _: &[Account], _: &mut Record) -> Result<(), crate::Error> {
        Ok(())
    }
    /// Computes what follows from all repeats together.
    fn conclude(&self, _topology: &Topology, _record: &mut Record) {}
    /// The metrics that [`Procedure::compare`] gives, if there are so many cases.
    fn comparisons(&self, _cases: usize) -> Vec<String> {
        Vec::new()
    }
    /// Computes what follows from all cases together.
    fn compare(&self, _cases: &[Finished], _result: &mut ResultFile) {}
    /// How all cases are drawn.
    fn figures(&self, cases: &[Finished]) -> Vec<Figure>;
}

/// A case that was measured.
pub struct Finished<'a> {
    /// Its name; empty where there is one only.
    pub name: &'a str,
    /// What stands before the names of its metrics and series.
    pub prefix: String,
    /// The machine.
    pub topology: &'a Topology,
    /// What was measured.
    pub record: Record,
}

/// Reads a node as files name it: `"external"`, `"host"`, or a guest by its number.
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

/// The title of a figure about one case of an experiment.
fn title(what: &str, case: &Finished) -> String {
    if case.name.is_empty() { what.to_owned() } else { format!("{what}: {}", case.name) }
}
