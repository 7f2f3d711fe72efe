//! A machine under measurement: a host, its guests, and an external machine at the other end of its link.
//!
//! Experiments use this trait only, so each runs on every kind of machine that supports its topology.

mod backend;
mod bare;
mod boot;
mod cpus;
mod emulated;
mod kvm;
mod local;
mod pc;
mod vhost_user;
mod wiring;
mod xen;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::Value;

use crate::{Agent, CpuSwitch, Error};

pub(crate) use backend::set_weights;
pub use backend::{Replacement, policy, replace, run as run_fairlane, weights_set};
pub use boot::boot;
pub(crate) use wiring::{CARD, UPLINK, set_initial_window};

use crate::topology::Node;
pub use crate::topology::{Backend, with_fairlane};

/// What measures time on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The real clock.
    #[default]
    Wall,
    /// The real clock, on the hardware that [`Clock::Virtual`] has. The requests to the agents are recorded in this file.
    Record(PathBuf),
    /// The emulator's virtual clock (icount): a nanosecond per instruction, repeatable to the digit. For emulated hosts only.
    /// Nothing from outside may reach one while it runs: it replays the requests recorded in this file, and gets no others.
    Virtual(PathBuf),
}

impl Clock {
    /// Its name in results.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Clock::Wall => "wall",
            Clock::Record(_) => "record",
            Clock::Virtual(_) => "instructions",
        }
    }
}

/// CPU time used since the machine started, as the hypervisor accounts it.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTime {
    /// The node that used it.
    pub node: Node,
    /// In seconds.
    pub seconds: f64,
}

/// A running machine. Dropping it ends it without a shutdown of its guests.
pub trait Machine {
    /// The agent at a node of the topology.
    fn agent(&self, node: Node) -> &Agent;
    /// A node's address on the network that all nodes share.
    fn address(&self, node: Node) -> Ipv4Addr {
        node.address()
    }
    /// The hypervisor's account of CPU time; empty without a hypervisor that keeps one.
    ///
    /// # Errors
    /// Those of the request.
    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        Ok(Vec::new())
    }
    /// The backend's counters of each guest's card and of the uplink, by a name for the result; empty for a backend that has none.
    ///
    /// # Errors
    /// Those of the request.
    fn counters(&self) -> Result<BTreeMap<String, Value>, Error> {
        Ok(BTreeMap::new())
    }
    /// Files with the emulator's counts up to each mark so far ([`crate::path::Counts`]). The first mark was made before any
    /// guest started; the others are those of [`fairlane_agent::Command::Mark`]. Empty if the machine does not count.
    fn marks(&self) -> Vec<PathBuf> {
        Vec::new()
    }
    /// The switch of a guest's CPUs; none if its hypervisor alone decides when it runs.
    ///
    /// # Errors
    /// [`Error::Gone`] if the guest has ended.
    fn switch(&self, _guest: usize) -> Result<Option<CpuSwitch>, Error> {
        Ok(None)
    }
    /// The machine's description for the result's settings: versions, emulation, where each node ran.
    fn facts(&self) -> BTreeMap<String, Value>;
    /// Powers everything off.
    ///
    /// # Errors
    /// If something does not end when asked to; it has been killed then.
    fn stop(self: Box<Self>) -> Result<(), Error>;
}
