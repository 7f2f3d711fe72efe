//! Additional files: intervals as CSV, and histograms in the text format of HdrHistogram's plotter.

use super::run::{Row, Run, sizes};
use anyhow::Context;
use hdrhistogram::Histogram;
use std::fmt::Write;
use std::path::Path;

/// Writes `intervals.csv` and the histograms.
///
/// # Errors
/// A file cannot be written.
pub(super) fn write(dir: &Path, runs: &[Run]) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    write_file(&dir.join("intervals.csv"), &intervals(runs))?;
    for size in sizes(runs) {
        let of_size = || runs.iter().filter(|run| run.size == size).map(|run| &run.outcome.total);
        for (name, histograms) in [
            ("latency", of_size().map(|total| &total.latency).collect::<Vec<_>>()),
            ("connect", of_size().map(|total| &total.connect).collect()),
        ] {
            let Some((first, others)) = histograms.split_first() else { continue };
            let mut all = (*first).clone();
            others.iter().for_each(|other| all += *other);
            if !all.is_empty() {
                write_file(&dir.join(format!("{name}-{size}.hgrm")), &percentiles(&all))?;
            }
        }
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn intervals(runs: &[Run]) -> String {
    let mut text =
        "run,size,end_s,length_s,requests,connections,sent_bytes,received_bytes,failures,p50_us,p99_us,max_us\n"
            .to_owned();
    for (run, number) in runs.iter().zip(1..) {
        for row in &run.rows {
            let Row { t, seconds, requests, sent, received, connections, failures, latencies } = row;
            let [p50, p99, max] = latencies.map(|nanos| nanos as f64 / 1000.0);
            let _ = writeln!(
                text,
                "{number},{},{t:.3},{seconds:.3},{requests},{connections},{sent},{received},{failures},{p50},{p99},{max}",
                run.size
            );
        }
    }
    text
}

/// A histogram in the format of HdrHistogram's `outputPercentileDistribution`, in microseconds.
fn percentiles(histogram: &Histogram<u64>) -> String {
    let mut text = "       Value     Percentile TotalCount 1/(1-Percentile)\n\n".to_owned();
    for step in histogram.iter_quantiles(5) {
        let (value, quantile) = (step.value_iterated_to() as f64 / 1000.0, step.quantile());
        let below = (quantile * histogram.len() as f64).round();
        let _ = match 1.0 / (1.0 - quantile) {
            inverse if inverse.is_finite() => writeln!(text, "{value:12.3} {quantile:2.12} {below:10} {inverse:14.2}"),
            _ => writeln!(text, "{value:12.3} {quantile:2.12} {below:10}"),
        };
    }
    let micros = |value: f64| value / 1000.0;
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        micros(histogram.mean()),
        micros(histogram.stdev())
    );
    let _ =
        writeln!(text, "#[Max     = {:12.3}, Total count    = {:12}]", micros(histogram.max() as f64), histogram.len());
    text
}
