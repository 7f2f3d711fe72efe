//! The measurements of the client's runs as a result file: one series over size per measure, with one sample per repeat.

use super::repeats::half_percent;
use super::run::{Row, Run, sizes};
use fairlane_load::traffic::Pattern;
use fairlane_report::{Axis, Figure, Metric, ResultFile, Series};

/// A quantity measured in each run.
pub(super) struct Measure {
    pub name: &'static str,
    pub unit: &'static str,
    pub value: fn(&Run) -> f64,
}

/// The measures of a pattern, the most important one first.
pub(super) fn measures(pattern: &Pattern, open: bool) -> Vec<Measure> {
    let measure = |name, unit, value| Measure { name, unit, value };
    let connects = matches!(pattern, Pattern::Crr(_) | Pattern::Http { keep_alive: false, .. });
    match pattern {
        Pattern::Stream => vec![measure("throughput", "Mbit/s", |run| megabits(run, run.outcome.total.sent))],
        Pattern::Maerts => vec![measure("throughput", "Mbit/s", received)],
        Pattern::Udp { .. } => vec![
            measure("throughput", "Mbit/s", |run| {
                run.outcome.arrived.map_or(f64::NAN, |arrived| megabits(run, arrived.bytes))
            }),
            measure("offered", "Mbit/s", |run| megabits(run, run.outcome.total.sent)),
            measure("datagrams_per_second", "1/s", requests),
            measure("loss", "%", lost),
            measure("reordered", "", |run| run.outcome.arrived.map_or(f64::NAN, |arrived| arrived.reordered as f64)),
        ],
        _ => {
            let mut all =
                vec![measure(if connects { "connections_per_second" } else { "requests_per_second" }, "1/s", requests)];
            all.extend([
                measure("throughput", "Mbit/s", received),
                measure("latency_mean", "us", |run| run.outcome.total.latency.mean() / 1000.0),
                measure("latency_p50", "us", |run| latency(run, 0.5)),
                measure("latency_p90", "us", |run| latency(run, 0.9)),
                measure("latency_p99", "us", |run| latency(run, 0.99)),
                measure("latency_p999", "us", |run| latency(run, 0.999)),
                measure("latency_max", "us", |run| latency(run, 1.0)),
                measure("cpu_per_request", "us", |run| run.outcome.processor * 1e6 / run.outcome.total.requests as f64),
                measure("failures", "", |run| run.outcome.total.failures.total() as f64),
            ]);
            if connects {
                all.push(measure("connect_p50", "us", |run| connect(run, 0.5)));
                all.push(measure("connect_p99", "us", |run| connect(run, 0.99)));
            }
            if open {
                all.push(measure("unanswered", "", |run| run.outcome.total.unanswered as f64));
            }
            all
        }
    }
}

fn requests(run: &Run) -> f64 {
    run.outcome.total.requests as f64 / run.outcome.seconds
}

fn received(run: &Run) -> f64 {
    megabits(run, run.outcome.total.received)
}

fn megabits(run: &Run, bytes: u64) -> f64 {
    bytes as f64 * 8.0 / run.outcome.seconds / 1e6
}

fn lost(run: &Run) -> f64 {
    let sent = run.outcome.total.requests as f64;
    run.outcome.arrived.map_or(f64::NAN, |arrived| (sent - arrived.datagrams as f64) / sent * 100.0)
}

fn latency(run: &Run, q: f64) -> f64 {
    quantile(&run.outcome.total.latency, q)
}

fn connect(run: &Run, q: f64) -> f64 {
    quantile(&run.outcome.total.connect, q)
}

/// A quantile of times, in microseconds; NaN without samples.
fn quantile(histogram: &hdrhistogram::Histogram<u64>, q: f64) -> f64 {
    if histogram.is_empty() { f64::NAN } else { histogram.value_at_quantile(q) as f64 / 1000.0 }
}

/// The samples of a measure for one size.
pub(super) fn samples(measure: &Measure, runs: &[Run], size: u64) -> Vec<f64> {
    runs.iter().filter(|run| run.size == size).map(measure.value).collect()
}

/// Adds series, metrics and figures of the runs.
pub(super) fn add(result: &mut ResultFile, pattern: &Pattern, measures: &[Measure], runs: &[Run]) {
    let sizes = sizes(runs);
    let axis = || Axis::new(size_name(pattern), "bytes");
    for measure in measures {
        let points = runs.iter().map(|run| [run.size as f64, (measure.value)(run)]);
        result.series(Series::new(measure.name, measure.unit, axis()).points(points));
        for size in &sizes {
            let name = if sizes.len() == 1 { measure.name.to_owned() } else { format!("{}/{size}", measure.name) };
            let metric = Metric::mean_student(&samples(measure, runs, *size), measure.unit);
            result.metrics.insert(name, metric);
        }
    }
    if sizes.len() > 1 {
        for measure in measures.iter().take(2) {
            let title = format!("{} by {}", words(measure.name), size_name(pattern));
            result.figure(Figure::means(&title).y(&words(measure.name)).series([measure.name]));
        }
    }
    add_last(result, runs);
}

/// Adds the last run over time, and its latency by quantile.
fn add_last(result: &mut ResultFile, runs: &[Run]) {
    let Some(run) = runs.last() else { return };
    let requests = run.outcome.total.requests > 0;
    let (unit, name) = if requests { ("1/s", "last run/requests") } else { ("Mbit/s", "last run/throughput") };
    let rate = |row: &Row| match requests {
        true => row.requests as f64 / row.seconds,
        false => (row.sent + row.received) as f64 * 8e-6 / row.seconds,
    };
    let points = run.rows.iter().filter(|row| row.seconds > 0.0).map(|row| [row.t, rate(row)]);
    result.series(Series::new(name, unit, Axis::time()).points(points));
    result.figure(Figure::lines("The last run over time").series([name]));
    let latency = &run.outcome.total.latency;
    if !latency.is_empty() {
        let name = "last run/latency";
        let points = (0..1000).map(|permille| {
            [f64::from(permille) / 10.0, latency.value_at_quantile(f64::from(permille) / 1000.0) as f64 / 1000.0]
        });
        result.series(Series::new(name, "us", Axis::new("requests", "%")).points(points));
        let figure =
            Figure::lines("Latency of the last run").caption("The percentage of requests that took at most this long.");
        result.figure(figure.y("latency").series([name]));
    }
}

/// What the size of a pattern refers to.
pub(super) fn size_name(pattern: &Pattern) -> &'static str {
    match pattern {
        Pattern::Http { .. } => "object size",
        Pattern::Udp { .. } => "datagram size",
        _ => "response size",
    }
}

fn words(name: &str) -> String {
    let text = name.replace("_per_second", " per second").replace('_', " ");
    text[..1].to_uppercase() + &text[1..]
}

/// Formats the spread of a measure's samples.
pub(super) fn spread(samples: &[f64]) -> String {
    half_percent(samples).map_or_else(|| "-".to_owned(), |half| format!("±{half:.1}%"))
}
