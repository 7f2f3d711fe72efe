//! Time for the datapath: read by workers, handed to everything else.

use fairlane_core::time::Nanos;
use std::cell::Cell;
use std::time::Instant;

/// A clock that never goes back.
pub trait Clock {
    /// The time.
    fn now(&self) -> Nanos;
}

/// The system's monotonic clock, counted from when it was made. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Monotonic {
    /// A clock that starts at zero.
    pub fn new() -> Monotonic {
        Monotonic(Instant::now())
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
        Nanos(self.0.elapsed().as_nanos() as u64)
    }
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
