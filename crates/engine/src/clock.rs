//! Time for the datapath. Workers read it and pass it on.

use fairlane_core::time::{Nanos, SECOND};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;

/// A monotonic clock.
pub trait Clock {
    /// The time.
    fn now(&self) -> Nanos;

    /// The CPU time of the calling thread; a system call.
    fn worked(&self) -> Nanos;
}

/// The system's monotonic clock, relative to its creation. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    /// The system's time at creation.
    start: Nanos,
}

impl Monotonic {
    /// A clock that starts at zero.
    pub fn new() -> Monotonic {
        Monotonic { start: read(ClockId::CLOCK_MONOTONIC) }
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
        read(ClockId::CLOCK_MONOTONIC) - self.start
    }

    fn worked(&self) -> Nanos {
        read(ClockId::CLOCK_THREAD_CPUTIME_ID)
    }
}

/// Reads a system clock. `Instant` and `Duration` take twice the instructions, and a worker with a frame at a time reads it for
/// every service.
#[inline]
fn read(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock).expect("Linux has had these clocks since 2.6");
    Nanos(time.tv_sec() as u64 * SECOND + time.tv_nsec() as u64)
}

/// A clock that is set by hand, for tests and virtual time.
#[derive(Debug, Default)]
pub struct Manual(Cell<Nanos>);

impl Manual {
    /// Advances the clock.
    pub fn advance(&self, by: Nanos) {
        self.0.set(self.0.get() + by);
    }
}

impl Clock for Manual {
    fn now(&self) -> Nanos {
        self.0.get()
    }

    /// Each reading is CPU time of the thread.
    fn worked(&self) -> Nanos {
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn who_sleeps_does_not_work() {
        let clock = Monotonic::new();
        let (now, worked) = (clock.now(), clock.worked());
        std::thread::sleep(Duration::from_millis(50));
        let slept = clock.worked();
        assert!(slept - worked < Nanos::from_millis(50) && clock.now() - now >= Nanos::from_millis(50));
        while clock.worked() == slept {}
    }
}
