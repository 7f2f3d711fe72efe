//! How often a case is repeated: a fixed number of times, or until a mean's confidence interval is narrow enough.

use std::collections::BTreeMap;

use fairlane_report::stats;

use super::record::Record;

/// The fewest repeats that give a useful interval.
pub(super) const LEAST: usize = 3;

/// How often a case is repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Repeats {
    /// A fixed number of times.
    Count(usize),
    /// Until the 95% interval of a metric is narrow enough.
    Until {
        /// The metric, without its case's name.
        metric: String,
        /// The largest accepted half-width, as a fraction of the mean.
        within: f64,
        /// The fewest repeats, 3 or more: fewer samples give no useful interval.
        least: usize,
        /// The most repeats.
        most: usize,
    },
}

/// What to do after a repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// Repeat the case.
    Again,
    /// Stop: the number or the width is reached.
    Done,
    /// Stop: the limit is reached and the interval is still too wide. Its half-width as a fraction of the mean.
    TooWide(f64),
}

impl Repeats {
    /// The most repeats.
    pub fn most(&self) -> usize {
        match self {
            Repeats::Count(count) => *count,
            Repeats::Until { most, .. } => *most,
        }
    }

    /// What to do after `done` repeats with these samples.
    pub(super) fn next(&self, done: usize, record: &Record) -> Next {
        match self {
            Repeats::Count(count) if done < *count => Next::Again,
            Repeats::Count(_) => Next::Done,
            Repeats::Until { least, .. } if done < *least => Next::Again,
            Repeats::Until { metric, within, most, .. } => match stats::half_width(record.samples(metric)) {
                Some(width) if width <= *within => Next::Done,
                _ if done < *most => Next::Again,
                width => Next::TooWide(width.unwrap_or(f64::INFINITY)),
            },
        }
    }
}

/// Warnings about cases whose interval stayed too wide.
pub(super) fn warnings(repeats: &Repeats, wide: &BTreeMap<String, f64>) -> Vec<String> {
    let Repeats::Until { metric, within, most, .. } = repeats else { return Vec::new() };
    let warning = |(case, width): (&String, &f64)| {
        format!(
            "NOT CONVERGED: after {most} repeats the 95% interval of {case}{metric} is still {:.1}% either side of the \
             mean; {:.1}% was wanted",
            width * 100.0,
            within * 100.0
        )
    };
    wide.iter().map(warning).collect()
}
