//! Properties of the schedulers, in virtual time.

mod all;
#[path = "../due/mod.rs"]
mod due;
mod fair;
mod parts;
mod round;
mod sim;
mod tenants;
