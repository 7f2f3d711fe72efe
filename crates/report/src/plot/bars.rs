//! Grouped bars: at each x the median of each series' values, with its 95% interval.

use maud::{Markup, html};

use super::axis;
use super::legend::width;
use super::view::{Entry, Ranges, View, named_places, px};
use crate::label::{number, shorten};
use crate::result::Figure;
use crate::stats;

/// The widest bar, in pixels.
const WIDEST: f64 = 72.0;

/// A place along x: its name, and the bar of each series.
pub(super) struct Place {
    name: String,
    heights: Vec<Option<Height>>,
}

struct Height {
    median: f64,
    interval: Option<[f64; 2]>,
}

impl Height {
    fn of(entry: &Entry, x: f64) -> Option<Self> {
        let here = entry.series.points.iter().filter(|point| point[0] == x);
        let samples: Vec<f64> = here.map(|point| point[1]).collect();
        Some(Self { median: stats::median(&samples)?, interval: stats::bootstrap(&samples, stats::median) })
    }
}

/// The places along x, in ascending order.
pub(super) fn places(figure: &Figure, entries: &[Entry]) -> Vec<Place> {
    let heights = |x| entries.iter().map(|entry| Height::of(entry, x)).collect();
    named_places(figure, entries).into_iter().map(|(x, name)| Place { name, heights: heights(x) }).collect()
}

/// The vertical range includes zero, as bars start there. Horizontally each place is one unit wide.
pub(super) fn ranges(places: &[Place]) -> Ranges {
    let heights = places.iter().flat_map(|place| place.heights.iter().flatten());
    let values = heights.flat_map(|height| [height.median].into_iter().chain(height.interval.into_iter().flatten()));
    (0.0..=places.len().max(1) as f64, axis::range(values, true))
}

/// The names below the bars, cut to the available width.
pub(super) fn names(view: &View, places: &[Place]) -> Markup {
    let room = (view.right - view.left) / places.len().max(1) as f64;
    html! {
        @for (index, Place { name, .. }) in places.iter().enumerate() {
            text.tick x=(px(view.x.px(index as f64 + 0.5))) y=(px(view.bottom + 19.0)) text-anchor="middle" {
                @if width(name) > room { title { (name) } }
                (shorten(name, (room / 7.4).max(1.0) as usize))
            }
        }
    }
}

pub(super) fn draw(view: &View, places: &[Place], entries: &[Entry]) -> Markup {
    let slot = (view.right - view.left) / places.len().max(1) as f64;
    let bars = entries.iter().filter(|entry| !entry.expected()).count();
    let thick = (slot * 0.72 / bars.max(1) as f64).min(WIDEST);
    let group = thick * bars as f64;
    html! {
        @for (index, place) in places.iter().enumerate() {
            @let middle = view.x.px(index as f64 + 0.5);
            @let drawn = || entries.iter().zip(&place.heights);
            @for (nth, (entry, height)) in drawn().filter(|(entry, _)| !entry.expected()).enumerate() {
                @if let Some(height) = height {
                    g.(entry.class()) {
                        (bar(view, height, middle - group / 2.0 + thick * nth as f64, thick, &entry.tip(height.median, &place.name)))
                    }
                }
            }
            @for (entry, height) in drawn().filter(|(entry, _)| entry.expected()) {
                @if let Some(height) = height {
                    @let half = (group / 2.0 + 8.0).min(slot / 2.0);
                    g.(entry.class()) {
                        path.line d=(format!("M{} {}h{}", px(middle - half), px(view.y.px(height.median)), px(2.0 * half))) {
                            title { (entry.tip(height.median, &place.name)) }
                        }
                    }
                }
            }
        }
    }
}

/// A bar from zero with its interval, and its number if there is room.
fn bar(view: &View, height: &Height, left: f64, thick: f64, tip: &str) -> Markup {
    let (y, zero, middle) = (view.y.px(height.median), view.y.px(0.0), left + thick / 2.0);
    let whisker = height.interval.map(|[low, high]| (view.y.px(low), view.y.px(high)));
    let top = whisker.map_or(y, |(_, high)| high.min(y)) - 6.0;
    let text = number(height.median);
    html! {
        rect.bar x=(px(left + thick * 0.04)) width=(px(thick * 0.92)) y=(px(y.min(zero))) height=(px((y - zero).abs())) rx="2" {
            title { (tip) }
        }
        @if let Some((low, high)) = whisker {
            @let half = (thick / 5.0).min(6.0);
            @let cap = |y: f64| format!("M{} {}h{}", px(middle - half), px(y), px(2.0 * half));
            @let path = format!("M{} {}V{}{}{}", px(middle), px(low), px(high), cap(low), cap(high));
            // A halo separates the whisker from a bar of a similar colour.
            path.halo d=(path) {}
            path.whisker d=(path) {}
        }
        @if width(&text) <= thick + 4.0 && top >= view.top - 10.0 {
            text.value x=(px(middle)) y=(px(top)) text-anchor="middle" { (text) }
        }
    }
}
