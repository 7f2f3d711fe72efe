//! Samples as points.

use std::collections::HashSet;

use maud::{Markup, html};

use super::axis;
use super::legend::marker;
use super::view::{Entry, Ranges, View};
use crate::label::{clean, quantity};

/// The least distance of two points of a series, in pixels; a later one that is closer would hide the first.
const APART: f64 = 3.0;

pub(super) fn ranges(entries: &[Entry]) -> Ranges {
    let points = || entries.iter().flat_map(|entry| &entry.series.points);
    (axis::range_across(points().map(|point| point[0])), axis::range(points().map(|point| point[1]), true))
}

pub(super) fn draw(view: &View, entries: &[Entry]) -> Markup {
    html! {
        @for entry in entries {
            @let mut taken = HashSet::new();
            g.(entry.class()) {
                @for [x, y] in entry.series.points.iter().filter(|point| point.iter().all(|value| value.is_finite())) {
                    @let (at_x, at_y) = (view.x.px(*x), view.y.px(*y));
                    @if taken.insert(((at_x / APART) as i64, (at_y / APART) as i64)) {
                        (marker(entry, at_x, at_y, &entry.tip(*y, &quantity(*x, &clean(&entry.series.x.unit)))))
                    }
                }
            }
        }
    }
}
