//! Topologies: what an experiment needs of a machine, as data.

mod backend;
mod kind;
mod name;
mod node;

use std::collections::{BTreeMap, BTreeSet};

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
    /// Native Linux on the same hardware instead of the requested kind of machine, to compare the two.
    #[serde(default)]
    pub bare: bool,
    /// The guests, in order.
    pub guests: Vec<GuestPlan>,
    /// The link to the external machine, in bits per second of Ethernet frames; unlimited if not given.
    #[serde(default)]
    pub link: Option<f64>,
    /// What the guests receive over the link together, in bits per second of Ethernet frames (`rx_rate` of Fairlane's link), if less.
    /// The kernel's backend ignores it.
    #[serde(default)]
    pub rx_link: Option<f64>,
    /// The owners of guests' cards in Fairlane's policy. The kernel's backend ignores them.
    #[serde(default)]
    pub tenants: Vec<TenantPlan>,
    /// How the guests are connected to the link.
    #[serde(default)]
    pub join: Join,
    /// The physical CPUs of the host's own system (Xen: where dom0 is pinned). If guests run on this host, its kernel serves them on
    /// any CPU, and only the external machine is kept off these.
    #[serde(default = "first_cpu")]
    pub host_cpus: Vec<usize>,
    /// The hypervisor's scheduler. Machines without Xen ignore it, with a note in the result.
    #[serde(default)]
    pub scheduler: Scheduler,
    /// The scheduler's slice in milliseconds; the scheduler's default if not given.
    #[serde(default)]
    pub slice_ms: Option<u32>,
    /// Whether the emulated PC's instructions are counted ([`Machine::marks`](crate::Machine::marks)), which slows it down.
    #[serde(default)]
    pub count: bool,
    /// Whether cards use segmentation offloads (TSO, GSO, GRO). Only native Linux and Xen on the emulated PC can disable them.
    #[serde(default = "yes")]
    pub offload: bool,
    /// Whether guests have HAProxy.
    #[serde(default)]
    pub proxy: bool,
    /// Whether guests have Open MPI.
    #[serde(default)]
    pub mpi: bool,
    /// Whether guests and host have the doctor, which finds what limits them.
    #[serde(default)]
    pub doctor: bool,
    /// Kernel settings of the guests, by their names as sysctl(8) has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// The backend of the guests' cards.
    #[serde(default)]
    pub backend: Backend,
    /// Whether Fairlane acknowledges TCP data for guests that wait for their CPU.
    #[serde(default)]
    pub early_ack: bool,
    /// Whether guests have the hostile frontend, to test a backend. Xen hosts only; no experiment uses it.
    #[serde(skip)]
    pub hostile: bool,
}

impl Topology {
    /// A topology with these guests, and defaults for the rest.
    pub fn of(guests: Vec<GuestPlan>) -> Topology {
        Topology {
            bare: false,
            guests,
            link: None,
            rx_link: None,
            tenants: Vec::new(),
            join: Join::default(),
            host_cpus: first_cpu(),
            scheduler: Scheduler::default(),
            slice_ms: None,
            count: false,
            offload: yes(),
            proxy: false,
            mpi: false,
            doctor: false,
            backend: Backend::default(),
            early_ack: false,
            sysctls: BTreeMap::new(),
            hostile: false,
        }
    }

    /// The physical CPUs that the host and the guests use.
    pub fn measured_cpus(&self) -> BTreeSet<usize> {
        self.guests.iter().flat_map(|guest| &guest.cpus).chain(&self.host_cpus).copied().collect()
    }

    /// The number of guests with a card.
    pub(crate) fn joined(&self) -> usize {
        match self.join {
            Join::Bridge => self.guests.len(),
            Join::Plain => self.guests.len().min(1),
        }
    }

