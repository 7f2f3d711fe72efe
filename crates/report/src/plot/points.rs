//! Samples as points.

use std::collections::HashSet;

use maud::{Markup, html};

use super::axis;
use super::legend::marker;
use super::view::{Entry, Ranges, View, px};
use crate::label::{clean, quantity};

/// The most samples of a series that have a marker and a tooltip each.
const MARKED: usize = 500;
/// If there are more, the least distance of those that are drawn, in pixels.
const APART: f64 = 6.0;

pub(super) fn ranges(entries: &[Entry]) -> Ranges {
    let points = || entries.iter().flat_map(|entry| &entry.series.points);
    (axis::range_across(points().map(|point| point[0])), axis::range(points().map(|point| point[1]), true))
}

pub(super) fn draw(view: &View, entries: &[Entry]) -> Markup {
    html! {
        @for entry in entries {
            g.(entry.class()) {
                @let samples = || entry.series.points.iter().filter(|sample| sample.iter().all(|value| value.is_finite()));
                @if samples().count() > MARKED {
                    path.dots d=(dots(view, samples())) { title { (entry.label) } }
                } @else {
                    @for [x, y] in samples() {
                        @let tip = entry.tip(*y, &quantity(*x, &clean(&entry.series.x.unit)));
                        (marker(entry, view.x.px(*x), view.y.px(*y), &tip))
                    }
                }
            }
        }
    }
}

/// A dot for each sample, unless another is close.
fn dots<'a>(view: &View, samples: impl Iterator<Item = &'a [f64; 2]>) -> String {
    let mut taken = HashSet::new();
    let places = samples.map(|[x, y]| (view.x.px(*x), view.y.px(*y)));
    let apart = places.filter(|(x, y)| taken.insert(((x / APART) as i64, (y / APART) as i64)));
    apart.map(|(x, y)| format!("M{} {}h0", px(x), px(y))).collect()
}
