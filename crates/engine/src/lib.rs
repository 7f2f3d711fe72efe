//! The datapath: workers, live configuration, control, metrics.
//!
//! [`bridge`] is the path of a frame, top to bottom. [`worker`] runs bridges; [`Engine`] builds both from a policy, and answers
//! [`control`] and [`metrics`] while frames pass.

#![forbid(unsafe_code)]

mod accept;
mod accounts;
mod bill;
pub mod bridge;
mod change;
mod claim;
pub mod clock;
pub mod confinement;
pub mod control;
mod due;
mod early;
mod engine;
mod entry;
mod error;
pub mod failure;
mod forward;
mod measured;
mod messages;
pub mod metrics;
#[cfg(test)]
#[path = "../../core/tests/due/mod.rs"]
mod parts;
mod ports;
pub mod predecessor;
pub mod reading;
mod receivers;
mod rx_queue;
mod senders;
pub mod snapshot;
mod starter;
mod waiters;
mod waiting;
pub mod web;
pub mod worker;

pub use bridge::{Bridge, Round};
pub use engine::Engine;
pub use error::Error;
pub use fairlane_port::store;
pub use forward::UPLINK;
pub use waiting::{BUCKETS, Waiting};
