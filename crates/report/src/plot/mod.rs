//! Figures as SVG, coloured by the custom properties of `theme.css`, in two widths.
//!
//! This file lays a figure out and draws the parts common to all kinds: axes, legend, marks. Each kind's module draws its data.

mod axis;
mod bars;
mod cdf;
mod heat;
mod legend;
mod lines;
mod means;
mod points;
mod view;

use std::ops::RangeInclusive;

use maud::{Markup, PreEscaped, html};

use crate::label::{clean, shorten};
use crate::result::{At, Figure, Kind, ResultFile, Role, Series};
use axis::Scale;
use legend::width;
use view::{COLOURS, Entry, Ranges, View, px};

/// The colours, light and dark, as custom properties of `:root`.
pub(crate) const THEME: &str = include_str!("theme.css");
/// The styles of a figure's parts.
pub(crate) const STYLE: &str = include_str!("plot.css");

/// The approximate number of ticks of the vertical axis.
const Y_TICKS: f64 = 5.0;

/// The width a figure is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For a desktop: 960 by 330 pixels.
    Wide,
    /// For a phone: 360 by 300 pixels.
    Narrow,
}

impl Size {
    fn pixels(self) -> (f64, f64) {
        match self {
            Self::Wide => (960.0, 330.0),
            Self::Narrow => (360.0, 300.0),
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Wide => "plot wide",
            Self::Narrow => "plot narrow",
        }
    }
}

/// A figure of the result as an SVG element, for a page with the styles.
pub(crate) fn svg(result: &ResultFile, figure: &Figure, size: Size) -> Markup {
    draw(result, figure, size, None)
}

/// A figure of the result as an SVG file with its own styles and background.
pub fn standalone(result: &ResultFile, figure: &Figure, size: Size) -> String {
    let style = format!("{THEME}{STYLE}svg {{ background: var(--paper); }}");
    draw(result, figure, size, Some(&style)).into_string()
}

/// The series of a figure. A label has the same colour throughout a result, by its position among all labels. If two labels of a
/// figure would have the same colour, the later one gets a colour that is free in this figure.
fn entries<'a>(result: &'a ResultFile, figure: &Figure) -> Vec<Entry<'a>> {
    let mut labels: Vec<&str> = Vec::new();
    for series in result.series.iter().filter(|series| series.role == Role::Measured || series.group.is_some()) {
        if !labels.contains(&series.label()) {
            labels.push(series.label());
        }
    }
    let of = |series: &'a Series| Entry {
        series,
        label: clean(series.label()),
        index: labels.iter().position(|label| *label == series.label()),
    };
    let mut entries: Vec<Entry> = figure.series.iter().filter_map(|name| result.find(name)).map(of).collect();
    for place in 1..entries.len() {
        let (before, rest) = entries.split_at_mut(place);
        let entry = &mut rest[0];
        let taken = |index: usize| {
            before.iter().any(|other| {
                other.label != entry.label && other.index.is_some_and(|own| own % COLOURS == index % COLOURS)
            })
        };
        if entry.index.is_some_and(taken) {
            let namesake = before.iter().find(|other| other.label == entry.label).map(|other| other.index);
            let free = || (0..COLOURS).find(|index| !taken(*index)).or(entry.index);
            entry.index = namesake.unwrap_or_else(free);
        }
    }
    entries
}

fn draw(result: &ResultFile, figure: &Figure, size: Size, style: Option<&str>) -> Markup {
    let entries = entries(result, figure);
    let titles = titles(figure, entries.first().map(|entry| entry.series));
    let (wide, high) = size.pixels();
    html! {
        svg xmlns="http://www.w3.org/2000/svg" class=(size.class()) role="img"
            viewBox=(format!("0 0 {wide} {high}")) aria-label=(clean(&figure.title)) {
            @if let Some(style) = style { style { (PreEscaped(style)) } }
            title { (clean(&figure.title)) }
            desc { (clean(&figure.caption)) }
            @if figure.kind == Kind::Heat {
                (heat::draw(figure, &entries, &titles, size.pixels()))
            } @else {
                (along_axes(figure, entries, &titles, size))
            }
        }
    }
}

