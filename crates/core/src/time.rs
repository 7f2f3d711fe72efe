//! Time as an argument: nanoseconds on a monotonic clock.

use std::ops::{Add, AddAssign, Sub};

/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// A time in nanoseconds since a fixed start, or a duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// A time that is never reached.
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    /// A duration of whole microseconds.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros * 1_000)
    }

    /// A duration of seconds with a fraction, to the nearest nanosecond; zero if it is negative.
    pub fn from_secs_f64(seconds: f64) -> Nanos {
        Nanos((seconds * SECOND as f64).round() as u64)
    }

    /// Seconds with a fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / SECOND as f64
    }

    /// The duration from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}
