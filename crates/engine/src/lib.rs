//! The datapath: workers, live configuration, control, metrics.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod clock;
pub mod control;
mod forward;
pub mod metrics;
mod slot;
pub mod snapshot;
pub mod worker;

pub use bridge::{Bridge, Round};
pub use forward::{PATIENCE, UPLINK};
pub use slot::{BUCKETS, Waiting};
