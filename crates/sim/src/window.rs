//! The window of a stream's sender: how many segments may fly, by losses ([`losses`](crate::losses)), or by BBR ([`bbr`](crate::bbr)),
//! which says how fast they may follow each other, too.

use crate::bbr::Bbr;
use crate::losses::Losses;
use crate::rate::Sample;
use fairlane_core::time::Nanos;
use serde::Deserialize;

/// The first window, in segments (RFC 6928).
pub(crate) const FIRST: f64 = 10.0;

/// How a window grows, and what a loss leaves of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// One segment each round trip; a half.
    Reno,
    /// By time since the last loss; seven tenths. What Linux uses unless told otherwise.
    #[default]
    Cubic,
    /// By the bandwidth and the round trip that were measured; all of it.
    Bbr,
}

/// What an answer says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// Segments that are newly known to have arrived, of those that were in flight.
    pub arrived: u32,
    pub flew: u32,
    /// The round trip, and the mean of the last ones.
    pub trip: Nanos,
    pub smoothed: Nanos,
    /// All before this number arrived.
    pub before: u32,
    /// The next new number.
    pub next: u32,
    /// What it says of the bandwidth, if anything.
    pub sample: Option<Sample>,
    pub now: Nanos,
}

/// The window.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Window {
    Losses(Losses),
    Bbr(Bbr),
}

impl Window {
    /// The window of a new connection.
    pub(crate) fn new(congestion: Congestion) -> Window {
        match congestion {
            Congestion::Reno => Window::Losses(Losses::new(false)),
            Congestion::Cubic => Window::Losses(Losses::new(true)),
            Congestion::Bbr => Window::Bbr(Bbr::new()),
        }
    }

    /// That of the next connection.
    pub(crate) fn anew(&self) -> Window {
        match self {
            Window::Losses(losses) => Window::Losses(losses.anew()),
            Window::Bbr(_) => Window::Bbr(Bbr::new()),
        }
    }

    /// Segments that may fly.
    pub(crate) fn segments(&self) -> f64 {
        match self {
            Window::Losses(losses) => losses.segments,
            Window::Bbr(bbr) => bbr.window,
        }
    }

    /// Segments a second that may be sent; none if they follow each other at once.
    pub(crate) fn pace(&self) -> Option<f64> {
        match self {
            Window::Losses(_) => None,
            Window::Bbr(bbr) => bbr.pace(),
        }
    }

    /// Nothing flew for a time-out. BBR goes on at its pace.
    pub(crate) fn rest(&mut self) {
        if let Window::Losses(losses) = self {
            losses.rest();
        }
    }

    /// An answer arrived.
    pub(crate) fn answer(&mut self, answer: &Answer) {
        match self {
            Window::Losses(losses) => losses.answer(answer),
            Window::Bbr(bbr) => bbr.answer(answer),
        }
    }

    /// Segments were lost, for the first time in this round trip. BBR follows what arrives.
    pub(crate) fn lose(&mut self) {
        if let Window::Losses(losses) = self {
            losses.lose();
        }
    }

    /// Nothing was heard for a time-out.
    pub(crate) fn collapse(&mut self) {
        match self {
            Window::Losses(losses) => losses.collapse(),
            Window::Bbr(bbr) => bbr.collapse(),
        }
    }
}
