//! The emulated computer with its guests, when all is up: what native Linux, a KVM host and a Xen host have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::computer::Computer;
use super::{CpuTime, Machine};
use crate::Agent;
use crate::error::Error;
use crate::topology::Node;

/// A machine that is up.
pub struct Emulated<H> {
    /// The guests' agents, reached over the host's.
    pub guests: Vec<Agent>,
    /// The emulated computer, with the external machine.
    pub computer: Computer,
    /// What the machine is.
    pub facts: BTreeMap<String, Value>,
    /// What the host's own system tells of the guests.
    pub host: H,
}

/// What a host's own system tells of its guests, asked over its agent. By default nothing, as [`Machine`] has it.
pub trait Host {
    /// As [`Machine::cpu_time`].
    fn cpu_time(&self, _: &Agent) -> Result<Vec<CpuTime>, Error> {
        Ok(Vec::new())
    }

    /// As [`Machine::vifs`].
    fn vifs(&self, _: &Agent) -> Result<BTreeMap<String, Value>, Error> {
        Ok(BTreeMap::new())
    }
}

/// Linux, with or without KVM.
pub struct Linux;

impl Host for Linux {}

impl<H: Host> Machine for Emulated<H> {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.computer.external(),
            Node::Host => self.computer.host(),
            Node::Guest(number) => &self.guests[number - 1],
        }
    }

    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        self.host.cpu_time(self.computer.host())
    }

    fn vifs(&self) -> Result<BTreeMap<String, Value>, Error> {
        self.host.vifs(self.computer.host())
    }

    fn marks(&self) -> Vec<PathBuf> {
        self.computer.marks()
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        self.facts.clone()
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        // Guests end with their host.
        self.computer.stop()
    }
}
