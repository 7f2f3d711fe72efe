//! The engine's own bridges in virtual time: hosts, guests, traffic and a fabric.
//!
//! Nothing of Fairlane is modelled: every host is the bridge that the daemon runs ([`fairlane_engine::Bridge`]), opened from a policy
//! by the same function, and its ports implement the same traits as those of a real card. Only the surroundings are a model: what the
//! worker's work costs, when guests run, what they send, and the wires.

#![forbid(unsafe_code)]

mod bbr;
mod card;
mod clock;
mod events;
mod flow;
mod frame;
mod host;
mod losses;
mod outcome;
mod plan;
mod rate;
mod receiver;
mod result;
pub mod scenario;
mod sender;
mod stream;
mod tcp;
mod uplink;
mod window;
mod world;

pub use flow::Tally;
pub use outcome::{HostOutcome, Outcome, Second, VifOutcome};
pub use scenario::Scenario;

/// Why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A policy's link cannot be opened.
    #[error(transparent)]
    Engine(#[from] fairlane_engine::Error),
    /// The system has no more descriptors, or no room for a directory.
    #[error("a simulation needs a descriptor and a temporary directory: {0}")]
    Descriptor(#[from] std::io::Error),
}

/// Runs a scenario.
///
/// # Errors
/// The system has no more memory or descriptors.
pub fn run(scenario: &Scenario) -> Result<Outcome, Error> {
    Ok(world::World::new(scenario)?.run())
}
