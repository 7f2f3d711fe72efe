//! A process that is killed at any store leaves early ack's memory so that nothing which was acknowledged is lost.
//!
//! [`stores`] tries every store of a few connections. [`transfers`] has many transfers pass between two ends of TCP, each through kills
//! after random stores.

#[path = "../../../core/tests/ack/ends.rs"]
mod ends;
mod killed;
#[path = "../../../core/tests/ack/model.rs"]
mod model;
mod shared;
mod stores;
mod transfers;
#[path = "../../../core/tests/ack/wire.rs"]
mod wire;
