//! What a service costs its port: the worker's time for it, without the time that the kernel gave to other threads meanwhile.
//!
//! The clock that is cheap to read continues while other threads use the core, some milliseconds at a time. The thread's own CPU
//! time costs a system call. So a service that took about as long per frame as earlier ones is charged by the cheap clock. A
//! service that took far longer is charged the CPU time since it was last read, if that is less. This is never less than the
//! service's own work, so no port can hide work by alternating frames; and it is more only by the work of the last [`FRESH`] before
//! it.

use crate::clock::Clock;
use fairlane_core::time::Nanos;

/// Longest time of a frame before any is known, in nanoseconds.
const FIRST_FRAME: u64 = 10_000;

/// Shortest time of a frame, in nanoseconds, whatever was measured: a clock may stand still for a while (Linux's on Xen does if it
/// is behind another CPU's), and compared with an average of zero, everything would take far longer.
const LEAST_FRAME: u64 = 10;

/// If a port's frames take more than this many times their average in one service, the thread's CPU time is read.
const SURPRISE: u64 = 8;

/// Oldest age of a CPU time reading while rounds run.
const FRESH: Nanos = Nanos::from_millis(1);

/// Units of work that a frame is, beside those for its bytes ([`work`]).
pub(crate) const FRAME: u64 = 16;

/// Fraction bits of [`UnitTime`].
const FRACTION: u32 = 8;

/// The work that so many frames with so many bytes are: a frame, and as much again for each KiB that is copied.
#[inline]
pub(crate) fn work(frames: u64, bytes: u64) -> u64 {
    FRAME * frames + bytes * FRAME / 1024
}

/// The average time of a unit of work, in nanoseconds with [`FRACTION`] fraction bits; 0 if unknown.
#[derive(Default)]
pub(crate) struct UnitTime(u64);

impl UnitTime {
    /// The usual time of so much work, in nanoseconds; 0 if unknown.
    #[inline]
    pub(crate) fn of(&self, units: u64) -> u64 {
        (units * self.0) >> FRACTION
    }

    /// The part of the `nanos` of a service that was its own work, of so many units. `worked` returns an upper bound, the thread's CPU
    /// time; it is called only if the service took unusually long.
    #[inline]
    pub(crate) fn own(&mut self, nanos: u64, units: u64, worked: impl FnOnce() -> u64) -> u64 {
        let units = units.max(FRAME);
        let usual = if self.0 == 0 { FIRST_FRAME * units / FRAME } else { SURPRISE * self.of(units) };
        let own = if nanos <= usual { nanos } else { nanos.min(usual.max(worked())) };
        let measured = (own << FRACTION) / units;
        self.0 =
            (if self.0 == 0 { measured } else { (7 * self.0 + measured) / 8 }).max((LEAST_FRAME << FRACTION) / FRAME);
        own
    }
}

/// The last reading of the thread's CPU time.
#[derive(Default)]
pub(crate) struct Worked {
    at: Nanos,
    work: Nanos,
    /// The worker's own time then.
    own: Nanos,
    /// Whether the worker had nothing to do at some time since.
    idle: bool,
}

impl Worked {
    /// Reads the CPU time again if the last reading is old. Called between services.
    #[inline]
    pub(crate) fn refresh(&mut self, now: Nanos, clock: &impl Clock) {
        if now.since(self.at) >= FRESH {
            self.take(now, clock);
        }
    }

    /// The CPU time since the last reading, in nanoseconds.
    #[cold]
    pub(crate) fn take(&mut self, now: Nanos, clock: &impl Clock) -> u64 {
        let (elapsed, work) = (now.since(self.at), clock.worked());
        let worked = work.since(self.work);
        let own = if self.idle { elapsed } else { elapsed.min(worked) };
        *self = Worked { at: now, work, own: self.own + own, idle: false };
        worked.0
    }

    /// Reports that the worker had nothing to do.
    #[inline]
    pub(crate) fn idle(&mut self) {
        self.idle = true;
    }

    /// The worker's own time: that of the clock, without what other threads took of its core while it had something to do. What they took
    /// since the last reading is not known, so little is added to that.
    #[inline]
    pub(crate) fn own_time(&self, now: Nanos) -> Nanos {
        self.own + now.since(self.at).min(FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Manual;

    /// The work of 32 frames.
    const BURST: u64 = 32 * FRAME;

    /// A frame takes 100 ns on average.
    fn known() -> UnitTime {
        let mut time = UnitTime::default();
        (0..100).for_each(|_| _ = time.own(3_200, BURST, || unreachable!("nothing is unusual")));
        time
    }

    #[test]
    fn time_that_was_others_is_not_charged() {
        assert_eq!(UnitTime::default().own(4_000_000, FRAME, || 0), FIRST_FRAME, "nothing is known yet");
        assert_eq!(known().own(4_000_000, BURST, || 20_000), 100 * SURPRISE * 32);
        assert_eq!(known().own(4_000_000, BURST, || 30_000), 30_000);
    }

    #[test]
    fn work_is_charged_in_full() {
        assert_eq!(UnitTime::default().own(4_000_000, FRAME, || 5_000_000), 4_000_000);
        assert_eq!(known().own(4_000_000, BURST, || 5_000_000), 4_000_000);
        assert_eq!(known().own(100 * SURPRISE * 32, BURST, || unreachable!("it is no surprise")), 100 * SURPRISE * 32);
    }

    #[test]
    fn work_is_frames_and_bytes() {
        assert_eq!([work(1, 0), work(0, 1024), work(3, 200), work(32, 32 * 1514)], [16, 16, 51, 1269]);
        assert_eq!([known().of(work(1, 0)), known().of(work(100, 100 * 1024))], [100, 20_000]);
    }

    #[test]
    fn time_that_was_others_is_not_the_workers_own_unless_it_had_nothing_to_do() {
        let (clock, mut worked) = (Manual::default(), Worked::default());
        let at = |millis: u64| Nanos::from_millis(millis);
        clock.advance(at(2));
        // Others had the core for three milliseconds of five.
        worked.take(at(5), &clock);
        assert_eq!(worked.own_time(at(5)), at(2));
        assert_eq!(worked.own_time(at(50)), at(2) + FRESH, "what others had since is not known");
        worked.idle();
        worked.take(at(50), &clock);
        assert_eq!(worked.own_time(at(50)), at(47), "nobody kept it from running");
        worked.take(at(60), &clock);
        assert_eq!(worked.own_time(at(60)), at(47));
    }

    #[test]
    fn a_clock_that_stood_still_is_forgotten() {
        let mut time = UnitTime::default();
        (0..100).for_each(|_| _ = time.own(0, BURST, || 0));
        (0..100).for_each(|_| _ = time.own(320_000, BURST, || 0));
        assert_eq!(time.own(320_000, BURST, || 0), 320_000);
    }
}
