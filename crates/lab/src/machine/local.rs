//! Machines whose guests run on this host: as processes in network namespaces, as User-Mode Linux, or in QEMU.
//!
//! The machine's host and the external machine are network namespaces too. This host's kernel connects them: a veth pair or a tap
//! for each guest, a bridge, and a veth pair as the link. Nothing exists outside these namespaces, so everything disappears with
//! the processes in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::thread;

use serde_json::{Value, json};

use super::Machine;
use super::cpus::{self, Cpus};
use super::vhost_user::Fairlane;
use super::wiring::{self, Bucket, CARD, UPLINK};
use crate::boot::launch;
use crate::error::Error;
use crate::guest::{CpuSwitch, Guest};
use crate::launch::{Launch, PROCESS};
use crate::program::{self, output};
use crate::spec::{self, GuestSpec, Kind, Nic};
use crate::tools::Tools;
use crate::topology::{Backend, MachineKind, Node, PREFIX, Topology};
use crate::{Agent, Progress, image};

/// The memory of a guest with its own kernel, in MiB.
const MEMORY_MIB: u32 = 256;

/// Boots a machine of this kind.
pub(super) fn boot(
    kind: MachineKind,
    topology: &Topology,
    logs: &Path,
    progress: Progress,
) -> Result<Box<dyn Machine>, Error> {
    let cpus = Cpus::assign(topology, &cpus::usable()?)?;
    check_programs(kind, topology)?;
    let mut maker = Maker { kind, agent: image::agent()?, logs, cpus, tools: topology.tools(), fairlane: None };
    // A separate check, to distinguish a lack of permission from a fault of the machine.
    output(Program::new(&maker.agent).args(["place", "new", "any", "true"]))
        .map_err(|error| Error::Missing(format!("this host cannot run a machine: {error}")))?;

    progress("host and external machine");
    let host = maker.process(Node::Host, "new", &maker.cpus.host)?;
    let external =
        maker.process(Node::External, &format!("beside={}", wiring::hello(host.agent())?.1), &maker.cpus.external)?;
    wiring::cable(host.agent(), UPLINK, external.agent(), Node::External)?;
    // Fairlane paces the link itself and has one card for all guests.
    let (link, cards) = match topology.backend {
        Backend::Kernel => (topology.link, topology.joined()),
        Backend::Fairlane => (None, 1),
    };
    if let Some(rate) = link {
        wiring::limit(host.agent(), UPLINK, rate)?;
    }
    if let Some(rate) = topology.link {
        wiring::limit(external.agent(), CARD, rate)?;
    }
    if topology.backend == Backend::Fairlane {
        let fairlane = Fairlane::here(host.home())?;
        fairlane.start(host.agent(), topology)?;
        maker.fairlane = Some(fairlane);
    }
    let guests = maker.guests(host.agent(), topology, progress)?;
    wiring::join(host.agent(), topology.join, cards)?;
    let processes = guests.iter().take(topology.joined()).filter(|_| kind == MachineKind::Native);
    for agent in processes.map(|(guest, _)| guest.agent()).chain([external.agent()]) {
        wiring::await_state(agent, CARD, "state UP")?;
    }
    let (guests, systems): (_, Vec<_>) = guests.into_iter().unzip();
    let mut machine = Local { guests, external, host, facts: BTreeMap::new() };
    machine.facts = maker.facts(topology, &machine, &systems)?;
    Ok(Box::new(machine))
}

/// Fails if this host lacks a program that the machine needs.
fn check_programs(kind: MachineKind, topology: &Topology) -> Result<(), Error> {
    for program in ["ip", "tc"] {
        program::find(program, &format!("{program}, which configures the machine's network,"), "iproute2")?;
    }
    // Other kinds of guest have the program in their image.
    if topology.proxy && kind == MachineKind::Native {
        program::find("haproxy", "HAProxy, which the guests run,", "haproxy")?;
    }
    if topology.mpi && kind == MachineKind::Native {
        program::find("orterun", "Open MPI, which the guests run,", "openmpi-bin")?;
    }
    Ok(())
}

