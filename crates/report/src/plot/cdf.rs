//! Cumulative distributions: the share of a series' values up to each value.

use maud::{Markup, html};

use super::axis;
use super::view::{Entry, Ranges, View, px};

/// The most steps drawn per curve; more would fall on the same pixels.
const STEPS: usize = 480;

pub(super) fn ranges(entries: &[Entry]) -> Ranges {
    (axis::range_across(entries.iter().flat_map(|entry| entry.series.values())), 0.0..=1.0)
}

pub(super) fn draw(view: &View, entries: &[Entry]) -> Markup {
    html! {
        @for entry in entries {
            g.(entry.class()) {
                path.line d=(path(view, entry)) { title { (entry.label) } }
            }
        }
    }
}

fn path(view: &View, entry: &Entry) -> String {
    let mut values = entry.series.values();
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let Some(least) = values.first() else { return String::new() };
    let mut path = format!("M{} {}", px(view.x.px(*least)), px(view.y.px(0.0)));
    let steps = n.min(STEPS);
    for step in 1..=steps {
        let rank = n * step / steps;
        path += &format!("H{}V{}", px(view.x.px(values[rank - 1])), px(view.y.px(rank as f64 / n as f64)));
    }
    path + &format!("H{}", px(view.right))
}
