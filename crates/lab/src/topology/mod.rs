//! What an experiment needs of a machine, as data.

mod backend;
mod kind;
mod name;
mod node;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::tools::Tools;

pub use backend::Backend;
pub use kind::{MachineKind, with_fairlane};
pub use name::NameError;
pub use node::Node;
pub(crate) use node::PREFIX;

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
    /// Whether the instructions of the emulated computer are counted ([`Machine::marks`](crate::Machine::marks)), which slows it down.
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
    pub(crate) fn check(&self) -> Result<(), Error> {
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
        if !(1..=node::MOST_GUESTS).contains(&self.guests.len()) {
            return refuse("guests", format!("there are {}; 1 to {} can be", self.guests.len(), node::MOST_GUESTS));
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
