//! Claims as data: a sentence, the metrics it is about, and the bounds within which it holds.

use fairlane_report::{About, Claim, ResultFile, number, quantity};
use serde::Deserialize;

use crate::machine::Backend;

/// A claim to be judged by a measurement.
///
/// It holds if each metric, or its ratio to the metric `relative_to`, lies within the bounds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimPlan {
    /// The claim, as a sentence.
    pub text: String,
    /// The metrics it is about.
    pub metrics: Vec<String>,
    /// The metric they are divided by.
    #[serde(default)]
    pub relative_to: Option<String>,
    /// The lower bound.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// The upper bound.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// The title of the figure that shows it.
    #[serde(default)]
    pub shown_in: Option<String>,
    /// The backend it is about; any if not given.
    #[serde(default)]
    pub backend: Option<Backend>,
    /// Whether it is a claim of the source or about Fairlane.
    #[serde(default = "about_source")]
    pub about: About,
}

fn about_source() -> About {
    About::Source
}

impl ClaimPlan {
    /// What is wrong with it, given the names of the result's metrics: key and message.
    pub(super) fn faults(&self, known: &[String]) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if self.metrics.is_empty() {
            faults.push(("metrics", format!("metrics must name one or more of {}", known.join(", "))));
        }
        let named = self.metrics.iter().map(|name| ("metrics", name));
        for (key, name) in named.chain(self.relative_to.iter().map(|name| ("relative_to", name))) {
            if !known.contains(name) {
                faults.push((
                    key,
                    fairlane_policy::problem::unknown_name("metric", name, known.iter().map(String::as_str)),
                ));
            }
        }
        match (self.at_least, self.at_most) {
            (None, None) => faults.push(("text", "a claim needs at_least, at_most or both".to_owned())),
            (Some(least), Some(most)) if least > most => {
                faults.push(("at_least", format!("at_least must not be above at_most ({most}), not {least}")));
            }
            _ => {}
        }
        let bounds = [("at_least", self.at_least), ("at_most", self.at_most)];
        for (key, _) in bounds.into_iter().filter(|(_, bound)| bound.is_some_and(|bound| !bound.is_finite())) {
            faults.push((key, format!("{key} must be a finite number")));
        }
        faults
    }

    /// Judges the claim by a result. A claim about a metric that was not measured does not hold.
    pub fn judge(&self, source: &str, result: &ResultFile) -> Claim {
        let value = |name: &String| result.metrics.get(name).map_or(f64::NAN, |metric| metric.value);
        let unit = |name: &String| result.metrics.get(name).map_or("", |metric| &metric.unit);
        let base = self.relative_to.as_ref().map(value);
        let within = |judged: f64| {
            judged.is_finite()
                && self.at_least.is_none_or(|least| judged >= least)
                && self.at_most.is_none_or(|most| judged <= most)
        };
        let measured = |name: &String| {
            let own = quantity(value(name), unit(name));
            let interval = result.metrics.get(name).and_then(|metric| metric.ci95);
            let interval =
                interval.map_or(String::new(), |[low, high]| format!(" ({} to {})", number(low), number(high)));
            match (base, &self.relative_to) {
                (Some(base), Some(other)) => {
                    let times = value(name) / base;
                    let base = quantity(base, unit(other));
                    (within(times), format!("{name} {own}{interval}, {} times {other} {base}", number(times)))
                }
                _ => (within(value(name)), format!("{name} {own}{interval}")),
            }
        };
        let judged: Vec<(bool, String)> = self.metrics.iter().map(measured).collect();
        let unit = if base.is_some() { "times" } else { self.metrics.first().map_or("", unit) };
        let words: Vec<String> = judged.iter().map(|(_, words)| words.clone()).collect();
        Claim {
            about: self.about,
            source: source.to_owned(),
            text: self.text.clone(),
            expected: self.expected(unit),
            measured: words.join("; "),
            holds: !judged.is_empty() && judged.iter().all(|(holds, _)| *holds),
            figure: self.shown_in.clone().filter(|title| result.figures.iter().any(|figure| figure.title == *title)),
        }
    }

    /// The bounds in words.
    fn expected(&self, unit: &str) -> String {
        let bounds = match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{} to {}", number(least), quantity(most, unit)),
            (Some(least), None) => format!("at least {}", quantity(least, unit)),
            (None, Some(most)) => format!("at most {}", quantity(most, unit)),
            (None, None) => String::new(),
        };
        match &self.relative_to {
            Some(other) => format!("{bounds} {other}"),
            None => bounds,
        }
    }
}
