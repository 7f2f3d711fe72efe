//! The guest's agent: what is spoken with it, and its side of the talk.
//!
//! The binary of this crate is the first and only program of a guest. It talks over a serial console in lines of
//! JSON: the host writes [`Request`]s, the agent answers each with [`Message`]s of the same id, the last of which
//! is [`Event::Done`], [`Event::Failed`] or [`Event::Gone`]. Requests run at the same time, a thread each. A line that is no
//! message is noise, and skipped.
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
pub use serve::{End, perform, serve};
pub use symbols::Function;
pub use tty::open_raw;
