//! The control protocol: lines of JSON over a Unix socket that only its owner may use.
//!
//! `docs/reference/control-protocol.md` describes it for other clients.

mod client;
mod protocol;
mod server;

pub use client::{Client, Error};
pub use protocol::{CaptureReport, FlowsFile, LINE, PROTOCOL, Reload, Reply, Request, Set, StartCapture, StopCapture};
pub use server::{Answer, Server};
