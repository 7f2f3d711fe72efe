//! The datapath: workers, live configuration, control, metrics.
//!
//! A frame's way is in [`bridge`], top to bottom. [`worker`] turns it over and over; [`Engine`] makes both from a policy and
//! lets [`control`] and [`metrics`] ask and tell while frames pass.

#![forbid(unsafe_code)]

mod accept;
mod bill;
pub mod bridge;
mod change;
pub mod clock;
pub mod confinement;
pub mod control;
mod early;
mod engine;
mod entry;
mod error;
pub mod failure;
mod forward;
mod messages;
pub mod metrics;
mod ports;
mod receivers;
mod rx_queue;
pub mod snapshot;
mod waiters;
pub mod worker;

pub use bridge::{Bridge, Round};
pub use engine::Engine;
pub use entry::{BUCKETS, Waiting};
pub use error::Error;
pub use forward::UPLINK;
