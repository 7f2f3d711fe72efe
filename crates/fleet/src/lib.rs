//! Policies for many hosts, kept in NATS JetStream: a store that everybody reads, an agent on each host, and changes that go from host
//! to host and back again.
//!
//! A host's policy is a value in one bucket, what the host reports of itself a value in another ([`Fleet`]). Whoever changes policies
//! ([`apply`]) never talks to a host: it writes one bucket and reads the other, and the agents ([`follow`]) do the opposite. So a host
//! that is away misses nothing, and needs nobody to go on with what it has.

#![forbid(unsafe_code)]

mod access;
mod apply;
mod division;
mod follow;
mod hosts;
mod state;
mod store;
mod tenants;

pub use access::Access;
pub use apply::{Pace, Wanted, apply};
pub use division::OfLinks;
pub use follow::{Host, Look, Refusal, follow};
pub use hosts::{Hosts, Report};
pub use state::{Promise, Refused, State};
pub use store::{Fleet, Revision};
pub use tenants::Guarantee;

use std::io;

/// Why the fleet's store cannot do what was asked, or a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the credentials, or the certificates, cannot be used.
    #[error("cannot use {0}: {1}")]
    Credentials(String, io::Error),
    /// There is no connection.
    #[error("no NATS server answers at {server}: {why}")]
    NoServer {
        /// Its address.
        server: String,
        /// What failed.
        why: String,
    },
    /// The server refused a request, or did not answer.
    #[error("the store cannot {what}: {why}")]
    Store {
        /// What was asked.
        what: String,
        /// What failed.
        why: String,
    },
    /// No host of this name has ever followed.
    #[error("{0} has no policy in the store: start `fairlane fleet follow` there first")]
    UnknownHost(String),
    /// Somebody else changed a host's policy at the same time.
    #[error("{host}: somebody else changed its policy to revision {revision} meanwhile")]
    Overtaken {
        /// The host.
        host: String,
        /// What it has now.
        revision: u64,
    },
    /// A change was begun and taken back.
    #[error("{why}; {back}")]
    WentBack {
        /// The host that did not take it, and why.
        why: String,
        /// What became of the hosts that had it.
        back: String,
    },
}

/// Runs an operation of the fleet to its end.
///
/// # Panics
/// The system has no descriptor left to wait with.
pub fn run<T>(operation: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("an epoll descriptor").block_on(operation)
}

/// Whether a host, or a tenant across hosts, may have this name: it is part of a NATS subject.
pub fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !name.split('.').any(str::is_empty) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_subjects() {
        assert!(["a", "web-1", "web_1.example.org"].into_iter().all(is_name));
        assert!(!["", ".", "a.", ".a", "a..b", "a b", "a*", ">", "ä"].into_iter().any(is_name));
    }
}
