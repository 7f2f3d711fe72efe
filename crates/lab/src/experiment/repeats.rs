//! How often a case is repeated: so many times, or until a mean is known well enough.

use std::collections::BTreeMap;

use fairlane_report::stats;

use super::record::Record;

/// The fewest repeats whose spread says something.
pub(super) const LEAST: usize = 3;

/// How often a case is repeated.
#[derive(Clone, Debug, PartialEq)]
pub enum Repeats {
    /// So many times.
    Count(usize),
    /// Until the 95% interval of a metric is narrow enough.
    Until {
        /// The metric, without its case's name.
        metric: String,
        /// The half-width wanted, as a part of the mean.
        within: f64,
        /// At least so many times, 3 or more: fewer samples say too little of their own spread.
        least: usize,
        /// At most so many times.
        most: usize,
    },
}

/// What to do after a repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Next {
    /// Another one.
    Again,
    /// Enough.
    Done,
    /// The limit is reached and the interval is wider than wanted: its half-width as a part of the mean.
    TooWide(f64),
}

impl Repeats {
    /// The most repeats there can be.
    pub fn most(&self) -> usize {
        match self {
            Repeats::Count(count) => *count,
            Repeats::Until { most, .. } => *most,
        }
    }

    /// What to do after some repeats, given what they measured.
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

/// What is said of cases whose interval stayed too wide.
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
