//! Simulations of small scenarios: what arrives, who gets what, and that nothing is unaccounted for; and plans, right and wrong.

mod changes;
mod division;
#[path = "../../../core/tests/due/mod.rs"]
mod due;
mod early_ack;
mod hosts;
mod neighbours;
mod one_host;
mod parts;
mod plan;
mod properties;
mod rounds;
mod streams;
mod support;
mod worker;
