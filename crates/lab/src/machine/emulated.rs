//! A running machine on the emulated PC: the common part of native Linux, a KVM host and a Xen host.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::pc::Pc;
use super::{CpuTime, Machine};
use crate::Agent;
use crate::error::Error;
use crate::topology::Node;

/// A running machine.
pub(super) struct Emulated<H> {
    /// The guests' agents, reached through the host's.
    pub guests: Vec<Agent>,
    /// The emulated PC, with the external machine.
    pub pc: Pc,
    /// As [`Machine::facts`].
    pub facts: BTreeMap<String, Value>,
    /// The source of accounts and counters on the host.
    pub host: H,
}

/// Accounts and counters of the guests, read by the host's agent. Empty by default, as in [`Machine`].
pub(super) trait Host {
    /// As [`Machine::cpu_time`].
    fn cpu_time(&self, _: &Agent) -> Result<Vec<CpuTime>, Error> {
        Ok(Vec::new())
    }

    /// As [`Machine::counters`].
    fn counters(&self, _: &Agent) -> Result<BTreeMap<String, Value>, Error> {
        Ok(BTreeMap::new())
    }
}

/// Linux, with or without KVM.
pub(super) struct Linux;

impl Host for Linux {}

impl<H: Host> Machine for Emulated<H> {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.pc.external(),
            Node::Host => self.pc.host(),
            Node::Guest(number) => &self.guests[number - 1],
        }
    }

    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        self.host.cpu_time(self.pc.host())
    }

    fn counters(&self) -> Result<BTreeMap<String, Value>, Error> {
        self.host.counters(self.pc.host())
    }

    fn marks(&self) -> Vec<PathBuf> {
        self.pc.marks()
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        self.facts.clone()
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        // Guests end with their host.
        self.pc.stop()
    }
}
