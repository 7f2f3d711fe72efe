//! The counters of a server's thread.

use std::{
    ops::{Add, Sub},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

/// One thread's counters, written only by that thread.
#[derive(Default)]
pub(super) struct Counters {
    pub accepted: AtomicU64,
    pub closed: AtomicU64,
    pub requests: AtomicU64,
    pub received: AtomicU64,
    pub sent: AtomicU64,
    pub reset: AtomicU64,
    pub refused: AtomicU64,
    pub dropped: AtomicU64,
}

/// Adds to a counter of this thread. No read-modify-write operation is needed, as no other thread writes it.
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
}

/// The counts up to now, or of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Connections accepted.
    pub accepted: u64,
    /// Closed connections.
    pub closed: u64,
    /// Completely answered requests; streams count when they end.
    pub requests: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Connections reset by the client.
    pub reset: u64,
    /// Invalid requests.
    pub refused: u64,
    /// Connections closed because they were idle for too long, or to make room for others.
    pub dropped: u64,
}

impl Counters {
    /// The current counts.
    pub(super) fn served(&self) -> Served {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            accepted: read(&self.accepted),
            closed: read(&self.closed),
            requests: read(&self.requests),
            received: read(&self.received),
            sent: read(&self.sent),
            reset: read(&self.reset),
            refused: read(&self.refused),
            dropped: read(&self.dropped),
        }
    }
}

impl Served {
    fn with(self, other: Served, both: impl Fn(u64, u64) -> u64) -> Served {
        Served {
            accepted: both(self.accepted, other.accepted),
            closed: both(self.closed, other.closed),
            requests: both(self.requests, other.requests),
            received: both(self.received, other.received),
            sent: both(self.sent, other.sent),
            reset: both(self.reset, other.reset),
            refused: both(self.refused, other.refused),
            dropped: both(self.dropped, other.dropped),
        }
    }
}

impl Add for Served {
    type Output = Served;

    fn add(self, other: Served) -> Served {
        self.with(other, |a, b| a + b)
    }
}

impl Sub for Served {
    type Output = Served;

    fn sub(self, other: Served) -> Served {
        self.with(other, |a, b| a - b)
    }
}
