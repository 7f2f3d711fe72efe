//! The contents of a result file: raw samples, figures, metrics, and claims judged by them.
//!
//! The schema and its version rule are in `docs/reference/result-file.md`. A number that was not measured is `NaN` in memory
//! and `null` in the file.

use std::collections::BTreeMap;

use jiff::{Timestamp, Unit};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{Host, Verdict, stats};

/// The schema this version writes, and the only one it reads.
pub const SCHEMA: &str = "fairlane-result/1";

/// One run of one experiment, with all data of its tables and plots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultFile {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The experiment's name.
    pub experiment: String,
    /// The published experiment it repeats; none for Fairlane's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The machine under measurement, such as `xen`; none if it is the host itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// The time of its start. RFC 3339, UTC.
    pub started: Timestamp,
    /// The host it ran on.
    pub host: Host,
    /// Its settings: everything needed to run it again.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// Caveats about the numbers, such as an interval that stayed too wide.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The raw samples.
    #[serde(default)]
    pub series: Vec<Series>,
    /// The figures, in the order of the page.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Single numbers with their uncertainty.
    #[serde(default)]
    pub metrics: BTreeMap<String, Metric>,
    /// The claims, and whether the data support them.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// A published experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The publication and the place in it, such as `002, figure 4`.
    pub name: String,
    /// The source's figure in words.
    pub figure: String,
}

/// The raw samples of one quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Unique in the file; figures refer to it.
    pub name: String,
    /// The subject of the series, such as a guest. Series of a group have the same colour in all figures, and the group's name in
    /// legends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether the values were measured or expected.
    #[serde(default)]
    pub role: Role,
    /// The unit of each sample's value; empty for a pure number.
    pub unit: String,
    /// The quantity of the samples' x.
    pub x: Axis,
    /// The samples, each `[x, value]`. The value may be `NaN`.
    #[serde(deserialize_with = "points_or_nan")]
    pub points: Vec<[f64; 2]>,
}

/// The origin of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Measured samples.
    #[default]
    Measured,
    /// Values given by the policy or a model; drawn dashed.
    Expected,
}

/// The quantity of an axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// The quantity, such as `time`.
    pub name: String,
    /// Its unit, such as `s`; empty for a pure number.
    pub unit: String,
}

/// A plot of some series of the file, without data of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unique in the file; claims refer to it.
    pub title: String,
    /// The caption: what a reader should notice.
    #[serde(default)]
    pub caption: String,
    /// How it is drawn.
    pub kind: Kind,
    /// The series it shows, by name. All have the same units.
    pub series: Vec<String>,
    /// The quantity on the horizontal axis, without its unit; the series' own if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub x_label: String,
    /// The quantity on the vertical axis, without its unit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub y_label: String,
    /// For bars and heat: the names of x = 0, x = 1 and so on. If empty, x is shown as a number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Lines across the plot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
}

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Values along x, one line per series.
    Lines,
    /// For each x the mean of the values, in a band that is its 95% interval (Student's); one line per series.
    Means,
    /// For each x the median of the values, with its 95% interval; one bar per series.
    Bars,
    /// The cumulative distribution of a series' values; x is not used.
    Cdf,
    /// Each sample as a point.
    Points,
    /// A table of cells, a row a series and a column an x, coloured by the mean of the values.
    Heat,
}

/// A labelled line across a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Its place.
    #[serde(flatten)]
    pub at: At,
    /// Its label.
    pub text: String,
}

/// The place of a mark, in the axis' unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// A vertical line.
    X(f64),
    /// A horizontal line.
    Y(f64),
}

/// A number, with its uncertainty and samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The estimate; `NaN` if nothing was measured.
    #[serde(deserialize_with = "or_nan")]
    pub value: f64,
    /// Its unit; empty for a pure number.
    pub unit: String,
    /// The number of finite samples.
    pub n: usize,
    /// The 95% confidence interval, if there are enough samples.
    pub ci95: Option<[f64; 2]>,
    /// How value and interval are computed from the samples.
    pub estimate: Estimate,
    /// The samples; empty if the value was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "samples_or_nan")]
    pub samples: Vec<f64>,
}

/// How a metric's value and interval are computed from its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimate {
    /// The value was given, not computed from samples.
    Given,
    /// [`stats::median`], with a bootstrap interval.
    Median,
    /// [`stats::mean`], with a bootstrap interval.
    Mean,
    /// [`stats::mean`], with Student's interval: for few samples that are close to normal.
    MeanStudent,
}

