//! The emulated computer with Linux as its host, when all is up: what native Linux and a KVM host have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use super::computer::Computer;
use super::{Machine, Node};
use crate::Agent;
use crate::error::Error;

/// A machine that is up.
pub struct LinuxHost {
    /// The guests' agents, reached over the host's.
    pub guests: Vec<Agent>,
    /// The emulated computer, with the external machine.
    pub computer: Computer,
    /// What the machine is.
    pub facts: BTreeMap<String, Value>,
}

impl Machine for LinuxHost {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.computer.external(),
            Node::Host => self.computer.host(),
            Node::Guest(number) => &self.guests[number - 1],
        }
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
