//! What Xen's guests cannot be served for: what this system lacks, and what a frontend wrote.

use super::violation::Violation;
use std::io;
use thiserror::Error;

/// What there must be in a driver domain, and is not.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// No way to xenstore.
    #[error("no xenstore: nobody listens at {socket}, and {device} cannot be opened: {error}")]
    Store {
        /// Where xenstored would listen.
        socket: &'static str,
        /// The kernel's device.
        device: &'static str,
        /// What the system says of that.
        error: io::Error,
    },
    /// No number of this domain that could be read.
    #[error("cannot read domid, this domain's number: {0}")]
    Number(io::Error),
    /// None that is one.
    #[error("domid is {0:?} in xenstore; it must be this domain's number")]
    NoNumber(String),
    /// No granted memory.
    #[error(
        "cannot open {device} ({error}): a driver domain of Xen has it, once the module xen-gntdev is loaded \
         (`modprobe xen-gntdev`); and it takes root"
    )]
    Grants {
        /// The device.
        device: &'static str,
        /// What the system says.
        error: io::Error,
    },
    /// Nothing is heard of vifs.
    #[error("cannot watch {path} in xenstore: {error}")]
    Watch {
        /// What is watched.
        path: &'static str,
        /// What xenstore says.
        error: io::Error,
    },
    /// No thread or descriptor left.
    #[error("cannot serve Xen's vifs: {0}")]
    Serve(io::Error),
}

/// What is wrong with what a frontend wrote in xenstore, or with the rings that it names.
#[derive(Debug, Error)]
pub enum Rejection {
    /// A key that cannot be read.
    #[error("{key}: {error}")]
    Unread {
        /// The key's path.
        key: String,
        /// What xenstore says.
        error: io::Error,
    },
    /// A key that must be there.
    #[error("{0} is missing")]
    Missing(String),
    /// A key that is no number.
    #[error("{key} is {value:?}; it must be a number")]
    NoNumber {
        /// The key's path.
        key: String,
        /// What it says.
        value: String,
    },
    /// A frontend of before copies.
    #[error("the frontend asks for page flipping (no request-rx-copy = 1), which no backend does any more")]
    Flipping,
    /// One that would have to be looked at.
    #[error("the frontend does not tell of new receive buffers (no feature-rx-notify = 1)")]
    Silent,
    /// Too many queues, or none.
    #[error("multi-queue-num-queues is {queues}; it must be 1 to {most}")]
    Queues {
        /// How many it wants.
        queues: u32,
        /// How many it may have.
        most: u16,
    },
    /// No event channels here.
    #[error("no event channels: {0}")]
    NoEvents(io::Error),
    /// A ring's page that was not granted.
    #[error("ring page {reference} of domain {domain} cannot be mapped: {error}")]
    Page {
        /// Whose.
        domain: u16,
        /// The grant reference.
        reference: u32,
        /// What the system says.
        error: io::Error,
    },
    /// An event channel that is not offered.
    #[error("event channel {channel} of domain {domain} cannot be bound: {error}")]
    Channel {
        /// Whose.
        domain: u16,
        /// Its number there.
        channel: u32,
        /// What the system says.
        error: io::Error,
    },
    /// A ring that breaks a rule.
    #[error(transparent)]
    Ring(#[from] Violation),
}
