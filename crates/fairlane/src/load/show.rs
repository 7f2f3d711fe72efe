//! A summary for the terminal, in the columns that users of netperf know.

use super::record::{Measure, Run, samples, sizes, spread};
use crate::out::counted;
use fairlane_load::traffic::{Pattern, client::Spec};
use fairlane_report::stats::mean;
use fairlane_report::text::table;

/// What was run, in a line.
pub fn orders(spec: &Spec) -> String {
    let pace = match (&spec.pattern, spec.rate) {
        (Pattern::Stream | Pattern::Maerts, _) => String::new(),
        (Pattern::Udp { .. }, None) => ", flood".to_owned(),
        (Pattern::Udp { .. }, Some(rate)) => format!(", {} Mbit/s", rate / 1e6),
        (_, None) => ", closed loop".to_owned(),
        (_, Some(rate)) => format!(", open loop at {rate}/s"),
    };
    let connections = counted(spec.connections, "connection");
    let (name, to) = (spec.pattern.name(), spec.to);
    format!("{name} to {to}: {connections}, {}{pace}", counted(spec.threads.min(spec.connections), "thread"))
}

/// The table: a row a size.
pub fn summary(spec: &Spec, measures: &[Measure], runs: &[Run]) -> String {
    let value = |name: &str, size: u64, places: usize| {
        let measure = measures.iter().find(|measure| measure.name == name);
        let mean = measure.and_then(|measure| mean(&samples(measure, runs, size)));
        mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.places$}"))
    };
    let width = |size: u64| samples(&measures[0], runs, size);
    let seconds = |size: u64| {
        let times: Vec<f64> = runs.iter().filter(|run| run.size == size).map(|run| run.outcome.seconds).collect();
        format!("{:.2}", mean(&times).unwrap_or(f64::NAN))
    };
    let sizes = sizes(runs);
    match &spec.pattern {
        Pattern::Stream | Pattern::Maerts => {
            let head = ["Elapsed s", "Throughput Mbit/s", "Repeats", "95%"];
            let row = |size: &u64| {
                let samples = width(*size);
                [seconds(*size), value("throughput", *size, 2), samples.len().to_string(), spread(&samples)]
            };
            table(head, [true; 4], sizes.iter().map(row).collect())
        }
        Pattern::Udp { .. } => {
            let head = [
                "Datagram B",
                "Elapsed s",
                "Sent/s",
                "Sent Mbit/s",
                "Came Mbit/s",
                "Lost %",
                "Reordered",
                "Repeats",
                "95%",
            ];
            let row = |size: &u64| {
                let samples = width(*size);
                let (sent, offered) = (value("datagrams_per_second", *size, 0), value("offered", *size, 2));
                let (lost, reordered) = (value("loss", *size, 3), value("reordered", *size, 0));
                let repeats = samples.len().to_string();
                let came = value("throughput", *size, 2);
                [size.to_string(), seconds(*size), sent, offered, came, lost, reordered, repeats, spread(&samples)]
            };
            table(head, [true; 9], sizes.iter().map(row).collect())
        }
        _ => {
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
            let row = |size: &u64| {
                let request = match &spec.pattern {
                    Pattern::Crr(sizes) | Pattern::Rr(sizes) => sizes.request.to_string(),
                    _ => "-".to_owned(),
                };
                // What a URL asks for has a size of its own.
                let response = match &spec.pattern {
                    Pattern::Http { path, .. } if !path.starts_with("/?s=") => "-".to_owned(),
                    _ => size.to_string(),
                };
                let samples = width(*size);
                let latency = |name| value(name, *size, 1);
                [
                    request,
                    response,
                    seconds(*size),
                    value(measures[0].name, *size, 2),
                    value("throughput", *size, 2),
                    latency("latency_p50"),
                    latency("latency_p90"),
                    latency("latency_p99"),
                    latency("latency_max"),
                    latency("cpu_per_request"),
                    value("failures", *size, 0),
                    samples.len().to_string(),
                    spread(&samples),
                ]
            };
            table(head, [true; 13], sizes.iter().map(row).collect())
        }
    }
}
