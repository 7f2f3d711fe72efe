//! Early ack: its rules one by one, and two ends of TCP under any network and any guest.

mod fixture;
mod rules;
mod wire;
