//! A machine under measurement: a host, its guests, and an external machine at the other end of its link.
//!
//! Experiments know this trait only, so each runs on every kind of machine that can take its topology.

mod backend;
mod bare;
mod computer;
mod cpus;
mod kind;
mod kvm;
mod linux_host;
mod local;
mod vhost_user;
mod wiring;
mod xen;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::images::Tools;
use crate::{Agent, Error};

pub(crate) use backend::set_weights;
pub use backend::{Backend, run as run_fairlane};
pub use kind::MachineKind;
pub(crate) use wiring::{CARD, UPLINK, set_initial_window};

/// Boots a machine: its host, its guests and the external machine, wired as the topology says. What their kernels print
/// is kept in `logs`, a file a node; `progress` is told each step as it begins.
///
/// # Errors
/// [`Error::Topology`] where this kind of machine cannot be so, [`Error::Missing`] where this computer lacks what is
/// needed, and [`Error::Boot`].
pub fn boot(
    kind: MachineKind,
    topology: &Topology,
    clock: &Clock,
    logs: &Path,
    progress: &(dyn Fn(&str) + Sync),
) -> Result<Box<dyn Machine>, Error> {
    topology.check()?;
    let kind = if topology.bare { kind.bare() } else { kind };
    refuse(kind, topology, clock)?;
    let machine = match kind {
        MachineKind::Native | MachineKind::Uml | MachineKind::Qemu | MachineKind::QemuE1000 => {
            local::boot(kind, topology, logs, progress)
        }
        MachineKind::Xen | MachineKind::XenPvh => xen::boot(kind, topology, clock, logs, progress),
        MachineKind::Box => bare::boot(topology, clock, logs, progress),
        MachineKind::Kvm => kvm::boot(topology, clock, logs, progress),
    }?;
    if !topology.offload {
        wiring::frame_by_frame(machine.as_ref(), topology)?;
    }
    Ok(machine)
}

/// Refuses what a kind of machine cannot be, before anything of it is started.
fn refuse(kind: MachineKind, topology: &Topology, clock: &Clock) -> Result<(), Error> {
    let unfit = |reason: String| Err(Error::Topology(reason));
    if *clock != Clock::Wall && !kind.keeps_time() {
        return unfit(format!("machine {kind} has the wall clock only; xen has the clock of instructions"));
    }
    if topology.count && !kind.counts() {
        return unfit(format!("count: machine {kind} counts no instructions; box, kvm, xen and xen-pvh do"));
    }
    if !topology.offload && ![MachineKind::Box, MachineKind::Xen].contains(&kind) {
        return unfit(format!("offload: machine {kind} cannot do without; box and xen can"));
    }
    if topology.backend == Backend::Fairlane && !kind.takes_fairlane() {
        return unfit(format!("backend: machine {kind} has its own only; {} can have fairlane", with_fairlane()));
    }
    if topology.early_ack && topology.backend != Backend::Fairlane {
        return unfit(format!("early_ack: backend {} has none; fairlane has", topology.backend));
    }
    if topology.backend != Backend::Fairlane && topology.guests.iter().any(|guest| guest.min_rate.is_some()) {
        return unfit("min_rate: no backend but fairlane has one".to_owned());
    }
    match topology.guests.iter().position(|guest| guest.disk).filter(|_| !kind.serves_disks()) {
        Some(index) => unfit(format!(
            "guest {}: machine {kind} has no block backend to serve a disk; xen, xen-pvh and kvm have",
            index + 1
        )),
        None => Ok(()),
    }
}

/// The kinds of machine that can have Fairlane as a backend, in words.
pub fn with_fairlane() -> String {
    let kinds = MachineKind::ALL.into_iter().filter(|kind| kind.takes_fairlane());
    kinds.map(MachineKind::name).collect::<Vec<_>>().join(", ")
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// The machine at the other end of the host's link. It shares no measured CPU.
    External,
    /// The host's own system: the driver domain of a Xen host.
    Host,
    /// A guest, counted from 1.
    Guest(usize),
}

