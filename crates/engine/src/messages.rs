//! What a port's peer has the worker do by messages, which no scheduler grants: the time is measured, charged to the port with its next
//! service, and bounded, as a peer that sends no frames can be charged nothing.
//!
//! Who uses more than its part is heard later; what it says waits in its socket, and frames pass meanwhile. Frontends of machines
//! that boot, move or are given memory are far from the bound: QEMU's forty messages take half a millisecond.

use fairlane_core::time::Nanos;

/// A peer's messages may take one part in so many of the worker's time.
const PART: u64 = 100;

/// Time that they may take at once after a silence, in nanoseconds: a hundred of the dearest that are usual,
/// tables of 32 regions, which took 0.2 ms each (Linux 6.18, a frontend without guest).
const AT_ONCE: u64 = 20_000_000;

/// What is waited for at most, in nanoseconds of work: nobody goes unheard for longer than a second, whatever one message took. The
/// dearest gives back memory that frames have used, which were charged as they did.
const OVER: u64 = 10_000_000;

/// What a port's peer had done by messages.
#[derive(Default)]
pub(crate) struct Messages {
    /// Work of late, in nanoseconds, less its part of the time that passed since.
    level: u64,
    at: Nanos,
    /// Work that the scheduler was not told of, in nanoseconds.
    owed: u64,
}

impl Messages {
    /// Counts so many nanoseconds of work.
    pub fn count(&mut self, work: u64, now: Nanos) {
        let passed = now.since(self.at).0 / PART;
        self.level = (self.level.saturating_sub(passed) + work).min(AT_ONCE + OVER);
        self.at = now;
        self.owed += work;
    }

    /// When more may be heard.
    pub fn again(&self) -> Nanos {
        self.at + Nanos(self.level.saturating_sub(AT_ONCE) * PART)
    }

    /// What the scheduler is to be told of, in nanoseconds.
    #[inline]
    pub fn charge(&mut self) -> u64 {
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
        // After a silence it is as at first.
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
