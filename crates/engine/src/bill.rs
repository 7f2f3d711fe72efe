//! What a service costs its port: the worker's time for it, but not what the system gave to others meanwhile.
//!
//! The clock that is cheap to read runs on while others use the core, some milliseconds at a time; the one of the thread's own work is a
//! system call. So a service that took about as long per frame as those before is charged by the first. One that took far longer is
//! charged what the thread has worked since the second was last read, if that is less. That is never less than its own work, so nobody
//! can hide any, however it alternates; and it is more only by what was done in [`FRESH`] before it.

use crate::clock::Clock;
use fairlane_core::time::Nanos;

/// Time of a frame at most before any is known, in nanoseconds.
const FIRST_FRAME: u64 = 10_000;

/// Time of a frame at least, in nanoseconds, whatever was measured: a clock may stand still for a while (Linux's on Xen does where it
/// is behind that of another CPU), and next to an average of nothing everything would take far longer ever after.
const LEAST_FRAME: u64 = 10;

/// How much longer than on average a port's frames may take in one service before it is asked why.
const SURPRISE: u64 = 8;

/// How old a reading of the thread's work may become while there are rounds.
const FRESH: Nanos = Nanos::from_millis(1);

/// The average time of a port's frames, in nanoseconds; 0 if none is known.
#[derive(Default)]
pub(crate) struct FrameTime(u64);

impl FrameTime {
    /// The part of the `nanos` that a service of so many frames took that is the port's own doing. Where that is not plain, `worked`
    /// tells what the thread worked at most meanwhile.
    #[inline]
    pub fn own(&mut self, nanos: u64, frames: u64, worked: impl FnOnce() -> u64) -> u64 {
        let frames = frames.max(1);
        let usual = frames * if self.0 == 0 { FIRST_FRAME } else { self.0 * SURPRISE };
        let own = if nanos <= usual { nanos } else { nanos.min(usual.max(worked())) };
        self.0 = (if self.0 == 0 { own / frames } else { (7 * self.0 + own / frames) / 8 }).max(LEAST_FRAME);
        own
    }
}

/// The last reading of the thread's work.
#[derive(Default)]
pub(crate) struct Worked {
    at: Nanos,
    work: Nanos,
}

impl Worked {
    /// Reads anew if the last reading is old. To be called between services.
    #[inline]
    pub fn refresh(&mut self, now: Nanos, clock: &impl Clock) {
        if now.since(self.at) >= FRESH {
            self.take(now, clock);
        }
    }

    /// What the thread worked since the last reading, in nanoseconds.
    #[cold]
    pub fn take(&mut self, now: Nanos, clock: &impl Clock) -> u64 {
        let before = self.work;
        *self = Worked { at: now, work: clock.worked() };
        self.work.since(before).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of an average of 100 ns.
    fn known() -> FrameTime {
        let mut time = FrameTime::default();
        (0..100).for_each(|_| _ = time.own(3_200, 32, || unreachable!("nothing is unusual")));
        time
    }

    #[test]
    fn time_that_was_others_is_not_charged() {
        assert_eq!(FrameTime::default().own(4_000_000, 1, || 0), FIRST_FRAME, "nothing is known yet");
        assert_eq!(known().own(4_000_000, 32, || 20_000), 100 * SURPRISE * 32);
        assert_eq!(known().own(4_000_000, 32, || 30_000), 30_000);
    }

    #[test]
    fn work_is_charged_in_full() {
        assert_eq!(FrameTime::default().own(4_000_000, 1, || 5_000_000), 4_000_000);
        assert_eq!(known().own(4_000_000, 32, || 5_000_000), 4_000_000);
        assert_eq!(known().own(100 * SURPRISE * 32, 32, || unreachable!("it is no surprise")), 100 * SURPRISE * 32);
    }

    #[test]
    fn a_clock_that_stood_still_is_forgotten() {
        let mut time = FrameTime::default();
        (0..100).for_each(|_| _ = time.own(0, 32, || 0));
        (0..100).for_each(|_| _ = time.own(320_000, 32, || 0));
        assert_eq!(time.own(320_000, 32, || 0), 320_000);
    }
}
