//! The quantities that two results have in common, and their ratios.

use super::Named;
use fairlane_report::{Axis, Metric, Role, Series, stats};

/// One quantity of two results, at one size.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pair {
    /// The label of the compared result.
    pub other: String,
    /// The quantity's name in both.
    pub name: String,
    pub unit: String,
    /// The size and its axis; none for a metric without size.
    pub at: Option<(f64, Axis)>,
    /// The means of the base's samples and of the other's.
    pub base: f64,
    pub value: f64,
    /// The other's mean divided by the base's.
    pub ratio: f64,
    /// The ratio's 95% interval, if both have repeats.
    pub interval: Option<[f64; 2]>,
}

impl Pair {
    /// Whether it is a rate, of which less is a loss.
    pub(super) fn is_rate(&self) -> bool {
        is_rate(&self.unit)
    }

    /// The loss, in percent of the base; negative for a gain.
    pub(super) fn loss(&self) -> f64 {
        stats::loss_percent(self.ratio)
    }

    /// The loss' 95% interval.
    pub(super) fn loss_interval(&self) -> Option<[f64; 2]> {
        self.interval.map(|[low, high]| [high, low].map(stats::loss_percent))
    }
}

/// Whether a unit is that of a rate.
pub(super) fn is_rate(unit: &str) -> bool {
    unit.ends_with("/s")
}

/// All quantities that both have: series over size first, then metrics that do not belong to such a series.
pub(super) fn pairs(base: &Named, other: &Named) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for series in series_over_size(base) {
        let Some(same) = other.result.find(&series.name).filter(|same| same.unit == series.unit && same.x == series.x)
        else {
            continue;
        };
        for x in sizes(series) {
            let at = Some((x, series.x.clone()));
            let [base, value] = [series, same].map(|series| Metric::mean_student(&values(series, x), &series.unit));
            pairs.extend(pair(other, &series.name, at, &base, &value));
        }
    }
    for (name, metric) in &base.result.metrics {
        let named = |series: &&Series| {
            name == &series.name || name.strip_prefix(&series.name).is_some_and(|rest| rest.starts_with('/'))
        };
        let same = other.result.metrics.get(name).filter(|same| same.unit == metric.unit);
        if let Some(same) = same.filter(|_| !series_over_size(base).any(|series| named(&series))) {
            let [base, value] = [metric, same].map(|metric| Metric::mean_student(&samples(metric), &metric.unit));
            pairs.extend(pair(other, name, None, &base, &value));
        }
    }
    pairs
}

/// None if the ratio is not a number.
fn pair(other: &Named, name: &str, at: Option<(f64, Axis)>, base: &Metric, value: &Metric) -> Option<Pair> {
    let (ratio, interval) = value.ratio_to(base);
    (ratio.is_finite() && base.value > 0.0).then(|| Pair {
        other: other.label.clone(),
        name: name.to_owned(),
        unit: base.unit.clone(),
        at,
        base: base.value,
        value: value.value,
        ratio,
        // Without repeats of both it would be too narrow.
        interval: interval.filter(|_| base.ci95.is_some() && value.ci95.is_some()),
    })
}

/// The measured series over size, not over time or share.
pub(super) fn series_over_size(named: &Named) -> impl Iterator<Item = &Series> {
    named.result.series.iter().filter(|series| series.role == Role::Measured && series.x.unit == "bytes")
}

/// The sizes of a series, in ascending order.
pub(super) fn sizes(series: &Series) -> Vec<f64> {
    let mut sizes: Vec<f64> = series.points.iter().map(|point| point[0]).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

fn values(series: &Series, x: f64) -> Vec<f64> {
    series.points.iter().filter(|point| point[0] == x).map(|point| point[1]).collect()
}

fn samples(metric: &Metric) -> Vec<f64> {
    if metric.samples.is_empty() { vec![metric.value] } else { metric.samples.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_report::ResultFile;

    fn named(label: &str, scale: f64) -> Named {
        let mut result = ResultFile::new("load-http");
        let axis = || Axis::new("object size", "bytes");
        let points = [[0.0, 104.0 * scale], [0.0, 105.0 * scale], [0.0, 106.0 * scale], [1024.0, 50.0 * scale]];
        result.series(Series::new("connections_per_second", "1/s", axis()).points(points));
        result.series(Series::new("course", "1/s", Axis::time()).point(1.0, 1.0));
        result.value("connections_per_second/0", 105.0 * scale, "1/s").value("boot", 2.0 * scale, "s");
        Named { label: label.to_owned(), result }
    }

    #[test]
    fn common_quantities_are_compared_once() {
        let pairs = pairs(&named("native", 1.0), &named("guest", 0.5));
        let found: Vec<_> =
            pairs.iter().map(|pair| (pair.name.as_str(), pair.at.as_ref().map(|at| at.0), pair.loss())).collect();
        let rate = "connections_per_second";
        assert_eq!(found, [(rate, Some(0.0), 50.0), (rate, Some(1024.0), 50.0), ("boot", None, 50.0)]);
        assert!(pairs[0].is_rate() && !pairs[2].is_rate());
        let [low, high] = pairs[0].loss_interval().unwrap();
        assert!(low <= 50.0 && 50.0 <= high && high - low < 5.0);
        assert_eq!(pairs[1].interval, None);
    }

    #[test]
    fn quantities_with_different_units_are_not_compared() {
        let (base, mut other) = (named("a", 1.0), named("b", 1.0));
        other.result.series[0].unit = "1/min".to_owned();
        other.result.metrics.clear();
        assert_eq!(pairs(&base, &other), []);
    }
}
