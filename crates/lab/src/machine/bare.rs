//! The emulated PC with native Linux. Its guests are processes in network namespaces, connected by veth pairs.

use std::collections::BTreeMap;
use std::path::Path;

use fairlane_agent::Command;
use serde_json::json;

use super::emulated::{Emulated, Linux};
use super::pc::{self, Pc, Software};
use super::wiring::{self, CARD};
use super::{Clock, Machine};
use crate::error::Error;
use crate::images::BareImages;
use crate::topology::{Node, Topology};
use crate::{Agent, Progress, image};

/// Its memory, in MiB.
const MEMORY_MIB: usize = 512;

/// Boots the machine.
pub(super) fn boot(
    topology: &Topology,
    clock: &Clock,
    logs: &Path,
    progress: Progress,
) -> Result<Box<dyn Machine>, Error> {
    let agent = image::agent()?;
    let images = BareImages::build(&agent, topology.tools())?;
    progress("native Linux: booting");
    let software = Software {
        kernel: &images.kernel,
        // Counts are by address, which must be those of the symbols.
        command_line: format!("{} nokaslr fairlane.console=ttyS1 fairlane.host=host", pc::LINUX),
        modules: vec![(&images.initramfs, String::new())],
        features: ",-smap",
        memory_mib: MEMORY_MIB,
        external_cpu: pc::cpus(topology),
    };
    let pc = Pc::start(&software, topology, &agent, clock, logs)?;
    let host = pc.host();
    if topology.count {
        host.run(Command::Mark)?;
    }
    pc::bring_up_link(host, topology.link)?;
    progress("guests: starting");
    let guests: Vec<Agent> =
        (1..=topology.guests.len()).map(|number| guest(host, topology, number)).collect::<Result<_, _>>()?;
    wiring::join(host, topology.join, topology.joined())?;
    for agent in guests.iter().take(topology.joined()).chain([pc.external()]) {
        wiring::await_state(agent, CARD, "state UP")?;
    }
    let facts = BTreeMap::from([
        ("machine".to_owned(), json!("box")),
        ("kernel".to_owned(), json!(images.release)),
        ("emulated_by".to_owned(), json!(pc::version()?)),
        ("guests".to_owned(), json!("processes of the emulated PC, in network namespaces, connected by veth pairs")),
        ("external".to_owned(), json!(pc.external_place())),
        ("left_out".to_owned(), json!("scheduler, slice and weights: there is no hypervisor")),
    ]);
    Ok(Box::new(Emulated { guests, pc, facts, host: Linux }))
}

/// Starts a guest: an agent in its own network namespace and on its CPUs.
fn guest(host: &Agent, topology: &Topology, number: usize) -> Result<Agent, Error> {
    let node = Node::Guest(number);
    let plan = &topology.guests[number - 1];
    let cpus = plan.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let guest = wiring::start_named(host, node, &cpus)?;
    wiring::prepare_network(&guest)?;
    if number <= topology.joined() {
        wiring::cable_named(host, &wiring::vif(number), &guest, node)?;
        if let Some(rate) = plan.rate {
            wiring::limit(&guest, CARD, rate)?;
        }
    }
    Ok(guest)
}
