//! A process killed at any store leaves early ack's memory in a state in which no acknowledged data is lost.
//!
//! [`stores`] tries every store of a few connections. [`transfers`] runs many transfers between two TCP ends, each
//! through kills after random stores.

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
