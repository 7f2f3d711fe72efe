//! A table of cells, coloured by the mean of the values at their place: a row a series, a column an x.

use maud::{Markup, html};

use super::legend::width;
use super::view::{Entry, px};
use crate::label::{clean, number, quantity, shorten};
use crate::result::Figure;
use crate::stats;

/// Pixels above the cells, and below them.
const MARGINS: (f64, f64) = (34.0, 46.0);

/// The faintest cell's opacity, so that it is not taken for one without a value.
const FAINTEST: f64 = 0.08;

pub(super) fn draw(
    figure: &Figure,
    entries: &[Entry],
    (x_title, title): &(String, String),
    (wide, high): (f64, f64),
) -> Markup {
    let mut xs: Vec<f64> = entries.iter().flat_map(|entry| &entry.series.points).map(|point| point[0]).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let unit = entries.first().map_or(String::new(), |entry| clean(&entry.series.x.unit));
    let name = |x: f64| {
        let named = if x >= 0.0 { figure.categories.get(x as usize) } else { None };
        named.map_or_else(|| quantity(x, &unit), |name| clean(name))
    };
    let mean = |entry: &Entry, x: f64| {
        let here = entry.series.points.iter().filter(|point| point[0] == x).map(|point| point[1]);
        stats::mean(&here.collect::<Vec<_>>())
    };
    let rows: Vec<(&Entry, Vec<Option<f64>>)> =
        entries.iter().map(|entry| (entry, xs.iter().map(|x| mean(entry, *x)).collect())).collect();
    let means = || rows.iter().flat_map(|(_, means)| means.iter().copied().flatten());
    let (low, high_mean) = (means().fold(f64::INFINITY, f64::min), means().fold(f64::NEG_INFINITY, f64::max));
    let span = if high_mean > low { high_mean - low } else { 1.0 };
    let longest = entries.iter().map(|entry| width(&shorten(&entry.label, 22))).fold(0.0, f64::max);
    let (left, top, bottom) = (longest + 12.0, MARGINS.0, high - MARGINS.1);
    let across = (wide - 18.0 - left) / xs.len().max(1) as f64;
    let down = (bottom - top) / rows.len().max(1) as f64;
    let legend = if means().next().is_none() {
        format!("{title}: nothing was measured")
    } else {
        format!("{title}: {} (faint) to {} (full)", number(low), number(high_mean))
    };
    html! {
        text.name x="0" y="12" { (shorten(&legend, (wide / 7.5) as usize)) }
        g.data {
            @for (row, (entry, means)) in rows.iter().enumerate() {
                // The first row is the lowest, as on an axis.
                @let y = bottom - down * (row + 1) as f64;
                text.tick x=(px(left - 8.0)) y=(px(y + down / 2.0)) dy="0.35em" text-anchor="end" { (shorten(&entry.label, 22)) }
                @for (column, (mean, x)) in means.iter().zip(&xs).enumerate() {
                    @if let Some(mean) = mean {
                        @let text = number(*mean);
                        @let (x_px, part) = (left + across * column as f64, (mean - low) / span);
                        g.c0 {
                            rect.bar x=(px(x_px + 0.5)) y=(px(y + 0.5)) width=(px((across - 1.0).max(0.5))) height=(px((down - 1.0).max(0.5)))
                                opacity=(format!("{:.3}", FAINTEST + (1.0 - FAINTEST) * part)) {
                                title { (entry.tip(*mean, &name(*x))) }
                            }
                        }
                        @if width(&text) <= across - 4.0 && down >= 16.0 {
                            text.value x=(px(x_px + across / 2.0)) y=(px(y + down / 2.0)) dy="0.35em" text-anchor="middle" { (text) }
                        }
                    }
                }
            }
        }
        // As many names as there is room for.
        @let every = (48.0 / across).ceil().max(1.0) as usize;
        @for (column, x) in xs.iter().enumerate().step_by(every) {
            text.tick x=(px(left + across * (column as f64 + 0.5))) y=(px(bottom + 19.0)) text-anchor="middle" {
                (shorten(&name(*x), (across * every as f64 / 7.4).max(1.0) as usize))
            }
        }
        text.name x=(px((left + wide - 18.0) / 2.0)) y=(px(high - 6.0)) text-anchor="middle" {
            (shorten(x_title, (wide / 8.0) as usize))
        }
    }
}
