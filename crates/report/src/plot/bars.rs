//! Grouped bars: at each x the median of what each series has there, with its 95% interval.

use maud::{Markup, html};

use super::legend::width;
use super::{Entry, Ranges, View, axis, px};
use crate::label::{clean, number, shorten};
use crate::result::Figure;
use crate::stats;

/// The widest bar, in pixels.
const WIDEST: f64 = 72.0;

/// The places along x, in rising order.
pub(super) fn places(entries: &[Entry]) -> Vec<f64> {
    let mut places: Vec<f64> = entries.iter().flat_map(|entry| &entry.series.points).map(|point| point[0]).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places
}

/// What a series has at a place.
struct Height {
    median: f64,
    interval: Option<[f64; 2]>,
}

fn height(entry: &Entry, place: f64) -> Option<Height> {
    let here = entry.series.points.iter().filter(|point| point[0] == place);
    let samples: Vec<f64> = here.map(|point| point[1]).collect();
    Some(Height { median: stats::median(&samples)?, interval: stats::bootstrap(&samples, stats::median) })
}

/// Zero is in the vertical range: a bar's length is its amount. Across, each place has one unit.
pub(super) fn ranges(entries: &[Entry], places: &[f64]) -> Ranges {
    let heights = entries.iter().flat_map(|entry| places.iter().filter_map(|place| height(entry, *place)));
    let values = heights.flat_map(|height| [height.median].into_iter().chain(height.interval.into_iter().flatten()));
    (0.0..=places.len().max(1) as f64, axis::range(values, true))
}

/// The names under the bars, cut to the room they have.
pub(super) fn names(view: &View, figure: &Figure, places: &[f64], entries: &[Entry]) -> Markup {
    let room = (view.right - view.left) / places.len().max(1) as f64;
    let unit = entries.first().map_or("", |entry| entry.series.x.unit.as_str());
    html! {
        @for (index, place) in places.iter().enumerate() {
            @let name = name(figure, *place, unit);
            text.tick x=(px(view.x.px(index as f64 + 0.5))) y=(px(view.bottom + 19.0)) text-anchor="middle" {
                @if width(&name) > room { title { (name) } }
                (shorten(&name, (room / 7.4).max(1.0) as usize))
            }
        }
    }
}

fn name(figure: &Figure, place: f64, unit: &str) -> String {
    let named = if place >= 0.0 { figure.categories.get(place as usize) } else { None };
    named.map_or_else(|| crate::quantity(place, &clean(unit)), |name| clean(name))
}

pub(super) fn draw(view: &View, figure: &Figure, places: &[f64], entries: &[Entry]) -> Markup {
    let measured: Vec<_> = entries.iter().filter(|entry| !entry.expected()).collect();
    let slot = (view.right - view.left) / places.len().max(1) as f64;
    let thick = (slot * 0.72 / measured.len().max(1) as f64).min(WIDEST);
    let group = thick * measured.len() as f64;
    let zero = view.y.px(0.0);
    html! {
        @for (index, place) in places.iter().enumerate() {
            @let middle = view.x.px(index as f64 + 0.5);
            @for (nth, entry) in measured.iter().enumerate() {
                @if let Some(height) = height(entry, *place) {
                    @let left = middle - group / 2.0 + thick * nth as f64;
                    @let y = view.y.px(height.median);
                    @let highest = height.interval.map_or(y, |[_, high]| view.y.px(high)).min(y);
                    @let text = number(height.median);
                    g.(entry.class()) {
                        rect.bar x=(px(left + thick * 0.04)) width=(px(thick * 0.92)) rx="2"
                            y=(px(y.min(zero))) height=(px((y - zero).abs())) {
                            title { (entry.tip(height.median, &name(figure, *place, &entry.series.x.unit))) }
                        }
                        @if let Some([low, high]) = height.interval {
                            (whisker(left + thick / 2.0, view.y.px(low), view.y.px(high), (thick / 5.0).min(6.0)))
                        }
                        @if width(&text) <= thick + 4.0 && highest - 6.0 >= view.top - 10.0 {
                            text.value x=(px(left + thick / 2.0)) y=(px(highest - 6.0)) text-anchor="middle" { (text) }
                        }
                    }
                }
            }
            @for entry in entries.iter().filter(|entry| entry.expected()) {
                @if let Some(height) = height(entry, *place) {
                    @let half = (group / 2.0 + 8.0).min(slot / 2.0);
                    g.(entry.class()) {
                        path.line d=(format!("M{} {}h{}", px(middle - half), px(view.y.px(height.median)), px(2.0 * half))) {
                            title { (entry.tip(height.median, &name(figure, *place, &entry.series.x.unit))) }
                        }
                    }
                }
            }
        }
    }
}

fn whisker(x: f64, low: f64, high: f64, half: f64) -> Markup {
    let cap = |y: f64| format!("M{} {}h{}", px(x - half), px(y), px(2.0 * half));
    html! {
        path.whisker d=(format!("M{} {}V{}{}{}", px(x), px(low), px(high), cap(low), cap(high))) {}
    }
}
