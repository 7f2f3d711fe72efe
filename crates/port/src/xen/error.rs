//! Why Xen's guests cannot be served: what this system lacks, or what is wrong with what a frontend wrote.

use super::violation::Violation;
use std::io;
use thiserror::Error;

/// What a driver domain must have and this system does not.
#[derive(Debug, Error)]
pub enum Unavailable {
    /// Xenstore cannot be reached.
    #[error("no xenstore: nobody listens at {socket}, and {device} cannot be opened: {error}")]
    Store {
        /// Where xenstored would listen.
        socket: &'static str,
        /// The kernel's device.
        device: &'static str,
        /// The system's error for the device.
        error: io::Error,
    },
    /// This domain's number could not be read.
    #[error("cannot read domid, this domain's number: {0}")]
    Number(io::Error),
    /// It is not a number.
    #[error("domid is {0:?} in xenstore; it must be a number")]
    NoNumber(String),
    /// Granted memory is not available.
    #[error(
        "cannot open {device} ({error}): a driver domain of Xen has it, once the module xen-gntdev is loaded \
         (`modprobe xen-gntdev`); opening it needs root"
    )]
    Grants {
        /// The device.
        device: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// New vifs cannot be watched for.
    #[error("cannot watch {path} in xenstore: {error}")]
    Watch {
        /// The watched path.
        path: &'static str,
        /// Xenstore's error.
        error: io::Error,
    },
    /// No thread or descriptor is left.
    #[error("cannot serve Xen's vifs: {0}")]
    Serve(io::Error),
}

/// What is wrong with what a frontend wrote in xenstore, or with its rings.
#[derive(Debug, Error)]
pub enum Rejection {
    /// A key that cannot be read.
    #[error("{key}: {error}")]
    Unread {
        /// The key's path.
        key: String,
        /// Xenstore's error.
        error: io::Error,
    },
    /// A required key is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A key that is not a number.
    #[error("{key} is {value:?}; it must be a number")]
    NoNumber {
        /// The key's path.
        key: String,
        /// Its value.
        value: String,
    },
    /// A frontend that needs page flipping.
    #[error("the frontend asks for page flipping (no request-rx-copy = 1), which is no longer supported")]
    Flipping,
    /// A frontend that would have to be polled.
    #[error("the frontend does not notify new receive buffers (no feature-rx-notify = 1)")]
    Silent,
    /// Too many queues, or none.
    #[error("multi-queue-num-queues is {queues}; it must be 1 to {most}")]
    Queues {
        /// How many it asks for.
        queues: u32,
        /// How many it may have.
        most: u16,
    },
    /// Event channels are not available.
    #[error("no event channels: {0}")]
    NoEvents(io::Error),
    /// A ring page that cannot be mapped.
    #[error("ring page {reference} of domain {domain} cannot be mapped: {error}")]
    Page {
        /// The guest's domain.
        domain: u16,
        /// The grant reference.
        reference: u32,
        /// The system's error.
        error: io::Error,
    },
    /// An event channel that cannot be bound.
    #[error("event channel {channel} of domain {domain} cannot be bound: {error}")]
    Channel {
        /// The guest's domain.
        domain: u16,
        /// Its number in the guest.
        channel: u32,
        /// The system's error.
        error: io::Error,
    },
    /// A ring that breaks a rule.
    #[error(transparent)]
    Ring(#[from] Violation),
}
