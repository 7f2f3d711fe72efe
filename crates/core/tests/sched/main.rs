//! Properties of the schedulers, in virtual time.

mod all;
mod fair;
mod parts;
mod round;
mod sim;
mod tenants;
