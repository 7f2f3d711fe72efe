//! Time for the datapath: read by workers, handed to everything else.

use fairlane_core::time::{Nanos, SECOND};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;

/// A clock that never goes back.
pub trait Clock {
    /// The time.
    fn now(&self) -> Nanos;
}

/// The system's monotonic clock, counted from when it was made. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    /// What the system's clock said when this one was made.
    start: Nanos,
}

impl Monotonic {
    /// A clock that starts at zero.
    pub fn new() -> Monotonic {
        Monotonic { start: system() }
    }
}

impl Default for Monotonic {
    fn default() -> Monotonic {
        Monotonic::new()
    }
}

impl Clock for Monotonic {
    #[inline]
    fn now(&self) -> Nanos {
        system() - self.start
    }
}

/// What the system's clock says. An `Instant`, and the `Duration` between two, take twice the instructions: a worker that has
/// a frame at a time reads it as often as it serves.
#[inline]
fn system() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has had this clock since 2.6");
    Nanos(time.tv_sec() as u64 * SECOND + time.tv_nsec() as u64)
}

/// A clock that is set by hand: tests and virtual time.
#[derive(Debug, Default)]
pub struct Manual(Cell<Nanos>);

impl Manual {
    /// Moves on.
    pub fn advance(&self, by: Nanos) {
        self.0.set(self.0.get() + by);
    }
}

impl Clock for Manual {
    fn now(&self) -> Nanos {
        self.0.get()
    }
}
