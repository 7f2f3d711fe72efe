//! The emulated computer with Linux as its host, when all is up: what native Linux and a KVM host have in common.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::Value;

use super::{CpuTime, Machine, Node, computer, wiring};
use crate::Agent;
use crate::error::Error;
use crate::guest::Guest;

/// A machine that is up.
pub struct LinuxHost {
    /// The guests' agents, reached over the host's.
    pub guests: Vec<Agent>,
    /// The emulated computer.
    pub host: Guest,
    /// The external machine.
    pub external: Guest,
    /// What the machine is.
    pub facts: BTreeMap<String, Value>,
    /// The directory of what is printed and counted.
    pub logs: PathBuf,
}

impl Machine for LinuxHost {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.external.agent(),
            Node::Host => self.host.agent(),
            Node::Guest(number) => &self.guests[number - 1],
        }
    }

    fn address(&self, node: Node) -> Ipv4Addr {
        wiring::address(node)
    }

    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        Ok(Vec::new())
    }

    fn marks(&self) -> Vec<PathBuf> {
        computer::marks(&self.logs)
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        self.facts.clone()
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let LinuxHost { host, external, .. } = *self;
        // Guests end with their host.
        [host, external].map(Guest::stop).into_iter().collect()
    }
}
