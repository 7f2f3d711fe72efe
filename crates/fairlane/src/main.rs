//! The network path of virtual machines, measured, shared fairly, kept fast.

#![forbid(unsafe_code)]

fn main() {}
