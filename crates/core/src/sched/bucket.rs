//! A token bucket in exact integer arithmetic, for bits or frames.
//!
//! A token is 10^-9 bit or frame, so that a nanosecond adds exactly `rate` tokens and nothing is rounded. A frame is
//! indivisible: when it takes more tokens than there are, the rest is a debt. So in any window of length T a port that
//! is served only while it has tokens sends at most `burst + rate * T` and the overshoot of one frame; in the long run
//! exactly `rate` (Turner 1986; RFC 2697 counts the same way).

use super::{BUDGET_BYTES, BUDGET_FRAMES, Share};
use crate::time::{Nanos, SECOND};

/// Tokens for one byte.
const BYTE: i128 = 8 * SECOND as i128;

/// Tokens for one frame.
const FRAME: i128 = SECOND as i128;

/// A throttled port waits for as many tokens as its rate adds in this time, so that it is not woken for every byte.
const PACE: u64 = SECOND / 1000;

/// A bucket of bytes or frames that is filled at a rate, and holds as much as its burst after an idle time.
pub struct Bucket {
    /// Tokens for one byte or one frame.
    unit: i128,
    rate: u64,
    burst: i128,
    /// A throttled port is served again when it has this many tokens.
    quantum: i128,
    /// Negative while the port is in debt.
    tokens: i128,
    at: Nanos,
}

impl Bucket {
    /// A full bucket of bytes for the share's `max_rate`, if it has one.
    pub fn of_bytes(share: &Share, now: Nanos) -> Option<Bucket> {
        share.max_rate.map(|rate| Bucket::new(BYTE, rate, share.burst, BUDGET_BYTES, now))
    }

    /// A full bucket of frames for the share's `max_frames`, if it has one.
    pub(super) fn of_frames(share: &Share, now: Nanos) -> Option<Bucket> {
        share.max_frames.map(|rate| Bucket::new(FRAME, rate, share.frame_burst, BUDGET_FRAMES.into(), now))
    }

    /// A throttled port is served again when it has tokens for `budget`, for a millisecond of its rate or for its burst,
    /// whichever is least.
    fn new(unit: i128, rate: u64, burst: u64, budget: u64, now: Nanos) -> Bucket {
        let burst = i128::from(burst.max(1)) * unit;
        let quantum = (i128::from(rate) * i128::from(PACE)).min(i128::from(budget) * unit).clamp(unit, burst);
        Bucket { unit, rate, burst, quantum, tokens: burst, at: now }
    }

    /// Puts a bucket in the place of another one of the same unit, with that one's tokens or debt: its burst is not allowed again.
    pub fn replace(place: &mut Option<Bucket>, mut new: Option<Bucket>, now: Nanos) {
        if let (Some(new), Some(old)) = (&mut new, &mut *place) {
            old.fill(now);
            new.tokens = old.tokens.min(new.burst);
        }
        *place = new;
    }

    /// Bytes or frames that may be sent now; zero while there are less than the quantum.
    pub fn room(&mut self, now: Nanos) -> u64 {
        self.fill(now);
        if self.tokens < self.quantum { 0 } else { (self.tokens / self.unit) as u64 }
    }

    /// Takes tokens for bytes or frames that were sent.
    pub fn take(&mut self, amount: u64, now: Nanos) {
        self.fill(now);
        self.tokens -= i128::from(amount) * self.unit;
    }

    /// When [`Bucket::room`] is above zero again; never if the rate is zero.
    pub fn ready_at(&self) -> Nanos {
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

    /// Served greedily, a bucket sends exactly its rate, and no window exceeds the bound. `sizes` are what frames take.
    fn check(mut bucket: Bucket, sizes: &[u64]) -> Result<(), TestCaseError> {
        let Bucket { unit, rate, burst, .. } = bucket;
        let most = i128::from(*sizes.iter().max().unwrap()) * unit;
        let mut now = Nanos(0);
        let mut sent: Vec<(Nanos, u64)> = Vec::new();
        for &size in sizes {
            if bucket.room(now) == 0 {
                now = bucket.ready_at();
                prop_assert!(bucket.room(now) > 0, "ready_at is exact");
            }
            bucket.take(size, now);
            sent.push((now, size));
        }
        for from in 0..sent.len() {
            let mut amount = 0;
            for &(at, size) in &sent[from..] {
                amount += size;
                let window = i128::from(at.since(sent[from].0).0);
                prop_assert!(i128::from(amount) * unit <= burst + i128::from(rate) * window + most);
            }
        }
        let total: u64 = sent.iter().map(|(_, size)| size).sum();
        let owed = i128::from(total) * unit - i128::from(rate) * i128::from(now.0);
        prop_assert!(owed <= burst + most && owed >= -(i128::from(rate) + most));
        Ok(())
    }

    proptest! {
        #[test]
        fn sends_its_rate_and_never_more(
            rate in 8_000u64..10_000_000_000,
            burst in 1_514u64..1_000_000,
            frames in prop::collection::vec(60u64..9_000, 50..300),
        ) {
            let share = Share { max_rate: Some(rate), burst, ..Share::of_weight(1) };
            check(Bucket::of_bytes(&share, Nanos(0)).unwrap(), &frames)?;
        }

        #[test]
        fn sends_its_frames_and_never_more(
            rate in 1u64..100_000_000,
            burst in 1u64..10_000,
            segments in prop::collection::vec(1u64..45, 50..300),
        ) {
            let share = Share { max_frames: Some(rate), frame_burst: burst, ..Share::of_weight(1) };
            check(Bucket::of_frames(&share, Nanos(0)).unwrap(), &segments)?;
        }
    }

    #[test]
    fn a_rate_of_zero_sends_its_burst_and_then_nothing() {
        let share = Share { max_rate: Some(0), burst: 100, ..Share::of_weight(1) };
        let mut bucket = Bucket::of_bytes(&share, Nanos(0)).unwrap();
        assert_eq!(bucket.room(Nanos(5)), 100);
        bucket.take(100, Nanos(5));
        assert_eq!(bucket.room(Nanos(SECOND)), 0);
        assert_eq!(bucket.ready_at(), Nanos::NEVER);
    }
}
