//! A machine under measurement: a host, its guests, and an external machine at the other end of its link.
//!
//! Experiments know this trait only, so each runs on every kind of machine that can take its topology.

mod backend;
mod bare;
mod boot;
mod computer;
mod cpus;
mod emulated;
mod kvm;
mod local;
mod vhost_user;
mod wiring;
mod xen;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde_json::Value;

use crate::{Agent, Error};

pub use backend::run as run_fairlane;
pub(crate) use backend::set_weights;
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
        node.address()
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
