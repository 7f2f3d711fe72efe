//! The datapath: a bridge in virtual time, and workers on real threads.

mod bill;
mod bridge;
mod early;
mod fairness;
mod flood;
#[path = "../../../port/tests/frontend/mod.rs"]
mod frontend;
mod inflow;
mod receive;
mod rx_rates;
mod sleep;
mod support;
mod worker;
