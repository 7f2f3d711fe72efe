//! A table of cells, coloured by the mean of the values at their place: a row a series, a column an x.

use maud::{Markup, html};

use super::legend::width;
use super::view::{Entry, named_places, px};
use crate::label::{number, shorten};
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
    let columns = named_places(figure, entries);
    let mean = |entry: &Entry, x: f64| {
        let here = entry.series.points.iter().filter(|point| point[0] == x).map(|point| point[1]);
        stats::mean(&here.collect::<Vec<_>>())
    };
    let rows: Vec<(&Entry, Vec<Option<f64>>)> =
        entries.iter().map(|entry| (entry, columns.iter().map(|(x, _)| mean(entry, *x)).collect())).collect();
    let means = || rows.iter().flat_map(|(_, means)| means.iter().copied().flatten());
    let (low, high_mean) = (means().fold(f64::INFINITY, f64::min), means().fold(f64::NEG_INFINITY, f64::max));
    // Halves, as the distance of the largest numbers is none.
    let span = if high_mean > low { high_mean / 2.0 - low / 2.0 } else { 1.0 };
    let longest = entries.iter().map(|entry| width(&shorten(&entry.label, 22))).fold(0.0, f64::max);
    let (left, top, bottom) = (longest + 12.0, MARGINS.0, high - MARGINS.1);
    let across = (wide - 18.0 - left) / columns.len().max(1) as f64;
    let down = (bottom - top) / rows.len().max(1) as f64;
    let gap = if across.min(down) > 4.0 { 1.0 } else { 0.0 };
    let legend = if means().next().is_none() {
        format!("{title}: nothing was measured")
    } else {
        format!("{title}: {} (faint) to {} (full)", number(low), number(high_mean))
    };
    html! {
        text.name x="0" y="12" { (shorten(&legend, (wide / 7.5) as usize)) }
        @for y in [top, bottom] {
            line.grid x1=(px(left)) x2=(px(wide - 18.0)) y1=(px(y)) y2=(px(y)) {}
        }
        g.data {
            @for (row, (entry, means)) in rows.iter().enumerate() {
                // The first row is the lowest, as on an axis.
                @let y = bottom - down * (row + 1) as f64;
                text.tick x=(px(left - 8.0)) y=(px(y + down / 2.0)) dy="0.35em" text-anchor="end" { (shorten(&entry.label, 22)) }
                @for (column, (mean, (_, name))) in means.iter().zip(&columns).enumerate() {
                    @if let Some(mean) = mean {
                        @let text = number(*mean);
                        @let (x_px, part) = (left + across * column as f64, (mean / 2.0 - low / 2.0) / span);
                        g.c0 {
                            rect.bar x=(px(x_px + gap / 2.0)) y=(px(y + gap / 2.0)) width=(px(across - gap)) height=(px(down - gap))
                                opacity=(format!("{:.3}", FAINTEST + (1.0 - FAINTEST) * part)) {
                                title { (entry.tip(*mean, name)) }
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
        @for (column, (_, name)) in columns.iter().enumerate().step_by(every) {
            text.tick x=(px(left + across * (column as f64 + 0.5))) y=(px(bottom + 19.0)) text-anchor="middle" {
                (shorten(name, (across * every as f64 / 7.4).max(1.0) as usize))
            }
        }
        text.name x=(px((left + wide - 18.0) / 2.0)) y=(px(high - 6.0)) text-anchor="middle" {
            (shorten(x_title, (wide / 8.0) as usize))
        }
    }
}