impl fmt::Display for Node {
    /// The name a node has in messages, logs and results.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::External => f.pad("external"),
            Node::Host => f.pad("host"),
            Node::Guest(number) => f.pad(&format!("guest-{number}")),
        }
    }
}

/// What an experiment needs of a machine. Read from the experiment's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Native Linux on the same hardware, instead of the kind of machine that is asked for: to compare the two.
    #[serde(default)]
    pub bare: bool,
    /// The guests, in order.
    pub guests: Vec<GuestPlan>,
    /// The link to the external machine, in bits per second of Ethernet frames; unlimited if not given.
    #[serde(default)]
    pub link: Option<f64>,
    /// How guests and link are joined.
    #[serde(default)]
    pub join: Join,
    /// The physical CPUs of the host's own system (Xen: where dom0 is pinned). Where guests are processes of this computer, its
    /// kernel serves them on any, and only the external machine is kept off these.
    #[serde(default = "first_cpu")]
    pub host_cpus: Vec<usize>,
    /// The hypervisor's scheduler. Hosts without a hypervisor of that kind leave it out of account and say so.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// The scheduler's slice in milliseconds, where it has one; its own if not given.
    #[serde(default)]
    pub slice_ms: Option<u32>,
    /// Whether the instructions of the emulated computer are counted ([`Machine::marks`]), which slows it down.
    #[serde(default)]
    pub count: bool,
    /// Whether cards pass segments that are longer than a frame (TSO, GSO, GRO). Only the emulated computer's can do without,
    /// as native Linux or a Xen host.
    #[serde(default = "yes")]
    pub offload: bool,
    /// Whether guests have HAProxy.
    #[serde(default)]
    pub proxy: bool,
    /// Whether guests have Open MPI.
    #[serde(default)]
    pub mpi: bool,
    /// Whether guests and host have the doctor, which says what limits them.
    #[serde(default)]
    pub doctor: bool,
    /// What serves the guests' cards.
    #[serde(default)]
    pub backend: Backend,
    /// Whether Fairlane acknowledges TCP data for guests that wait for their CPU.
    #[serde(default)]
    pub early_ack: bool,
    /// Whether guests have a frontend that breaks the rules, to test a backend. No experiment has: only a Xen host's guests can.
    #[serde(skip)]
    pub hostile: bool,
}

impl Topology {
    /// The physical CPUs that the host and the guests use.
    pub fn measured_cpus(&self) -> BTreeSet<usize> {
        self.guests.iter().flat_map(|guest| &guest.cpus).chain(&self.host_cpus).copied().collect()
    }

    /// How many guests have a card.
    pub(crate) fn joined(&self) -> usize {
        match self.join {
            Join::Bridge => self.guests.len(),
            Join::Plain => self.guests.len().min(1),
        }
    }

    /// What its guests run besides their agents.
    pub(crate) fn tools(&self) -> Tools {
        Tools { proxy: self.proxy, mpi: self.mpi, doctor: self.doctor, hostile: self.hostile }
    }

    /// Refuses what no machine can be.
    fn check(&self) -> Result<(), Error> {
        let refuse = |where_: &str, what: String| Err(Error::Topology(format!("{where_}: {what}")));
        let rates = (1..).zip(&self.guests).flat_map(|(number, guest)| {
            [("rate", guest.rate), ("min_rate", guest.min_rate)]
                .map(|(key, rate)| (format!("guest {number}: {key}"), rate))
        });
        for (name, rate) in rates.chain([("link".to_owned(), self.link)]) {
            if let Some(rate) = rate.filter(|rate| !(*rate >= LEAST_RATE && rate.is_finite())) {
                return refuse(&name, format!("{rate} bit/s; at least {LEAST_RATE} is needed"));
            }
        }
        let cpus = (1..).zip(&self.guests).map(|(number, guest)| (format!("guest {number}: cpus"), &guest.cpus));
        for (name, cpus) in cpus.chain([("host_cpus".to_owned(), &self.host_cpus)]) {
            if cpus.is_empty() {
                return refuse(&name, "there is none; one at least is needed".to_owned());
            }
        }
        if !(1..=wiring::MOST_GUESTS).contains(&self.guests.len()) {
            return refuse("guests", format!("there are {}; 1 to {} can be", self.guests.len(), wiring::MOST_GUESTS));
        }
        Ok(())
    }
}

