//! The samples of a case's repeats.

use std::collections::BTreeMap;

use fairlane_report::{Metric, ResultFile, Series};

/// How a metric is computed from its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The mean of one sample per repeat, with Student's interval.
    OfRepeats,
    /// The mean of many samples, with a bootstrap interval.
    Mean,
    /// The median of many samples, with a bootstrap interval.
    Median,
    /// A number computed from all repeats.
    Computed,
}

/// The samples of a case.
#[derive(Clone, Debug, Default)]
pub struct Record {
    metrics: BTreeMap<String, (Statistic, String, Vec<f64>)>,
    /// Raw samples, by name.
    series: Vec<Series>,
    /// Notes in words, by name: one per repeat, or one for all of them.
    words: BTreeMap<String, Vec<String>>,
    /// The number of repeats so far.
    pub repeats: usize,
}

impl Record {
    /// Adds samples to a metric.
    pub fn add(&mut self, name: &str, statistic: Statistic, unit: &str, samples: impl IntoIterator<Item = f64>) {
        let entry = || (statistic, unit.to_owned(), Vec::new());
        self.metrics.entry(name.to_owned()).or_insert_with(entry).2.extend(samples);
    }

    /// Sets a metric computed from all repeats so far.
    pub fn set(&mut self, name: &str, unit: &str, value: f64) {
        self.metrics.insert(name.to_owned(), (Statistic::Computed, unit.to_owned(), vec![value]));
    }

    /// The samples of a metric; empty if it is unknown.
    pub fn samples(&self, name: &str) -> &[f64] {
        self.metrics.get(name).map_or(&[], |(_, _, samples)| samples)
    }

    /// Adds raw samples, to the series of that name if there is one. A series without a group belongs to the case's group.
    pub fn series(&mut self, samples: Series) {
        match self.series.iter_mut().find(|series| series.name == samples.name) {
            Some(series) => series.points.extend(samples.points),
            None => self.series.push(samples),
        }
    }

    /// Adds a note in words on a repeat, or on all of them.
    pub fn note(&mut self, name: &str, words: String) {
        self.words.entry(name.to_owned()).or_default().push(words);
    }

    /// Notes in words, by name: one per repeat, or one for all of them.
    pub fn notes(&self) -> &BTreeMap<String, Vec<String>> {
        &self.words
    }

    /// The raw samples of a series, each `[x, value]`; empty if it is unknown.
    pub fn points(&self, name: &str) -> &[[f64; 2]] {
        self.series.iter().find(|series| series.name == name).map_or(&[], |series| &series.points)
    }

    /// The measured values of a series, in order.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.series.iter().find(|series| series.name == name).map(Series::values).unwrap_or_default()
    }

    /// Adds everything to an experiment's result, for a case of this name and prefix.
    pub(super) fn enter(&self, result: &mut ResultFile, case: &str, prefix: &str) {
        for (name, (statistic, unit, samples)) in &self.metrics {
            let metric = match statistic {
                Statistic::OfRepeats => Metric::mean_student(samples, unit),
                Statistic::Mean => Metric::mean(samples, unit),
                Statistic::Median => Metric::median(samples, unit),
                Statistic::Computed => Metric::given(samples.first().copied().unwrap_or(f64::NAN), unit),
            };
            result.metrics.insert(format!("{prefix}{name}"), metric);
        }
        for series in &self.series {
            let mut series = series.clone();
            series.group = series.group.or_else(|| (!case.is_empty()).then(|| case.to_owned()));
            series.name = format!("{prefix}{}", series.name);
            result.series(series);
        }
    }
}
