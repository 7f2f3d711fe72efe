//! The legend, and markers that distinguish series without colour.

use maud::{Markup, html};

use super::view::{Entry, px};
use crate::label::shorten;
use crate::result::Kind;

/// The approximate width of a text, in pixels at the figure's font size.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii() { 7.2 } else { 9.0 }).sum()
}

pub(super) struct Legend {
    pub markup: Markup,
    pub height: f64,
}

/// The rows of the legend. Series named at their line ends are left out.
pub(super) fn rows(entries: &[Entry], kind: Kind, at_ends: bool, wide: f64) -> Legend {
    const ROW: f64 = 22.0;
    let mut items: Vec<(String, &Entry)> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.named() && !at_ends) {
        if items.iter().all(|(label, _)| *label != entry.label) {
            items.push((entry.label.clone(), entry));
        }
    }
    // One item for the expected values of all series.
    let expected = entries.iter().find(|entry| !entry.named());
    if let Some(entry) = expected.filter(|_| kind != Kind::Cdf) {
        items.push(("expected".to_owned(), entry));
    }
    if items.len() == 1 && expected.is_none() {
        items.clear();
    }
    let (mut x, mut y) = (0.0, 12.0);
    let mut placed = Vec::new();
    for (label, entry) in &items {
        let short = shorten(label, 30);
        let length = 26.0 + width(&short) + 18.0;
        if x > 0.0 && x + length - 18.0 > wide {
            (x, y) = (0.0, y + ROW);
        }
        placed.push((x, y, short, *entry));
        x += length;
    }
    let height = if placed.is_empty() { 0.0 } else { y + ROW - 6.0 };
    let markup = html! {
        @for (x, y, label, entry) in placed {
            @let class = if entry.expected() { "plain expected".to_owned() } else { entry.class() };
            g.(class) {
                @if kind == Kind::Bars && !entry.expected() {
                    rect.bar x=(px(x + 4.0)) y=(px(y - 7.0)) width="14" height="14" rx="2" {}
                } @else {
                    @if kind != Kind::Points { path.line d=(format!("M{} {}h20", px(x), px(y))) {} }
                    @if !entry.expected() && kind != Kind::Cdf { (marker(entry, x + 10.0, y, "")) }
                }
                text.label x=(px(x + 26.0)) y=(px(y)) dy="0.35em" { (label) }
            }
        }
    };
    Legend { markup, height }
}

/// A series' marker: a circle, square, diamond or triangle, with a tooltip.
pub(super) fn marker(entry: &Entry, x: f64, y: f64, tip: &str) -> Markup {
    let (x, y) = (px(x), px(y));
    let d = match entry.index.unwrap_or(0) % 4 {
        0 => format!("M{x} {y}m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z"),
        1 => format!("M{x} {y}m-3.2 -3.2h6.4v6.4h-6.4z"),
        2 => format!("M{x} {y}m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z"),
        _ => format!("M{x} {y}m0 -4.4l4.4 7.6h-8.8z"),
    };
    html! {
        path.dot d=(d) { @if !tip.is_empty() { title { (tip) } } }
    }
}
