//! Series with their colours, and the area they are drawn in, for all kinds of figure.

use std::ops::RangeInclusive;

use super::axis::Scale;
use crate::label::clean;
use crate::result::{Figure, Role, Series};

/// The number of the theme's colours for series.
pub(super) const COLOURS: usize = 7;

/// A series in a figure.
pub(super) struct Entry<'a> {
    pub series: &'a Series,
    pub label: String,
    /// The index of its colour and marker; none for expected values that belong to no series.
    pub index: Option<usize>,
}

impl Entry<'_> {
    /// The CSS classes for its colour, and for dashes if it is expected.
    pub(super) fn class(&self) -> String {
        let colour = self.index.map_or("plain".to_owned(), |index| format!("c{}", index % COLOURS));
        if self.expected() { colour + " expected" } else { colour }
    }

    pub(super) fn expected(&self) -> bool {
        self.series.role == Role::Expected
    }

    /// Whether its own name is shown. Expected values of a series have that series' colour instead.
    pub(super) fn named(&self) -> bool {
        !self.expected() || self.index.is_none()
    }

    /// The tooltip of a sample.
    pub(super) fn tip(&self, value: f64, x: &str) -> String {
        let expected = if self.expected() { " (expected)" } else { "" };
        format!("{}{expected}: {} at {x}", self.label, crate::quantity(value, &clean(&self.series.unit)))
    }
}

/// The places along x of figures that name them, in ascending order: a category, or the value itself.
pub(super) fn named_places(figure: &Figure, entries: &[Entry]) -> Vec<(f64, String)> {
    let mut xs: Vec<f64> = entries.iter().flat_map(|entry| &entry.series.points).map(|point| point[0]).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let unit = entries.first().map_or(String::new(), |entry| clean(&entry.series.x.unit));
    let name = |x: f64| {
        let named = if x >= 0.0 { figure.categories.get(x as usize) } else { None };
        named.map_or_else(|| crate::quantity(x, &unit), |name| clean(name))
    };
    xs.into_iter().map(|x| (x, name(x))).collect()
}

/// The area of the data, and its scales.
pub(super) struct View {
    pub x: Scale,
    pub y: Scale,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

/// The ranges of the horizontal and vertical axes.
pub(super) type Ranges = (RangeInclusive<f64>, RangeInclusive<f64>);

/// A length in pixels, rounded to a tenth.
pub(super) fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