/// A figure whose values lie along a vertical axis.
fn along_axes(figure: &Figure, entries: Vec<Entry>, titles: &(String, String), size: Size) -> Markup {
    let summaries = if figure.kind == Kind::Means { means::summaries(&entries) } else { Vec::new() };
    let entries = if figure.kind == Kind::Means { means::entries(&entries, &summaries) } else { entries };
    let places = if figure.kind == Kind::Bars { bars::places(figure, &entries) } else { Vec::new() };
    let ranges = match figure.kind {
        Kind::Lines => lines::ranges(&entries),
        Kind::Means => means::ranges(&entries, &summaries),
        Kind::Bars => bars::ranges(&places),
        Kind::Cdf => cdf::ranges(&entries),
        Kind::Points | Kind::Heat => points::ranges(&entries),
    };
    // Lines are named at their ends if there is room, else in the legend.
    let along = matches!(figure.kind, Kind::Lines | Kind::Means);
    let at_ends = size == Size::Wide && along && entries.iter().filter(|entry| entry.named()).count() <= 8;
    let legend = legend::rows(&entries, figure.kind, at_ends, size.pixels().0);
    let view = lay_out(figure, size, ranges, &entries, legend.height, at_ends, !titles.0.is_empty());
    let empty = entries.iter().all(|entry| entry.series.values().is_empty());
    html! {
        (legend.markup)
        (axes(&view, figure, &places, titles, size, legend.height))
        @if empty {
            text.none x=(px((view.left + view.right) / 2.0)) y=(px((view.top + view.bottom) / 2.0))
                text-anchor="middle" {
                "nothing was measured"
            }
        }
        (marks(&view, figure))
        g.data {
            @match figure.kind {
                Kind::Lines => (lines::draw(&view, &entries, at_ends)),
                Kind::Means => (means::draw(&view, &entries, &summaries, at_ends)),
                Kind::Bars => (bars::draw(&view, &places, &entries)),
                Kind::Cdf => (cdf::draw(&view, &entries)),
                Kind::Points | Kind::Heat => (points::draw(&view, &entries)),
            }
        }
    }
}

/// Computes the area of the data, with room for the legend above, names at line ends, numbers and titles.
fn lay_out(
    figure: &Figure,
    size: Size,
    (x_range, y_range): Ranges,
    entries: &[Entry],
    legend: f64,
    at_ends: bool,
    x_title: bool,
) -> View {
    let (x_range, y_range) = with_marks(figure, x_range, y_range);
    let (wide, high) = size.pixels();
    let named = entries.iter().filter(|entry| entry.named());
    let longest = named.map(|entry| width(&shorten(&entry.label, 22))).fold(0.0, f64::max);
    let upright = figure.kind != Kind::Bars && figure.marks.iter().any(|mark| matches!(mark.at, At::X(_)));
    let top = 34.0 + legend + if upright { 18.0 } else { 0.0 };
    let bottom = high - if x_title { 46.0 } else { 28.0 };
    let y = Scale::new(axis::rounded(y_range, Y_TICKS), bottom, top);
    let left = y.ticks(Y_TICKS).iter().map(|(_, text)| width(text)).fold(0.0, f64::max) + 12.0;
    let right = wide - if at_ends && longest > 0.0 { longest + 16.0 } else { 18.0 };
    View { x: Scale::new(x_range, left, right), y, left, right, top, bottom }
}

/// The axes: grid, numbers, base line and titles. The vertical axis's title is below a legend of height `legend`.
fn axes(
    view: &View,
    figure: &Figure,
    places: &[bars::Place],
    (x_title, y_title): &(String, String),
    size: Size,
    legend: f64,
) -> Markup {
    let (wide, high) = size.pixels();
    let (left, right) = (px(view.left), px(view.right));
    html! {
        text.name x="0" y=(px(legend + 12.0)) { (shorten(y_title, (wide / 7.5) as usize)) }
        @for (value, text) in view.y.ticks(Y_TICKS) {
            @let at = px(view.y.px(value));
            line.grid x1=(left) x2=(right) y1=(at) y2=(at) {}
            text.tick x=(px(view.left - 8.0)) y=(at) dy="0.35em" text-anchor="end" { (text) }
        }
        @if figure.kind == Kind::Bars {
            (bars::names(view, places))
        } @else {
            (x_ticks(view))
        }
        line.base x1=(left) x2=(right) y1=(px(view.bottom)) y2=(px(view.bottom)) {}
        text.name x=(px((view.left + view.right) / 2.0)) y=(px(high - 6.0)) text-anchor="middle" {
            (shorten(x_title, (wide / 8.0) as usize))
        }
    }
}

