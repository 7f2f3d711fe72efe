//! A client's counts, of an interval or in total.

use std::ops::Add;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The largest value of a histogram: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// Counts and latencies.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Completely answered requests; for UDP the datagrams sent; zero for streams.
    pub requests: u64,
    /// Established connections.
    pub connections: u64,
    /// Payload bytes sent to the server.
    pub sent: u64,
    /// Bytes received from the server.
    pub received: u64,
    /// Failed requests.
    pub failures: Failures,
    /// Open loop: requests that were due and not answered at the end. `latency` has them with the time they had waited by then,
    /// which is less than their actual latency.
    pub unanswered: u64,
    /// Nanoseconds from when a request started, or in open loop was due, to the end of its response; accurate to 0.1%.
    pub latency: Histogram<u64>,
    /// Nanoseconds from `connect` until a connection accepted the first byte of a request.
    pub connect: Histogram<u64>,
}

/// Failed requests, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// The connection was reset.
    pub reset: u64,
    /// The connection ended before the response did.
    pub closed: u64,
    /// There was no answer in time.
    pub timed_out: u64,
    /// HTTP: a status other than 2xx and 3xx.
    pub status: u64,
}

impl Failures {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.reset + self.closed + self.timed_out + self.status
    }
}

impl Tally {
    /// An empty tally.
    pub fn new() -> Tally {
        let histogram = || Histogram::new_with_bounds(1, LONGEST, 3).expect("the bounds and digits are valid");
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

    /// Adds another tally.
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

/// The counts of one interval.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Its end, in seconds since the start.
    pub t: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// The counts; a request counts in the interval of its end.
    pub tally: Tally,
}

/// A server's counts of a client's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Datagrams that arrived after one with a higher sequence number.
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
