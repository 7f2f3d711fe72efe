//! The command's interface: arguments in; text, exit status and files out.

#![forbid(unsafe_code)]

#[path = "../bpftrace/mod.rs"]
mod bpftrace;
mod browser;
mod calls;
mod check;
mod confined;
mod ctl;
mod drop_ins;
mod fleet;
#[path = "../../../port/tests/frontend/mod.rs"]
mod frontend;
mod guests;
mod help;
mod libvirt;
mod manager;
mod observer;
mod owed;
mod page;
mod prometheus;
mod top;
mod tracepoints;
mod up;
mod workspace;
mod xdp;
