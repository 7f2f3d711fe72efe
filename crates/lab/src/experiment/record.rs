//! What the repeats of a case measured.

use std::collections::BTreeMap;

use fairlane_report::{Metric, ResultFile, Series};

/// How a metric follows from its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The mean of a sample a repeat, with Student's interval.
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
    /// What was said in words, by name: one a repeat, or one of all.
    words: BTreeMap<String, Vec<String>>,
    /// Repeats whose samples these are.
    pub repeats: usize,
}

impl Record {
    /// Adds samples to a metric.
    pub fn add(&mut self, name: &str, statistic: Statistic, unit: &str, samples: impl IntoIterator<Item = f64>) {
        let entry = || (statistic, unit.to_owned(), Vec::new());
        self.metrics.entry(name.to_owned()).or_insert_with(entry).2.extend(samples);
    }

    /// Sets what was computed from all repeats so far.
    pub fn set(&mut self, name: &str, unit: &str, value: f64) {
        self.metrics.insert(name.to_owned(), (Statistic::Computed, unit.to_owned(), vec![value]));
    }

    /// The samples of a metric; none of one that is unknown.
    pub fn samples(&self, name: &str) -> &[f64] {
        self.metrics.get(name).map_or(&[], |(_, _, samples)| samples)
    }

    /// Adds raw samples: to the series of that name, where there is one. Without a group they are about the case.
    pub fn series(&mut self, samples: Series) {
        match self.series.iter_mut().find(|series| series.name == samples.name) {
            Some(series) => series.points.extend(samples.points),
            None => self.series.push(samples),
        }
    }

    /// Keeps what was said in a repeat, or of all of them.
    pub fn say(&mut self, name: &str, words: String) {
        self.words.entry(name.to_owned()).or_default().push(words);
    }

    /// What was said in words, by name: one a repeat, or one of all.
    pub fn words(&self) -> &BTreeMap<String, Vec<String>> {
        &self.words
    }

    /// The raw samples of a series, `[x, value]` each; none of one that is unknown.
    pub fn points(&self, name: &str) -> &[[f64; 2]] {
        self.series.iter().find(|series| series.name == name).map_or(&[], |series| &series.points)
    }

    /// The measured values of a series, in order.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.series.iter().find(|series| series.name == name).map(Series::values).unwrap_or_default()
    }

    /// Enters all into the result of an experiment with a case of this name and prefix.
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
