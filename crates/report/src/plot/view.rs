//! What the data of all kinds of figure are drawn by: series with their colours, and the place they have.

use std::ops::RangeInclusive;

use super::axis::Scale;
use crate::label::clean;
use crate::result::{Role, Series};

/// How many colours the theme has for series.
pub(super) const COLOURS: usize = 7;

/// A series as one figure shows it.
pub(super) struct Entry<'a> {
    pub series: &'a Series,
    pub label: String,
    /// Which colour and marker; none for what is expected of nobody in particular.
    pub index: Option<usize>,
}

impl Entry<'_> {
    /// The class that gives the colour, and dashes to what is expected.
    pub fn class(&self) -> String {
        let colour = self.index.map_or("plain".to_owned(), |index| format!("c{}", index % COLOURS));
        if self.expected() { colour + " expected" } else { colour }
    }

    pub fn expected(&self) -> bool {
        self.series.role == Role::Expected
    }

    /// Whether its own name is shown. What is expected of someone has that one's colour instead.
    pub fn named(&self) -> bool {
        !self.expected() || self.index.is_none()
    }

    /// A sample in words, for whoever points at it.
    pub fn tip(&self, value: f64, x: &str) -> String {
        let expected = if self.expected() { " (expected)" } else { "" };
        format!("{}{expected}: {} at {x}", self.label, crate::quantity(value, &clean(&self.series.unit)))
    }
}

/// Where data are drawn, and by which scales.
pub(super) struct View {
    pub x: Scale,
    pub y: Scale,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

/// The values that the axes show, across and upright.
pub(super) type Ranges = (RangeInclusive<f64>, RangeInclusive<f64>);

/// A length in the picture, to a tenth of a pixel.
pub(super) fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
