//! Early ack: its rules one by one, and two ends of TCP under any network and any guest.

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
