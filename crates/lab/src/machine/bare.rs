//! The emulated computer with native Linux: its guests are processes in network namespaces, joined by veth pairs.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use fairlane_agent::Command;
use serde_json::{Value, json};

use super::computer::{self, Software};
use super::wiring::{self, CARD};
use super::{Clock, CpuTime, Machine, Node, Topology};
use crate::error::Error;
use crate::guest::Guest;
use crate::images::BareImages;
use crate::{Agent, Progress, image};

/// Its memory, in MiB.
const MEMORY_MIB: usize = 512;

/// Boots one.
pub fn boot(topology: &Topology, clock: Clock, logs: &Path, progress: Progress) -> Result<Box<dyn Machine>, Error> {
    if clock == Clock::Instructions {
        return Err(Error::Missing("machine box has the wall clock only".to_owned()));
    }
    if let Some(index) = topology.guests.iter().position(|guest| guest.disk) {
        let reason = format!("guest {}: machine box has no block backend to serve a disk; xen has", index + 1);
        return Err(Error::Topology(reason));
    }
    let agent = image::agent()?;
    let images = BareImages::build(&agent)?;
    progress("external machine");
    let external = computer::start_external(&agent, logs, topology)?;
    progress("native Linux: booting");
    let software = Software {
        kernel: &images.kernel,
        command_line: "console=ttyS0 quiet panic=-1 rdinit=/init fairlane.console=ttyS1 fairlane.host=host".to_owned(),
        modules: vec![(&images.initramfs, String::new())],
        features: ",-smap",
        memory_mib: MEMORY_MIB,
        count: topology.count,
    };
    let network = format!("inside={}", wiring::hello(external.agent())?.1);
    let host = computer::start(&software, computer::cpus(topology), &agent, logs, &network)?;
    if topology.count {
        host.agent().run(Command::Mark)?;
    }
    computer::bring_up_link(host.agent(), topology)?;
    progress("guests: starting");
    let guests: Vec<Agent> =
        (1..=topology.guests.len()).map(|number| guest(host.agent(), topology, number)).collect::<Result<_, _>>()?;
    wiring::join(host.agent(), topology.join, topology.joined())?;
    for agent in guests.iter().take(topology.joined()).chain([external.agent()]) {
        wiring::await_state(agent, CARD, "state UP")?;
    }
    let facts = BTreeMap::from([
        ("machine".to_owned(), json!("box")),
        ("kernel".to_owned(), json!(images.release)),
        ("emulated_by".to_owned(), json!(computer::version()?)),
        ("guests".to_owned(), json!("processes of the emulated computer, in network namespaces, joined by veth pairs")),
        ("external".to_owned(), json!(computer::EXTERNAL)),
        ("left_out".to_owned(), json!("scheduler, slice and weights: there is no hypervisor")),
    ]);
    Ok(Box::new(Bare { guests, host, external, facts, logs: logs.to_owned() }))
}

/// Starts a guest: an agent in a network namespace and on CPUs of its own.
fn guest(host: &Agent, topology: &Topology, number: usize) -> Result<Agent, Error> {
    let node = Node::Guest(number);
    let plan = &topology.guests[number - 1];
    let cpus = plan.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let argv = ["/init", "place", "new", &cpus, "/init", "serve"].map(str::to_owned).to_vec();
    host.run(Command::Spawn { name: node.to_string(), argv })?;
    let guest = host.behind(&node.to_string());
    wiring::quieten(&guest)?;
    if number <= topology.joined() {
        wiring::cable(host, &wiring::vif(number), &guest, node)?;
        if let Some(rate) = plan.rate {
            wiring::limit(&guest, CARD, rate)?;
        }
    }
    Ok(guest)
}

/// A machine that is up. Its guests' agents are reached over the host's.
struct Bare {
    guests: Vec<Agent>,
    host: Guest,
    external: Guest,
    facts: BTreeMap<String, Value>,
    logs: PathBuf,
}

impl Machine for Bare {
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
        let Bare { host, external, .. } = *self;
        // Guests end with their host.
        [host, external].map(Guest::stop).into_iter().collect()
    }
}