/// Creates the nodes.
struct Maker<'a> {
    kind: MachineKind,
    agent: PathBuf,
    logs: &'a Path,
    cpus: Cpus,
    /// The tools of guests with their own kernel.
    tools: Tools,
    /// The daemon that serves these guests' cards, if they are not on taps.
    fairlane: Option<Fairlane>,
}

impl Maker<'_> {
    /// Starts a node that is an agent in a network namespace, with its loopback up and no card.
    fn process(&self, node: Node, network: &str, cpus: &[usize]) -> Result<Guest, Error> {
        let node = self.start(node, Launch::process(&self.agent).placed(&self.agent, network, cpus))?;
        wiring::prepare_network(node.agent())?;
        Ok(node)
    }

    fn start(&self, node: Node, launch: Launch) -> Result<Guest, Error> {
        Guest::start(&node.to_string(), &self.log(node), &self.agent, launch)
    }

    fn log(&self, node: Node) -> PathBuf {
        self.logs.join(format!("{node}.console"))
    }

    /// Boots all guests at once and creates the host's ends of their cards; returns each guest with the system that runs it.
    fn guests(&self, host: &Agent, topology: &Topology, progress: Progress) -> Result<Vec<(Guest, String)>, Error> {
        let (_, host_pid) = wiring::hello(host)?;
        let boot = |number: usize| {
            progress(&format!("{}: booting", Node::Guest(number)));
            let card = number <= topology.joined();
            let rate = topology.guests[number - 1].rate.filter(|_| card);
            match self.kind {
                MachineKind::Native => self.namespace(number, host, host_pid, card, rate),
                _ => self.virtual_machine(number, host, host_pid, card, rate),
            }
        };
        thread::scope(|scope| {
            let booting: Vec<_> = (1..=topology.guests.len()).map(|number| scope.spawn(move || boot(number))).collect();
            booting.into_iter().map(|guest| guest.join().expect("booting does not panic")).collect()
        })
    }

    fn namespace(
        &self,
        number: usize,
        host: &Agent,
        host_pid: u32,
        card: bool,
        rate: Option<f64>,
    ) -> Result<(Guest, String), Error> {
        let node = Node::Guest(number);
        let guest = self.process(node, &format!("beside={host_pid}"), &self.cpus.guests[number - 1])?;
        if card {
            wiring::cable(host, &wiring::vif(number), guest.agent(), node)?;
        }
        if let Some(rate) = rate {
            wiring::limit(guest.agent(), CARD, rate)?;
        }
        Ok((guest, PROCESS.to_owned()))
    }

    fn virtual_machine(
        &self,
        number: usize,
        host: &Agent,
        host_pid: u32,
        card: bool,
        rate: Option<f64>,
    ) -> Result<(Guest, String), Error> {
        let node = Node::Guest(number);
        let cpus = &self.cpus.guests[number - 1];
        let backend = match &self.fairlane {
            Some(fairlane) => card.then(|| spec::Backend::VhostUser(fairlane.socket(number))),
            None if card => {
                let tap = wiring::vif(number);
                wiring::ip(host, &format!("tuntap add {tap} mode tap vnet_hdr"))?;
                rate.map_or(Ok(()), |rate| wiring::limit_incoming(host, &tap, rate))?;
                Some(spec::Backend::Tap(tap))
            }
            None => None,
        };
        let spec = GuestSpec {
            name: node.to_string(),
            kind: match self.kind {
                MachineKind::Uml => Kind::Uml,
                MachineKind::QemuE1000 => Kind::QemuE1000,
                _ => Kind::Qemu,
            },
            cpus: if self.kind == MachineKind::Uml { 1 } else { cpus.len() },
            memory_mib: MEMORY_MIB,
            tools: self.tools,
            nic: backend.map(|backend| Nic {
                backend,
                mac: node.mac().0,
                address: node.address(),
                prefix: PREFIX,
                queues: 1,
                packed: false,
            }),
            monitor: None,
            log: self.log(node),
        };
        let launch = launch(&spec, &self.agent)?;
        let system = launch.system.clone();
        let launch = launch.placed(&self.agent, &format!("inside={host_pid}"), cpus);
        Ok((self.start(node, launch)?, system))
    }

    /// The machine's description for the result.
    fn facts(
        &self,
        topology: &Topology,
        machine: &Local,
        systems: &[String],
    ) -> Result<BTreeMap<String, Value>, Error> {
        let mut nodes = BTreeMap::new();
        let mut describe = |node: Node, system: &str, cpus: &[usize]| {
            let kernel = wiring::hello(machine.agent(node))?.0;
            nodes.insert(node.to_string(), json!({ "is": system, "kernel": kernel, "cpus": cpus }));
            Ok::<(), Error>(())
        };
        describe(Node::Host, PROCESS, &self.cpus.host)?;
        describe(Node::External, PROCESS, &self.cpus.external)?;
        for ((number, system), cpus) in (1..).zip(systems).zip(&self.cpus.guests) {
            describe(Node::Guest(number), system, cpus)?;
        }
        let mut left_out = vec![
            format!("scheduler {:?}: this host has no hypervisor", topology.scheduler),
            "host_cpus: the kernel's cards run on the sender's CPU, and Fairlane on any".to_owned(),
        ];
        left_out.extend(topology.slice_ms.map(|slice| format!("slice_ms {slice}")));
        let weights = (1..).zip(&topology.guests).filter_map(|(number, guest)| Some((number, guest.weight?)));
        let spread = (1..).zip(&topology.guests).filter(|(_, guest)| guest.cpus.len() > 1);
        let spread = spread.filter(|_| self.kind == MachineKind::Uml);
        left_out.extend(
            spread.map(|(number, _)| format!("all but one CPU of guest {number}: User-Mode Linux has only one")),
        );
        if topology.backend == Backend::Kernel {
            left_out.extend(topology.unserved_by_kernel());
        }
        left_out.extend(weights.map(|(number, weight)| format!("weight {weight} of guest {number}")));
        let bucket = |rate: f64| {
            let Bucket { burst, queue } = Bucket::of(rate);
            json!({ "rate": rate, "by": "tbf, which drops when its queue is full", "burst_bytes": burst, "queue_bytes": queue })
        };
        let mut facts = BTreeMap::from([
            ("machine", json!(self.kind.name())),
            ("backend", json!(topology.backend)),
            ("clock", json!("wall")),
            ("nodes", json!(nodes)),
            ("left_out", json!(left_out)),
            ("join", json!(topology.join)),
            (
                "wiring",
                json!(
                    "veth, tap and bridge of this host's kernel, which run on the sender's CPU; with fairlane, one tap for all guests"
                ),
            ),
            ("link", topology.link.map_or(json!("unlimited"), bucket)),
            ("vifs", topology.guests.iter().map(|guest| guest.rate.map_or(json!("unlimited"), bucket)).collect()),
            ("external_shares_cpus", json!(self.cpus.external_shares)),
            ("iproute2", json!(output(Program::new("ip").arg("-V"))?.trim())),
        ]);
        if matches!(self.kind, MachineKind::Qemu | MachineKind::QemuE1000) {
            let version = output(Program::new("qemu-system-x86_64").arg("--version"))?;
            facts.insert("qemu", json!(version.lines().next().unwrap_or_default()));
        }
        Ok(facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

/// A running machine. The fields' order matters on drop: guests end before the nodes they are connected to.
struct Local {
    guests: Vec<Guest>,
    external: Guest,
    host: Guest,
    facts: BTreeMap<String, Value>,
}

impl Machine for Local {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.external.agent(),
            Node::Host => self.host.agent(),
            Node::Guest(number) => self.guests[number - 1].agent(),
        }
    }

    fn switch(&self, guest: usize) -> Result<Option<CpuSwitch>, Error> {
        self.guests[guest - 1].switch().map(Some)
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        self.facts.clone()
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let Local { guests, external, host, .. } = *self;
        // All are stopped, even if one fails.
        let ends: Vec<_> = guests.into_iter().chain([external, host]).map(Guest::stop).collect();
        ends.into_iter().collect()
    }
}
