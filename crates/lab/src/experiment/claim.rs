//! Claims as data: a sentence, the metrics it is about, and the bounds within which it holds.

use fairlane_report::{About, Bounds, Claim, Metric, ResultFile, Verdict, bracketed, number, quantity};
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
    /// What of a source's claim the source does not say and the file's author chose, such as the bound, in words.
    #[serde(default)]
    pub ours: Option<String>,
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
        if self.about == About::Fairlane && self.ours.is_some() {
            faults.push(("ours", "ours is for claims of a source: a claim about Fairlane is ours".to_owned()));
        }
        let bounds = [("at_least", self.at_least), ("at_most", self.at_most)];
        for (key, _) in bounds.into_iter().filter(|(_, bound)| bound.is_some_and(|bound| !bound.is_finite())) {
            faults.push((key, format!("{key} must be a finite number")));
        }
        faults
    }

    /// Judges the claim by a result: by the interval of each metric, or of its ratio, where there is one.
    pub fn judge(&self, source: &str, result: &ResultFile) -> Claim {
        let missing = Metric::given(f64::NAN, "");
        let metric = |name: &String| result.metrics.get(name).unwrap_or(&missing);
        let base = self.relative_to.as_ref().map(|name| (name, metric(name)));
        let measured = |name: &String| {
            let own = metric(name);
            let words = format!("{name} {}{}", quantity(own.value, &own.unit), bracketed(own.ci95));
            match base {
                Some((other, base)) => {
                    let (times, ends) = own.ratio_to(base);
                    let base = quantity(base.value, &base.unit);
                    let words = format!("{words}, {}{} times {other} {base}", number(times), bracketed(ends));
                    (self.bounds().judge(times, ends), words)
                }
                None => (self.bounds().judge(own.value, own.ci95), words),
            }
        };
        let (verdicts, words): (Vec<Verdict>, Vec<String>) = self.metrics.iter().map(measured).unzip();
        let unit = if base.is_some() { "times" } else { self.metrics.first().map_or("", |name| &metric(name).unit) };
        Claim {
            about: self.about,
            source: source.to_owned(),
            text: self.text.clone(),
            expected: self.expected(unit),
            measured: words.join("; "),
            ours: self.ours.clone(),
            verdict: Verdict::of_all(verdicts),
            figure: self.shown_in.clone().filter(|title| result.figures.iter().any(|figure| figure.title == *title)),
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds { at_least: self.at_least, at_most: self.at_most }
    }

    /// The bounds in words.
    fn expected(&self, unit: &str) -> String {
        let bounds = self.bounds().words(unit);
        match &self.relative_to {
            Some(other) => format!("{bounds} {other}"),
            None => bounds,
        }
    }
}
