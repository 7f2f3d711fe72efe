//! A simulated experiment beside the lab's results of it.

use anyhow::ensure;
use fairlane_report::{ResultFile, number, stats};
use std::fmt::Write;
use std::path::PathBuf;

/// Metrics that are not compared: how far repeats or parts of a run are apart, which is nearly nothing on both sides, and what only a
/// machine's counters tell.
const NOT_COMPARED: [&str; 12] = [
    "spread",
    "apart",
    "off",
    "jain",
    "starved",
    "dominated",
    "lost",
    "lost_in_host",
    "boot",
    "total_time",
    "drop",
    "disk",
];

/// A table in Markdown: each metric as the lab measured it (the median of its results), as it is simulated, and the error. What is
/// nothing on both sides has no error.
///
/// # Errors
/// A result cannot be read, or is about another experiment.
pub(super) fn table(simulated: &ResultFile, files: &[PathBuf]) -> anyhow::Result<String> {
    let mut results = Vec::new();
    for file in files {
        let result = ResultFile::read(file)?;
        ensure!(
            result.experiment == simulated.experiment,
            "{} is about {}, not {}",
            file.display(),
            result.experiment,
            simulated.experiment
        );
        results.push(result);
    }
    let mut text = "| metric | lab | simulator | error |\n|---|---|---|---|\n".to_owned();
    for (name, metric) in &simulated.metrics {
        let measured = results.iter().filter_map(|result| Some(result.metrics.get(name)?.value));
        let measured: Vec<f64> = measured.filter(|value| value.is_finite()).collect();
        let last = name.rsplit('/').next().unwrap_or(name);
        let Some(lab) = stats::median(&measured).filter(|_| !NOT_COMPARED.contains(&last)) else { continue };
        if lab == 0.0 && metric.value == 0.0 {
            continue;
        }
        let error = 100.0 * (metric.value / lab - 1.0);
        let unit = if metric.unit.is_empty() { String::new() } else { format!(", {}", metric.unit) };
        let (lab, simulated) = (number(lab), number(metric.value));
        let _ = writeln!(text, "| {name}{unit} | {lab} | {simulated} | {error:+.1}% |");
    }
    Ok(text)
}