/// A claim made before the measurement, and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Whether it is about Fairlane or a source.
    pub about: About,
    /// Where the claim is made, such as `seed 002, figure 7`.
    pub source: String,
    /// The claim, as a sentence.
    pub text: String,
    /// The claimed value or bounds, with unit.
    pub expected: String,
    /// The measured value, with unit.
    pub measured: String,
    /// What of it the source does not say and was chosen here, such as a bound; none if all of it is the source's, or Fairlane's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<String>,
    /// Whether the data support the claim.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The title of the figure that shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<String>,
}

/// The subject of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// Fairlane: a claim that does not hold is a failure.
    Fairlane,
    /// A source's statement: a claim that does not hold is a finding.
    Source,
}

impl ResultFile {
    /// An empty result on this host, started now (rounded to a second).
    pub fn new(experiment: &str) -> Self {
        let now = Timestamp::now();
        Self {
            schema: SCHEMA.to_owned(),
            experiment: experiment.to_owned(),
            source: None,
            machine: None,
            started: now.round(Unit::Second).unwrap_or(now),
            host: Host::of_this_machine(),
            settings: BTreeMap::new(),
            warnings: Vec::new(),
            series: Vec::new(),
            figures: Vec::new(),
            metrics: BTreeMap::new(),
            claims: Vec::new(),
        }
    }

    /// Sets the published experiment that it repeats, with the source's figure in words.
    pub fn source(&mut self, name: &str, figure: &str) -> &mut Self {
        self.source = Some(Source { name: name.to_owned(), figure: figure.to_owned() });
        self
    }

    /// Sets the name of the machine under measurement.
    pub fn machine(&mut self, name: &str) -> &mut Self {
        self.machine = Some(name.to_owned());
        self
    }

    /// Adds a warning, which pages and summaries show before the numbers.
    pub fn warn(&mut self, text: impl Into<String>) -> &mut Self {
        self.warnings.push(text.into());
        self
    }

    /// Sets a setting; it replaces an earlier one of the same name.
    pub fn setting(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.settings.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a series.
    pub fn series(&mut self, series: Series) -> &mut Self {
        self.series.push(series);
        self
    }

    /// Adds a figure.
    pub fn figure(&mut self, figure: Figure) -> &mut Self {
        self.figures.push(figure);
        self
    }

    /// Adds the median of samples, with its interval. Samples that are not finite count as not measured.
    pub fn metric(&mut self, name: &str, samples: &[f64], unit: &str) -> &mut Self {
        self.metrics.insert(name.to_owned(), Metric::median(samples, unit));
        self
    }

    /// Adds a given number.
    pub fn value(&mut self, name: &str, value: f64, unit: &str) -> &mut Self {
        self.metrics.insert(name.to_owned(), Metric::given(value, unit));
        self
    }

    /// Adds a claim.
    pub fn claim(&mut self, claim: Claim) -> &mut Self {
        self.claims.push(claim);
        self
    }

    /// Whether every claim about Fairlane holds, which decides the exit status of a run.
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.verdict == Verdict::Holds || claim.about == About::Source)
    }

    /// The series of this name.
    pub fn find(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }
}

impl Series {
    /// An empty measured series.
    pub fn new(name: &str, unit: &str, x: Axis) -> Self {
        Self { name: name.to_owned(), group: None, role: Role::Measured, unit: unit.to_owned(), x, points: Vec::new() }
    }

    /// Sets its group.
    pub fn group(mut self, group: &str) -> Self {
        self.group = Some(group.to_owned());
        self
    }

    /// Marks its values as expected.
    pub fn expected(mut self) -> Self {
        self.role = Role::Expected;
        self
    }

    /// Adds a sample.
    pub fn point(mut self, x: f64, value: f64) -> Self {
        self.points.push([x, value]);
        self
    }

    /// Adds samples.
    pub fn points(mut self, points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        self.points.extend(points);
        self
    }

    /// Its name in legends.
    pub fn label(&self) -> &str {
        self.group.as_deref().unwrap_or(&self.name)
    }

    /// The finite values, in order.
    pub fn values(&self) -> Vec<f64> {
        self.points.iter().map(|point| point[1]).filter(|value| value.is_finite()).collect()
    }
}

