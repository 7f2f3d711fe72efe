//! One run of the client, and its intervals.

use fairlane_load::traffic::{Interval, client::Outcome};

/// One run with one size.
pub(super) struct Run {
    /// Bytes of the response, object or datagram; zero for streams.
    pub size: u64,
    pub outcome: Outcome,
    pub rows: Vec<Row>,
}

/// The sizes of the runs, in order.
pub(super) fn sizes(runs: &[Run]) -> Vec<u64> {
    let mut sizes: Vec<u64> = runs.iter().map(|run| run.size).collect();
    sizes.dedup();
    sizes
}

/// The counts of an interval.
pub(super) struct Row {
    pub t: f64,
    pub seconds: f64,
    pub requests: u64,
    pub sent: u64,
    pub received: u64,
    pub connections: u64,
    pub failures: u64,
    /// Median, 99th percentile and maximum of the latency, in nanoseconds.
    pub latencies: [u64; 3],
}

impl From<&Interval> for Row {
    fn from(interval: &Interval) -> Row {
        let Interval { t, seconds, tally } = interval;
        Row {
            t: *t,
            seconds: *seconds,
            requests: tally.requests,
            sent: tally.sent,
            received: tally.received,
            connections: tally.connections,
            failures: tally.failures.total(),
            latencies: [0.5, 0.99, 1.0].map(|quantile| tally.latency.value_at_quantile(quantile)),
        }
    }
}

impl Row {
    /// The status line shown during the run.
    pub(super) fn line(&self) -> String {
        let rate = self.requests as f64 / self.seconds;
        let megabits = (self.sent + self.received) as f64 * 8e-6 / self.seconds;
        let p99 = self.latencies[1] as f64 / 1000.0;
        let failed = if self.failures > 0 { format!("  {} failed", self.failures) } else { String::new() };
        format!("{:8.1} s  {rate:10.0}/s  {megabits:9.1} Mbit/s  p99 {p99:9.1} us{failed}", self.t)
    }
}