    /// What the kernel's backend does not do of it.
    pub(crate) fn unserved_by_kernel(&self) -> Option<String> {
        let of_guest = |guest: &GuestPlan| {
            guest.share.is_some() || guest.rx_rate.is_some() || guest.rx_min_rate.is_some() || guest.tenant.is_some()
        };
        let any = self.rx_link.is_some() || !self.tenants.is_empty() || self.guests.iter().any(of_guest);
        any.then(|| "shares, tenants and rates of what guests receive: the kernel's bridge has none".to_owned())
    }

    /// The tools of its guests.
    pub(crate) fn tools(&self) -> Tools {
        Tools { proxy: self.proxy, mpi: self.mpi, doctor: self.doctor, hostile: self.hostile }
    }

    /// Refuses a topology that no machine can have.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |where_: &str, what: String| Err(Error::Topology(format!("{where_}: {what}")));
        let rates = (1..)
            .zip(self.guests.clone())
            .flat_map(|(number, mut guest)| guest.rates().map(|(key, rate)| (format!("guest {number}: {key}"), *rate)));
        for (name, rate) in rates.chain([("link".to_owned(), self.link), ("rx_link".to_owned(), self.rx_link)]) {
            if let Some(rate) = rate.filter(|rate| !(*rate >= LEAST_RATE && rate.is_finite())) {
                return refuse(&name, format!("{rate} bit/s; at least {LEAST_RATE} is needed"));
            }
        }
        let cpus = (1..).zip(&self.guests).map(|(number, guest)| (format!("guest {number}: cpus"), &guest.cpus));
        for (name, cpus) in cpus.chain([("host_cpus".to_owned(), &self.host_cpus)]) {
            if cpus.is_empty() {
                return refuse(&name, "at least one CPU is needed".to_owned());
            }
        }
        if !(1..=node::MOST_GUESTS).contains(&self.guests.len()) {
            return refuse("guests", format!("there must be 1 to {}, not {}", node::MOST_GUESTS, self.guests.len()));
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
    /// The physical CPUs that its virtual ones are pinned to.
    pub cpus: Vec<usize>,
    /// Its weight in the hypervisor's scheduler; the default (256) if not given.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The rate limit of its card in bits per second (`rate` of Xen's vif), if any.
    #[serde(default)]
    pub rate: Option<f64>,
    /// Its card's guaranteed rate on the link, in bits per second of Ethernet frames. Backend fairlane only.
    #[serde(default)]
    pub min_rate: Option<f64>,
    /// Its card's weight on the link in both directions, in Fairlane's policy; the default (100) if not given. The kernel's backend
    /// ignores it, and so the next three keys.
    #[serde(default)]
    pub share: Option<u32>,
    /// The tenant of its card.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The rate up to which its card receives, in bits per second of Ethernet frames (`rx_max_rate`).
    #[serde(default)]
    pub rx_rate: Option<f64>,
    /// The rate that its card is guaranteed to receive (`rx_min_rate`).
    #[serde(default)]
    pub rx_min_rate: Option<f64>,
    /// Whether it has a disk, served by the host's block backend.
    #[serde(default)]
    pub disk: bool,
}

impl GuestPlan {
    /// All rates, with their keys.
    pub(crate) fn rates(&mut self) -> [(&'static str, &mut Option<f64>); 4] {
        let GuestPlan { rate, min_rate, rx_rate, rx_min_rate, .. } = self;
        [("rate", rate), ("min_rate", min_rate), ("rx_rate", rx_rate), ("rx_min_rate", rx_min_rate)]
    }
}

/// An owner of guests' cards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantPlan {
    /// Its name.
    pub name: String,
    /// Its weight on the link in both directions.
    pub share: u32,
}

/// How a host connects its guests' cards to its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Join {
    /// By a bridge of the host's kernel.
    #[default]
    Bridge,
    /// By routing, for the first guest's card only.
    Plain,
}

/// A CPU scheduler of Xen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// The scheduler of Xen in 2010, with slices of 30 ms.
    #[default]
    Credit,
    /// The default of current Xen.
    Credit2,
}
