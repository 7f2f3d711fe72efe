//! Randomness that can be replayed: everything random takes its numbers from a [`Random`], made from a seed that is
//! printed with the result. The same seed gives the same numbers, on every machine, for the same version of `rand`
//! (its `StdRng` may change between versions).

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A seeded source of random numbers.
pub struct Random(StdRng);

impl Random {
    /// The source for this seed.
    pub fn new(seed: u64) -> Random {
        Random(StdRng::seed_from_u64(seed))
    }

    /// True with this probability: never at 0 or below, always at 1 or above.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// A whole number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.random_range(0..limit.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn probabilities_of_0_and_1_are_exact() {
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| random.chance(1.0) && !random.chance(0.0)));
        assert_eq!(random.below(0), 0);
    }
}
