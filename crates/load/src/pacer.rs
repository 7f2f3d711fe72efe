//! A pacer: computes how many datagrams are due. Time is an argument: the time since sending started.

use std::time::Duration;

/// Older debt is dropped, so that a sender that was delayed does not flood afterwards.
const MEMORY: Duration = Duration::from_millis(50);

/// Spaces datagrams of the same size evenly at a rate, in small batches.
pub struct Pacer {
    /// The time between two datagrams; zero for a flood.
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

    /// As many datagrams as the socket takes, `batch` at once.
    pub fn flood(batch: usize) -> Pacer {
        Pacer { gap: Duration::ZERO, batch, next: Duration::ZERO }
    }

    /// The number of datagrams due by `now`, at most a batch; they count as sent.
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
        /// For wake-ups no further apart than the memory, the number of datagrams is the rate times the time, within one datagram.
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

        /// After a delay, at most the memory's worth of datagrams is due.
        #[test]
        fn forgives_old_debt(held in 1u64..100) {
            let mut pacer = Pacer::new(8_000, 8e6, usize::MAX);
            let due = pacer.take(Duration::from_secs(held)) as u64;
            prop_assert!((50..=51).contains(&due), "{due} datagrams of a millisecond each");
        }
    }
}
