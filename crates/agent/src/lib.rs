//! The guest's agent: the protocol, and the agent's side of it.
//!
//! The binary of this crate is a guest's init. The protocol is lines of JSON over a serial console: the host writes
//! [`Request`]s, and the agent answers each with [`Message`]s of the same id, the last of which is [`Event::Done`],
//! [`Event::Failed`] or [`Event::Gone`]. Requests run concurrently, each in its own thread. A line that is no message is
//! skipped.
#![forbid(unsafe_code)]

mod counters;
pub mod doctor;
mod mark;
pub mod mpi;
mod program;
mod protocol;
pub mod proxy;
mod relay;
mod running;
mod script;
mod serve;
mod symbols;
mod tty;
mod work;

pub use counters::{Counters, Interface};
pub use protocol::{Command, Event, Message, Outcome, Request, encode};
pub use script::{Step, read_script};
pub use serve::{End, replay, serve};
pub use symbols::Function;
pub use tty::open_raw;
