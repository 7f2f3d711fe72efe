//! Early ack: tests of each rule, and two TCP ends with arbitrary networks and guests.

mod alone;
mod bursts;
mod ends;
mod fixture;
mod hostile;
mod model;
mod moves;
mod rules;
mod steps;
mod wire;