impl Axis {
    /// An axis for a quantity in a unit.
    pub fn new(name: &str, unit: &str) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned() }
    }

    /// Seconds since the start.
    pub fn time() -> Self {
        Self::new("time", "s")
    }
}

impl Figure {
    fn new(title: &str, kind: Kind) -> Self {
        Self {
            title: title.to_owned(),
            caption: String::new(),
            kind,
            series: Vec::new(),
            x_label: String::new(),
            y_label: String::new(),
            categories: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// A figure of [`Kind::Lines`].
    pub fn lines(title: &str) -> Self {
        Self::new(title, Kind::Lines)
    }

    /// A figure of [`Kind::Means`].
    pub fn means(title: &str) -> Self {
        Self::new(title, Kind::Means)
    }

    /// A figure of [`Kind::Bars`].
    pub fn bars(title: &str) -> Self {
        Self::new(title, Kind::Bars)
    }

    /// A figure of [`Kind::Cdf`].
    pub fn cdf(title: &str) -> Self {
        Self::new(title, Kind::Cdf)
    }

    /// A figure of [`Kind::Points`].
    pub fn points(title: &str) -> Self {
        Self::new(title, Kind::Points)
    }

    /// A figure of [`Kind::Heat`].
    pub fn heat(title: &str) -> Self {
        Self::new(title, Kind::Heat)
    }

    /// Sets the caption.
    pub fn caption(mut self, caption: &str) -> Self {
        self.caption = caption.to_owned();
        self
    }

    /// Adds series.
    pub fn series<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.series.extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets the quantity of the horizontal axis.
    pub fn x(mut self, label: &str) -> Self {
        self.x_label = label.to_owned();
        self
    }

    /// Sets the quantity of the vertical axis.
    pub fn y(mut self, label: &str) -> Self {
        self.y_label = label.to_owned();
        self
    }

    /// Adds names of places of bars.
    pub fn categories<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.categories.extend(names.into_iter().map(Into::into));
        self
    }

    /// Adds a mark.
    pub fn mark(mut self, at: At, text: &str) -> Self {
        self.marks.push(Mark { at, text: text.to_owned() });
        self
    }
}

impl Metric {
    /// The median of samples. Samples that are not finite count as not measured.
    pub fn median(samples: &[f64], unit: &str) -> Self {
        let ci95 = stats::bootstrap(samples, stats::median);
        Self::of(samples, unit, Estimate::Median, stats::median(samples), ci95)
    }

    /// The mean of samples. Samples that are not finite count as not measured.
    pub fn mean(samples: &[f64], unit: &str) -> Self {
        let ci95 = stats::bootstrap(samples, stats::mean);
        Self::of(samples, unit, Estimate::Mean, stats::mean(samples), ci95)
    }

    /// The mean of few samples that are nearly normally distributed. Samples that are not finite count as not measured.
    pub fn mean_student(samples: &[f64], unit: &str) -> Self {
        Self::of(samples, unit, Estimate::MeanStudent, stats::mean(samples), stats::student(samples))
    }

    fn of(samples: &[f64], unit: &str, estimate: Estimate, value: Option<f64>, ci95: Option<[f64; 2]>) -> Self {
        Self {
            value: value.unwrap_or(f64::NAN),
            unit: unit.to_owned(),
            n: samples.iter().filter(|sample| sample.is_finite()).count(),
            ci95,
            estimate,
            samples: samples.to_vec(),
        }
    }

    /// A number computed from other metrics, and its interval from theirs. Ends that are not finite are no interval.
    pub fn derived(value: f64, ci95: Option<[f64; 2]>, unit: &str) -> Self {
        let ci95 = ci95.filter(|ends| ends.iter().all(|end| end.is_finite()));
        Self { ci95, ..Self::given(value, unit) }
    }

    /// A given number.
    pub fn given(value: f64, unit: &str) -> Self {
        Self {
            value,
            unit: unit.to_owned(),
            n: usize::from(value.is_finite()),
            ci95: None,
            estimate: Estimate::Given,
            samples: Vec::new(),
        }
    }
}

fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn samples_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let samples = Vec::<Option<f64>>::deserialize(from)?;
    Ok(samples.into_iter().map(|sample| sample.unwrap_or(f64::NAN)).collect())
}

fn points_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<[f64; 2]>, D::Error> {
    let points = Vec::<[Option<f64>; 2]>::deserialize(from)?;
    Ok(points.into_iter().map(|point| point.map(|number| number.unwrap_or(f64::NAN))).collect())
}
