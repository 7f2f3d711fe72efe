//! Properties of the schedulers, in virtual time.

mod all;
mod fair;
mod round;
mod sim;
mod tenants;
