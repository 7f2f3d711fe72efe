//! The lab: guests, machines of guests, and experiments on them.
//!
//! A guest is a kernel and an initramfs whose init is the agent ([`fairlane_agent`]). The lab boots it, sends it commands over a
//! console and collects the answers. User-Mode Linux and QEMU guests differ in their command line only.
#![forbid(unsafe_code)]

mod agent;
mod boot;
mod cache;
mod console;
mod contents;
mod cpio;
mod error;
pub mod experiment;
mod guest;
mod image;
pub mod images;
pub mod interrupt;
mod job;
mod kernel;
mod launch;
mod libraries;
pub mod machine;
mod modules;
mod monitor;
mod mpi;
mod packages;
pub mod path;
mod program;
mod qemu;
mod script;
mod spec;
mod tools;
mod topology;
mod uml;

/// Receives progress messages.
pub type Progress<'a> = &'a (dyn Fn(&str) + Sync);

pub use agent::Agent;
pub use error::Error;
pub use fairlane_agent::{Command, Counters, Event, Interface, Outcome};
pub use guest::{CpuSwitch, Guest};
pub use job::Job;
pub use machine::{Clock, CpuTime, Machine};
pub use monitor::Monitor;
pub use spec::{Backend, GuestSpec, Kind, Nic};
pub use tools::Tools;
pub use topology::{GuestPlan, Join, MachineKind, NameError, Node, Scheduler, TenantPlan, Topology};
