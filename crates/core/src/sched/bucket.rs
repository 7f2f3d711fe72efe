//! A token bucket in exact integer arithmetic.
//!
//! A token is 10^-9 bit, so that a nanosecond adds exactly `rate` tokens and nothing is rounded. A frame is
//! indivisible: when it takes more tokens than there are, the rest is a debt. So in any window of length T a port that
//! is served only while it has tokens sends at most `burst + rate * T` bytes and the overshoot of one frame; in the
//! long run exactly `rate` (Turner 1986; RFC 2697 counts the same way).

use super::Share;
use crate::time::{Nanos, SECOND};

/// Tokens for one byte.
const BYTE: i128 = 8 * SECOND as i128;

/// A throttled port waits for as many tokens as its rate adds in this time, so that it is not woken for every byte.
const PACE: u64 = SECOND / 1000;

/// A bucket for `rate` bits a second, and `burst` bytes at once after an idle time.
pub(super) struct Bucket {
    rate: u64,
    burst: i128,
    quantum: i128,
    /// Negative while the port is in debt.
    tokens: i128,
    at: Nanos,
}

impl Bucket {
    /// A full bucket for the share's `max_rate`, if it has one. A throttled port is served again when it has tokens for
    /// `budget` bytes, for a millisecond of its rate or for its burst, whichever is least: the quantum.
    pub(super) fn new(share: &Share, budget: u64, now: Nanos) -> Option<Bucket> {
        let rate = share.max_rate?;
        let burst = i128::from(share.burst.max(1)) * BYTE;
        let quantum = (i128::from(rate) * i128::from(PACE)).min(i128::from(budget) * BYTE).clamp(BYTE, burst);
        Some(Bucket { rate, burst, quantum, tokens: burst, at: now })
    }

    /// Takes over the tokens or the debt of the port's previous bucket.
    pub(super) fn inherit(&mut self, mut old: Bucket, now: Nanos) {
        old.fill(now);
        self.tokens = old.tokens.min(self.burst);
    }

    /// Bytes that may be sent now; zero while there is less than the quantum.
    pub(super) fn room(&mut self, now: Nanos) -> u64 {
        self.fill(now);
        if self.tokens < self.quantum { 0 } else { (self.tokens / BYTE) as u64 }
    }

    /// Takes tokens for bytes that were sent.
    pub(super) fn take(&mut self, bytes: u64, now: Nanos) {
        self.fill(now);
        self.tokens -= i128::from(bytes) * BYTE;
    }

    /// When [`Bucket::room`] is above zero again; never if the rate is zero.
    pub(super) fn ready_at(&self) -> Nanos {
        let missing = (self.quantum - self.tokens).max(0);
        if missing == 0 {
            return self.at;
        }
        if self.rate == 0 {
            return Nanos::NEVER;
        }
        let rate = i128::from(self.rate);
        self.at + Nanos(u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX))
    }

    fn fill(&mut self, now: Nanos) {
        let elapsed = now.since(self.at).0;
        self.at = self.at.max(now);
        self.tokens = (self.tokens + i128::from(self.rate) * i128::from(elapsed)).min(self.burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Served greedily, a bucket sends exactly its rate, and no window exceeds the bound.
        #[test]
        fn sends_its_rate_and_never_more(
            rate in 8_000u64..10_000_000_000,
            burst in 1_514u64..1_000_000,
            frames in prop::collection::vec(60u64..9_000, 50..300),
        ) {
            let share = Share { weight: 1, min_rate: 0, max_rate: Some(rate), burst };
            let mut bucket = Bucket::new(&share, 16_384, Nanos(0)).unwrap();
            let mut now = Nanos(0);
            let mut sent: Vec<(Nanos, u64)> = Vec::new();
            for frame in frames {
                if bucket.room(now) == 0 {
                    now = bucket.ready_at();
                    prop_assert!(bucket.room(now) > 0, "ready_at is exact");
                }
                bucket.take(frame, now);
                sent.push((now, frame));
            }
            for from in 0..sent.len() {
                let mut bytes = 0;
                for &(at, frame) in &sent[from..] {
                    bytes += frame;
                    let window = i128::from(at.since(sent[from].0).0);
                    let bound = i128::from(burst) * BYTE + i128::from(rate) * window + 9_000 * BYTE;
                    prop_assert!(i128::from(bytes) * BYTE <= bound);
                }
            }
            let total: u64 = sent.iter().map(|(_, frame)| frame).sum();
            let owed = i128::from(total) * BYTE - i128::from(rate) * i128::from(now.0);
            prop_assert!(owed <= i128::from(burst) * BYTE + 9_000 * BYTE && owed >= -(i128::from(rate) + 9_000 * BYTE));
        }
    }

    #[test]
    fn a_rate_of_zero_sends_its_burst_and_then_nothing() {
        let share = Share { weight: 1, min_rate: 0, max_rate: Some(0), burst: 100 };
        let mut bucket = Bucket::new(&share, 16_384, Nanos(0)).unwrap();
        assert_eq!(bucket.room(Nanos(5)), 100);
        bucket.take(100, Nanos(5));
        assert_eq!(bucket.room(Nanos(SECOND)), 0);
        assert_eq!(bucket.ready_at(), Nanos::NEVER);
    }
}
