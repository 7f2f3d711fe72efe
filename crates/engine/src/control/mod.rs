//! The control protocol: lines of JSON over a Unix socket that only its owner may use, and over one that only shows.
//!
//! `docs/reference/control-protocol.md` describes it for other clients.

mod client;
mod protocol;
mod server;

pub use client::{Client, Error};
pub use protocol::{
    Add, CaptureReport, DropIn, FlowsFile, HandOver as HandOverRequest, LINE, PROTOCOL, Reload, Remove, Reply, Request,
    Saved, Set, StartCapture, StopCapture,
};
pub(crate) use server::agree;
pub use server::{Answer, HandOver, Server};