/// The ranges widened to include the figure's marks. The horizontal range of bars is in places, not in values.
fn with_marks(figure: &Figure, x: RangeInclusive<f64>, y: RangeInclusive<f64>) -> Ranges {
    let ats = |upright: bool| {
        figure.marks.iter().filter_map(move |mark| match mark.at {
            At::X(at) if upright => Some(at),
            At::Y(at) if !upright => Some(at),
            _ => None,
        })
    };
    let ends = |range: &RangeInclusive<f64>| [*range.start(), *range.end()].into_iter();
    let wider = axis::range(ends(&x).chain(ats(true)), false);
    (if figure.kind == Kind::Bars { x } else { wider }, axis::range(ends(&y).chain(ats(false)), false))
}

/// The titles of the axes: a quantity, with its unit in parentheses.
fn titles(figure: &Figure, first: Option<&Series>) -> (String, String) {
    let unit = first.map_or("", |series| series.unit.as_str());
    let title = |name: &str, unit: &str| match (clean(name), clean(unit)) {
        (name, unit) if unit.is_empty() => name,
        (name, unit) if name.is_empty() => unit,
        (name, unit) => format!("{name} ({unit})"),
    };
    let (x, x_unit) = first.map_or(("", ""), |series| (&series.x.name, &series.x.unit));
    let x = if figure.x_label.is_empty() { x } else { &figure.x_label };
    match figure.kind {
        Kind::Lines | Kind::Means | Kind::Points => (title(x, x_unit), title(&figure.y_label, unit)),
        Kind::Bars if figure.categories.is_empty() => (title(x, x_unit), title(&figure.y_label, unit)),
        Kind::Bars | Kind::Heat => (clean(&figure.x_label), title(&figure.y_label, unit)),
        Kind::Cdf => (title(&figure.x_label, unit), "share of samples".to_owned()),
    }
}

fn x_ticks(view: &View) -> Markup {
    let want = ((view.right - view.left) / 55.0).clamp(2.0, 10.0);
    html! {
        @for (value, text) in view.x.ticks(want) {
            @let at = px(view.x.px(value));
            line.base x1=(at) x2=(at) y1=(px(view.bottom)) y2=(px(view.bottom + 4.0)) {}
            text.tick x=(at) y=(px(view.bottom + 19.0)) text-anchor="middle" { (text) }
        }
    }
}

/// The figure's marks. A label that would overlap the one before is left out; the mark still has its tooltip.
fn marks(view: &View, figure: &Figure) -> Markup {
    let mut free = 0.0;
    let mut upright = Vec::new();
    let mut level = Vec::new();
    for mark in &figure.marks {
        let text = clean(&mark.text);
        let short = shorten(&text, 28);
        match mark.at {
            At::X(_) if figure.kind == Kind::Bars => {}
            At::X(at) => {
                let x = view.x.px(at);
                let start = (x - 3.0).min(view.right - width(&short));
                let label = (start >= free).then_some((start, short));
                free = label.as_ref().map_or(free, |(start, short)| start + width(short) + 6.0);
                upright.push((x, text, label));
            }
            At::Y(at) => level.push((view.y.px(at), text, short)),
        }
    }
    html! {
        @for (x, text, label) in upright {
            line.mark x1=(px(x)) x2=(px(x)) y1=(px(view.top - 6.0)) y2=(px(view.bottom)) { title { (text) } }
            @if let Some((start, short)) = label {
                text.mark x=(px(start)) y=(px(view.top - 10.0)) { (short) }
            }
        }
        @for (y, text, short) in level {
            line.mark x1=(px(view.left)) x2=(px(view.right)) y1=(px(y)) y2=(px(y)) { title { (text) } }
            text.mark x=(px(view.left + 6.0)) y=(px(y - 5.0)) { (short) }
        }
    }
}
