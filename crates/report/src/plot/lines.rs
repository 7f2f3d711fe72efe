//! Values along x, one line per series.

use maud::{Markup, html};

use super::axis;
use super::legend::marker;
use super::view::{Entry, Ranges, View, px};
use crate::label::{clean, quantity, shorten};

/// The least distance between points with a marker each, in pixels.
const APART: f64 = 12.0;
/// The least distance between the names at line ends, in pixels.
const LINE: f64 = 16.0;

/// The vertical range includes zero.
pub(super) fn ranges(entries: &[Entry]) -> Ranges {
    let points = || entries.iter().flat_map(|entry| &entry.series.points);
    (axis::range_across(points().map(|point| point[0])), axis::range(points().map(|point| point[1]), true))
}

pub(super) fn draw(view: &View, entries: &[Entry], at_ends: bool) -> Markup {
    let mut ends = Vec::new();
    // Expected values are thin, dashed lines. They are drawn last, or equal measured values would hide them.
    let by_role =
        entries.iter().filter(|entry| !entry.expected()).chain(entries.iter().filter(|entry| entry.expected()));
    let drawn: Vec<_> = by_role.map(|entry| (entry, places(view, entry))).collect();
    for (entry, places) in drawn.iter().filter(|(entry, _)| entry.named()) {
        ends.extend(places.iter().rev().find(|place| place.y.is_some()).and_then(|place| Some((place.y?, *entry))));
    }
    html! {
        @for (entry, places) in &drawn {
            g.(entry.class()) {
                path.line d=(path(places)) {}
                @if !entry.expected() && places.len() as f64 * APART <= view.right - view.left {
                    @for place in places {
                        @if let Some(y) = place.y {
                            @let x = quantity(place.sample[0], &clean(&entry.series.x.unit));
                            (marker(entry, place.x, y, &entry.tip(place.sample[1], &x)))
                        }
                    }
                }
            }
        }
        @if at_ends { (names(view, ends)) }
    }
}

/// A sample's place in the figure; a sample that was not measured has no `y`.
struct Place {
    x: f64,
    y: Option<f64>,
    sample: [f64; 2],
}

/// The samples in order of x. If there are many, only the first, least, greatest and last of each pixel column are kept: they
/// cover the same pixels.
fn places(view: &View, entry: &Entry) -> Vec<Place> {
    let mut samples = entry.series.points.clone();
    samples.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let place = |sample: [f64; 2]| Place {
        x: view.x.px(sample[0]),
        y: sample[1].is_finite().then(|| view.y.px(sample[1])),
        sample,
    };
    if samples.len() as f64 <= 4.0 * (view.right - view.left) {
        return samples.into_iter().map(place).collect();
    }
    let columns = samples.chunk_by(|a, b| view.x.px(a[0]).floor() == view.x.px(b[0]).floor());
    let kept = columns.flat_map(|column| {
        let by_value = |a: &&[f64; 2], b: &&[f64; 2]| a[1].total_cmp(&b[1]);
        [column.first(), column.iter().min_by(by_value), column.iter().max_by(by_value), column.last()]
    });
    kept.flatten().copied().map(place).collect()
}

/// A line through the places, interrupted at values that were not measured. An isolated place is a point.
fn path(places: &[Place]) -> String {
    let mut path = String::new();
    for run in places.split(|place| place.y.is_none()).filter(|run| !run.is_empty()) {
        for (index, place) in run.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            path += &format!("{command}{} {}", px(place.x), px(place.y.unwrap_or_default()));
        }
        if run.len() == 1 {
            path += "h0";
        }
    }
    path
}

/// The names to the right of their lines' ends, moved apart if they would overlap.
fn names(view: &View, mut ends: Vec<(f64, &Entry)>) -> Markup {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = view.top;
    for (y, _) in &mut ends {
        *y = y.max(free);
        free = *y + LINE;
    }
    let mut free = view.bottom;
    for (y, _) in ends.iter_mut().rev() {
        *y = y.min(free);
        free = *y - LINE;
    }
    html! {
        @for (y, entry) in ends {
            text.end.(entry.class()) x=(px(view.right + 10.0)) y=(px(y)) dy="0.35em" {
                (shorten(&entry.label, 22))
            }
        }
    }
}
