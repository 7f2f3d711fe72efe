//! A pacer: how many datagrams are due by now. Time is an argument: the time since sending began.

use std::time::Duration;

/// Debt older than this is forgiven: a sender that was held back does not flood afterwards.
const MEMORY: Duration = Duration::from_millis(50);

/// Spaces datagrams of one cost evenly at a rate, in small batches.
pub struct Pacer {
    /// The time between two datagrams; zero is a flood.
    gap: Duration,
    batch: usize,
    /// When the next datagram is due.
    next: Duration,
}

impl Pacer {
    /// Datagrams of `bits` at `rate` bits per second, at most `batch` at once.
    pub fn new(bits: u64, rate: f64, batch: usize) -> Pacer {
        Pacer { gap: Duration::from_secs_f64(bits as f64 / rate), batch, next: Duration::ZERO }
    }

    /// As many as the socket takes, `batch` at once.
    pub fn flood(batch: usize) -> Pacer {
        Pacer { gap: Duration::ZERO, batch, next: Duration::ZERO }
    }

    /// Datagrams due by `now`, at most a batch; they count as sent.
    pub fn take(&mut self, now: Duration) -> usize {
        if self.gap.is_zero() {
            return self.batch;
        }
        self.next = self.next.max(now.saturating_sub(MEMORY));
        let mut due = 0;
        while due < self.batch && self.next <= now {
            self.next += self.gap;
            due += 1;
        }
        due
    }

    /// How long after `now` the next datagram is due.
    pub fn wait(&self, now: Duration) -> Duration {
        self.next.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over any run of wake-ups no further apart than the memory, what was taken is the rate times the time,
        /// within one datagram.
        #[test]
        fn keeps_the_rate(
            rate in 1e5f64..1e9,
            steps in prop::collection::vec(1u64..40_000, 1..200),
        ) {
            let bits = 1514 * 8;
            let mut pacer = Pacer::new(bits, rate, 32);
            let (mut now, mut sent) = (Duration::ZERO, 0u64);
            for step in steps {
                now += Duration::from_micros(step);
                loop {
                    let due = pacer.take(now);
                    sent += due as u64;
                    if due < 32 {
                        break;
                    }
                }
            }
            let expected = rate * now.as_secs_f64() / bits as f64;
            prop_assert!((sent as f64 - expected).abs() <= 1.0 + expected * 1e-4, "{sent} for {expected}");
        }

        /// After being held back, no more than the memory's worth is made up.
        #[test]
        fn forgives_old_debt(held in 1u64..100) {
            let mut pacer = Pacer::new(8_000, 8e6, usize::MAX);
            let due = pacer.take(Duration::from_secs(held)) as u64;
            prop_assert!((50..=51).contains(&due), "{due} datagrams of a millisecond each");
        }
    }
}
