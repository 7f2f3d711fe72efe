//! The worker's time for messages of a port's frontend, which no scheduler controls. It is measured, charged to the port with its
//! next service, and bounded, as a frontend that sends no frames cannot be charged.
//!
//! The messages of a frontend that exceeds its part wait in its socket, and frames pass meanwhile. Frontends that boot, migrate or
//! get memory stay far below the bound: QEMU's forty messages take half a millisecond.

use fairlane_core::time::Nanos;

/// A frontend's messages may take one part in this many of the worker's time.
const PART: u64 = 100;

/// Time that they may take at once after a silence, in nanoseconds: a hundred of the most expensive common message, a table of 32
/// regions, which took 0.2 ms (Linux 6.18, a frontend without guest).
const AT_ONCE: u64 = 20_000_000;

/// Most debt in nanoseconds of work, so that no frontend waits longer than a second, however expensive its message was. The most
/// expensive one unmaps memory that frames have used, and those were charged.
const OVER: u64 = 10_000_000;

/// The cost of a frontend's messages.
#[derive(Default)]
pub(crate) struct Messages {
    /// Recent work in nanoseconds, less its part of the time since.
    level: u64,
    at: Nanos,
    /// Work not yet charged, in nanoseconds.
    owed: u64,
}

impl Messages {
    /// Counts nanoseconds of work.
    pub(crate) fn count(&mut self, work: u64, now: Nanos) {
        let passed = now.since(self.at).0 / PART;
        self.level = (self.level.saturating_sub(passed) + work).min(AT_ONCE + OVER);
        self.at = now;
        self.owed += work;
    }

    /// When further messages are handled.
    pub(crate) fn again(&self) -> Nanos {
        self.at + Nanos(self.level.saturating_sub(AT_ONCE) * PART)
    }

    /// Work to charge now, in nanoseconds.
    #[inline]
    pub(crate) fn charge(&mut self) -> u64 {
        std::mem::take(&mut self.owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_core::time::SECOND;

    #[test]
    fn who_says_much_at_once_is_heard_and_who_goes_on_has_its_part() {
        let mut messages = Messages::default();
        let (mut now, mut said) = (Nanos(0), 0);
        let work = 300_000;
        while messages.again() <= now {
            messages.count(work, now);
            said += work;
        }
        assert!((AT_ONCE..=AT_ONCE + work).contains(&said), "{said}");
        while now < Nanos(10 * SECOND) {
            now = messages.again();
            messages.count(work, now);
            said += work;
        }
        assert!(said <= AT_ONCE + 10 * SECOND / PART + 2 * work, "{said}");
        assert_eq!(messages.charge(), said);
        assert_eq!(messages.charge(), 0);
        // After a silence the state is as at the start.
        now += Nanos(60 * SECOND);
        messages.count(AT_ONCE, now);
        assert_eq!(messages.again(), now);
    }

    #[test]
    fn nobody_goes_unheard_for_longer_than_a_second() {
        let mut messages = Messages::default();
        for _ in 0..10 {
            messages.count(30 * SECOND, Nanos(7));
            assert_eq!(messages.again(), Nanos(7 + SECOND));
        }
        assert_eq!(messages.charge(), 300 * SECOND);
    }
}