/// The least rate of a link or card, in bits per second.
const LEAST_RATE: f64 = 8000.0;

fn yes() -> bool {
    true
}

fn first_cpu() -> Vec<usize> {
    vec![0]
}

/// A guest of a [`Topology`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestPlan {
    /// The physical CPUs its virtual ones are pinned to.
    pub cpus: Vec<usize>,
    /// The scheduler's weight; the scheduler's own (256) if not given.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The cap of its card in bits per second (`rate` of Xen's vif), if any.
    #[serde(default)]
    pub rate: Option<f64>,
    /// What its card is guaranteed of the link, in bits per second of Ethernet frames. Backend fairlane only.
    #[serde(default)]
    pub min_rate: Option<f64>,
    /// A disk served by the host's block backend.
    #[serde(default)]
    pub disk: bool,
}

/// How a host joins its guests' cards and its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// A bridge of the host's kernel.
    #[default]
    Bridge,
    /// The first guest's card alone, routed to the link.
    Plain,
}

/// A CPU scheduler of Xen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// The sources': slices of 30 ms.
    #[default]
    Credit,
    /// Today's default.
    Credit2,
}

/// What measures time on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The real clock.
    #[default]
    Wall,
    /// The real clock, on the computer that [`Clock::Instructions`] has. What is asked of it is kept in this file.
    Rehearsal(PathBuf),
    /// A nanosecond an instruction: repeatable to the digit. For emulated computers only, which nothing from outside reaches
    /// while they run: they have the rehearsal's file with them, and are asked nothing else.
    Instructions(PathBuf),
}

impl Clock {
    /// Its name in results.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Clock::Wall => "wall",
            Clock::Rehearsal(_) => "rehearsal",
            Clock::Instructions(_) => "instructions",
        }
    }
}

/// CPU time spent since the machine started, by the hypervisor's own account.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTime {
    /// Whose.
    pub node: Node,
    /// In seconds.
    pub seconds: f64,
}

/// A machine that is up. Dropping it ends it as well, without asking its guests.
pub trait Machine {
    /// The agent at a node of the topology.
    fn agent(&self, node: Node) -> &Agent;
    /// A node's address on the network all nodes share.
    fn address(&self, node: Node) -> Ipv4Addr {
        wiring::address(node)
    }
    /// The hypervisor's account of CPU time; empty where there is no hypervisor that keeps one.
    ///
    /// # Errors
    /// Those of asking.
    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        Ok(Vec::new())
    }
    /// What the backend says of each guest's card, by its name; empty where none is asked.
    ///
    /// # Errors
    /// Those of asking.
    fn vifs(&self) -> Result<BTreeMap<String, Value>, Error> {
        Ok(BTreeMap::new())
    }
    /// What the emulator has counted up to each mark so far ([`crate::path::Counts`]): the first mark is from before there
    /// was a guest, others are those of [`fairlane_agent::Command::Mark`]. None where it does not count.
    fn marks(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// What the machine is, for the result's settings: versions, emulation, where each node ran.
    fn facts(&self) -> BTreeMap<String, Value>;
    /// Powers all off.
    ///
    /// # Errors
    /// Where something does not end as asked; it has ended even so.
    fn stop(self: Box<Self>) -> Result<(), Error>;
}
