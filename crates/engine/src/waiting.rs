//! How long frames waited: a histogram by powers of two.

use fairlane_core::time::Nanos;
use serde::{Deserialize, Serialize};

/// Buckets of a [`Waiting`] histogram.
pub const BUCKETS: usize = 36;

/// How long frames waited: bucket `k` counts waits below 2^k ns and not below half of that.
///
/// The last bucket counts all longer waits, from 17 seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Number of waits in each bucket.
    pub buckets: Vec<u64>,
    /// Sum of all waits, in nanoseconds.
    pub sum: u64,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { buckets: vec![0; BUCKETS], sum: 0 }
    }
}

impl Waiting {
    /// Counts a wait.
    #[inline]
    pub fn record(&mut self, wait: Nanos) {
        let bucket = (u64::BITS - wait.0.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum += wait.0;
    }

    /// Adds the waits of another histogram.
    pub fn add(&mut self, other: &Waiting) {
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += more;
        }
        self.sum += other.sum;
    }

    /// The waits that are not in an earlier state of the same histogram.
    pub fn since(&self, earlier: &Waiting) -> Waiting {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        Waiting {
            buckets: pairs.map(|(now, before)| now.saturating_sub(*before)).collect(),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }

    /// The quantile (0 to 1) of the waits, in nanoseconds, rounded up to the bound of its bucket; none if there were no waits.
    /// The true quantile is at least half of it. For the last bucket, which has no bound, its lower end.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let all: u64 = self.buckets.iter().sum();
        let last = self.buckets.len().checked_sub(2)?;
        let needed = (all as f64 * quantile).ceil().max(1.0);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            below as f64 >= needed
        })?;
        Some(1 << bucket.min(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_waits_there_is_no_quantile() {
        assert_eq!(Waiting::default().quantile(0.5), None);
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_twice_the_true_one(
            mut waits in prop::collection::vec(0u64..1 << 34, 1..50),
            quantile in 0.0..=1.0f64,
        ) {
            let mut waiting = Waiting::default();
            waits.iter().for_each(|wait| waiting.record(Nanos(*wait)));
            waits.sort_unstable();
            let rank = ((waits.len() as f64 * quantile).ceil() as usize).max(1);
            let (exact, bound) = (waits[rank - 1], waiting.quantile(quantile).unwrap());
            prop_assert!(exact < bound && bound <= (2 * exact).max(1), "{exact} {bound}");
        }
    }
}
