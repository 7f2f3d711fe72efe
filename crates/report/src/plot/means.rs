//! Lines of repeats: at each x the mean of the values, in a band that is its 95% interval.

use maud::{Markup, html};

use super::lines;
use super::view::{Entry, Ranges, View, px};
use crate::result::Series;
use crate::stats;

/// A series' means, and their band.
pub(super) struct Summary {
    means: Series,
    /// `[x, low, high]` for each x with several values.
    band: Vec<[f64; 3]>,
}

/// The summary of each series.
pub(super) fn summaries(entries: &[Entry]) -> Vec<Summary> {
    entries.iter().map(|entry| summary(entry.series)).collect()
}

fn summary(series: &Series) -> Summary {
    let mut points = series.points.clone();
    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let mut means = Series { points: Vec::new(), ..series.clone() };
    let mut band = Vec::new();
    for same in points.chunk_by(|a, b| a[0] == b[0]) {
        let (x, values) = (same[0][0], same.iter().map(|point| point[1]).collect::<Vec<f64>>());
        means.points.push([x, stats::mean(&values).unwrap_or(f64::NAN)]);
        band.extend(stats::student(&values).map(|[low, high]| [x, low, high]));
    }
    Summary { means, band }
}

/// The entries with their means in place of the samples.
pub(super) fn entries<'a>(entries: &[Entry], summaries: &'a [Summary]) -> Vec<Entry<'a>> {
    let mean = |(entry, summary): (&Entry, &'a Summary)| Entry {
        series: &summary.means,
        label: entry.label.clone(),
        index: entry.index,
    };
    entries.iter().zip(summaries).map(mean).collect()
}

/// The vertical range includes zero and the bands.
pub(super) fn ranges(means: &[Entry], summaries: &[Summary]) -> Ranges {
    let (x, y) = lines::ranges(means);
    let bands = summaries.iter().flat_map(|summary| &summary.band).flat_map(|[_, low, high]| [*low, *high]);
    (x, super::axis::range(bands.chain([*y.start(), *y.end()]), true))
}

pub(super) fn draw(view: &View, means: &[Entry], summaries: &[Summary], at_ends: bool) -> Markup {
    html! {
        @for (entry, summary) in means.iter().zip(summaries) {
            @if summary.band.len() > 1 {
                g.(entry.class()) { path.band d=(outline(view, &summary.band)) {} }
            }
        }
        (lines::draw(view, means, at_ends))
    }
}

/// The outline of a band: the upper edge from left to right, then the lower one back.
fn outline(view: &View, band: &[[f64; 3]]) -> String {
    let upper = band.iter().map(|[x, _, high]| (x, high));
    let lower = band.iter().rev().map(|[x, low, _]| (x, low));
    let corner = |(x, y): (&f64, &f64)| format!("{} {}", px(view.x.px(*x)), px(view.y.px(*y)));
    format!("M{}z", upper.chain(lower).map(corner).collect::<Vec<_>>().join("L"))
}
