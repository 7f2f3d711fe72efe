//! A summary for the terminal, with columns similar to netperf's.

use super::record::{Measure, samples, spread};
use super::run::{Run, sizes};
use crate::figures::count;
use fairlane_load::traffic::{Pattern, client::Spec};
use fairlane_report::stats::mean;
use fairlane_report::text::table;

/// One line about the load.
pub(super) fn title(spec: &Spec) -> String {
    let pace = match (&spec.pattern, spec.rate) {
        (Pattern::Stream | Pattern::Maerts, _) => String::new(),
        (Pattern::Udp { .. }, None) => ", flood".to_owned(),
        (Pattern::Udp { .. }, Some(rate)) => format!(", {} Mbit/s", rate / 1e6),
        (_, None) => ", closed loop".to_owned(),
        (_, Some(rate)) => format!(", open loop at {rate}/s"),
    };
    let connections = count(spec.connections, "connection");
    let (name, to) = (spec.pattern.name(), spec.to);
    format!("{name} to {to}: {connections}, {}{pace}", count(spec.threads.min(spec.connections), "thread"))
}

/// The table, with one row per size.
pub(super) fn summary(spec: &Spec, measures: &[Measure], runs: &[Run]) -> String {
    let all = Summary { spec, measures, runs };
    match spec.pattern {
        Pattern::Stream | Pattern::Maerts => all.streams(),
        Pattern::Udp { .. } => all.datagrams(),
        _ => all.requests(),
    }
}

/// What the summary is made from.
struct Summary<'a> {
    spec: &'a Spec,
    measures: &'a [Measure],
    runs: &'a [Run],
}

impl Summary<'_> {
    fn streams(&self) -> String {
        let head = ["Elapsed s", "Throughput Mbit/s", "Repeats", "95%"];
        let row = |size| {
            let [repeats, spread] = self.repeats(size);
            [self.seconds(size), self.value("throughput", size, 2), repeats, spread]
        };
        table(head, [true; 4], sizes(self.runs).into_iter().map(row).collect())
    }

    fn datagrams(&self) -> String {
        let head = [
            "Datagram B",
            "Elapsed s",
            "Sent/s",
            "Sent Mbit/s",
            "Received Mbit/s",
            "Lost %",
            "Reordered",
            "Repeats",
            "95%",
        ];
        let row = |size: u64| {
            let (sent, offered) = (self.value("datagrams_per_second", size, 0), self.value("offered", size, 2));
            let (lost, reordered) = (self.value("loss", size, 3), self.value("reordered", size, 0));
            let received = self.value("throughput", size, 2);
            let [repeats, spread] = self.repeats(size);
            [size.to_string(), self.seconds(size), sent, offered, received, lost, reordered, repeats, spread]
        };
        table(head, [true; 9], sizes(self.runs).into_iter().map(row).collect())
    }

    fn requests(&self) -> String {
        let head = [
            "Request B",
            "Resp. B",
            "Elapsed s",
            "Trans./s",
            "Mbit/s",
            "p50 us",
            "p90 us",
            "p99 us",
            "Max us",
            "CPU us/req",
            "Failed",
            "Repeats",
            "95%",
        ];
        let row = |size: u64| {
            let request = match &self.spec.pattern {
                Pattern::Crr(sizes) | Pattern::Rr(sizes) => sizes.request.to_string(),
                _ => "-".to_owned(),
            };
            // The size of the object behind a URL is unknown.
            let response = match &self.spec.pattern {
                Pattern::Http { path, .. } if !path.starts_with("/?s=") => "-".to_owned(),
                _ => size.to_string(),
            };
            let latency = |name| self.value(name, size, 1);
            let [repeats, spread] = self.repeats(size);
            [
                request,
                response,
                self.seconds(size),
                self.value(self.measures[0].name, size, 2),
                self.value("throughput", size, 2),
                latency("latency_p50"),
                latency("latency_p90"),
                latency("latency_p99"),
                latency("latency_max"),
                latency("cpu_per_request"),
                self.value("failures", size, 0),
                repeats,
                spread,
            ]
        };
        table(head, [true; 13], sizes(self.runs).into_iter().map(row).collect())
    }

    /// The mean of a measure for one size, with `places` decimals.
    fn value(&self, name: &str, size: u64, places: usize) -> String {
        let measure = self.measures.iter().find(|measure| measure.name == name);
        let mean = measure.and_then(|measure| mean(&samples(measure, self.runs, size)));
        mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.places$}"))
    }

    /// The mean duration of the runs of one size.
    fn seconds(&self, size: u64) -> String {
        let of_size = self.runs.iter().filter(|run| run.size == size);
        let times: Vec<f64> = of_size.map(|run| run.outcome.seconds).collect();
        format!("{:.2}", mean(&times).unwrap_or(f64::NAN))
    }

    /// The number of runs of one size, and their spread.
    fn repeats(&self, size: u64) -> [String; 2] {
        let samples = samples(&self.measures[0], self.runs, size);
        [samples.len().to_string(), spread(&samples)]
    }
}
