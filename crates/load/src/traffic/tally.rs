//! What a client counts: in an interval, or in all.

use std::ops::Add;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest time a histogram tells from longer ones: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// What was done, and how long it took.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Requests answered in full; of UDP, datagrams sent; of streams none.
    pub requests: u64,
    /// Connections made.
    pub connections: u64,
    /// Bytes sent to the server: of TCP, and of UDP, payload.
    pub sent: u64,
    /// Bytes received from the server.
    pub received: u64,
    /// What went wrong.
    pub failures: Failures,
    /// Open loop: requests that were due and not answered when time was up. They stand in `latency` with the time they
    /// had waited by then, which is less than they would have taken.
    pub unanswered: u64,
    /// Nanoseconds from when a request began, or in open loop was due, to the end of its response: within 0.1%.
    pub latency: Histogram<u64>,
    /// Nanoseconds from `connect` until a connection took the first byte of a request.
    pub connect: Histogram<u64>,
}

/// Requests that came to nothing, by what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The connection was reset.
    pub reset: u64,
    /// The connection ended before the response did.
    pub closed: u64,
    /// There was no answer in time.
    pub timed_out: u64,
    /// HTTP: a status that is not 2xx or 3xx.
    pub status: u64,
}

impl Failures {
    /// All together.
    pub fn total(&self) -> u64 {
        self.reset + self.closed + self.timed_out + self.status
    }
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Tally {
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds and digits of a histogram");
        Tally {
            requests: 0,
            connections: 0,
            sent: 0,
            received: 0,
            failures: Failures::default(),
            unanswered: 0,
            latency: histogram(),
            connect: histogram(),
        }
    }

    /// Adds what another has.
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.connections += other.connections;
        self.sent += other.sent;
        self.received += other.received;
        self.failures.reset += other.failures.reset;
        self.failures.closed += other.failures.closed;
        self.failures.timed_out += other.failures.timed_out;
        self.failures.status += other.failures.status;
        self.unanswered += other.unanswered;
        self.latency += &other.latency;
        self.connect += &other.connect;
    }
}

impl Default for Tally {
    fn default() -> Tally {
        Tally::new()
    }
}

/// What was counted in one interval.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// What was done in it: a request counts where it ends.
    pub tally: Tally,
}

/// What a server counted of a client's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Datagrams that came after one with a higher sequence number.
    pub reordered: u64,
}

impl Add for Arrived {
    type Output = Arrived;

    fn add(self, other: Arrived) -> Arrived {
        Arrived {
            datagrams: self.datagrams + other.datagrams,
            bytes: self.bytes + other.bytes,
            reordered: self.reordered + other.reordered,
        }
    }
}
