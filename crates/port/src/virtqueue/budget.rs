//! How much of this process's address space frontends may have mapped. What they share may be a sparse file of any size, and a
//! process without address space cannot map a neighbour's memory, nor its own.

use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Bytes mapped for a guest's memory at most, counted from the first byte of each file.
pub const GUEST_MOST: u64 = 1 << 40;

/// For its dirty log, counted so too: a bit for each page below 32 TiB.
pub const LOG_MOST: u64 = 1 << 30;

/// What each guest may have mapped of its memory whatever others have, beside its log: 32 TiB for a thousand.
const OWN: u64 = 32 << 30;

/// What all guests together may have beyond their own: half of what a process has on x86-64 (47 bits,
/// `Documentation/arch/x86/x86_64/mm.rst`).
pub static ALL: Budget = Budget::of(64 << 40);

/// There is not so much left of a budget. The end of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("beyond {own} GiB for each, {used} GiB are mapped for all guests already, and {most} GiB is the most", own = OWN >> 30)]
pub struct Exhausted {
    /// GiB that are mapped beyond guests' own.
    used: u64,
    /// GiB of the budget.
    most: u64,
}

/// Bytes that may be mapped, and how many are.
pub struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    /// Nothing of it is used yet.
    pub const fn of(most: u64) -> Budget {
        Budget { most, used: AtomicU64::new(0) }
    }

    /// Lets a guest that has `held` bytes mapped have more, until that is dropped. Only what goes beyond its own is taken from
    /// the budget.
    ///
    /// # Errors
    /// There is not so much left.
    pub fn take(&'static self, bytes: u64, held: u64) -> Result<Part, Exhausted> {
        let beyond = bytes.saturating_sub(OWN.saturating_sub(held));
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(beyond).filter(|sum| *sum <= self.most)
        });
        match taken {
            Ok(_) => Ok(Part { budget: self, bytes, beyond }),
            Err(used) => Err(Exhausted { used: used >> 30, most: self.most >> 30 }),
        }
    }
}

/// A part of a budget, given back when dropped.
pub struct Part {
    budget: &'static Budget,
    bytes: u64,
    /// What of it was taken from the budget.
    beyond: u64,
}

impl Part {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.beyond, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_and_given_back() {
        static BUDGET: Budget = Budget::of(100 << 30);
        let first = BUDGET.take(60 << 30, OWN).unwrap();
        let refused = BUDGET.take((40 << 30) + 1, OWN).err().unwrap();
        let why = "beyond 32 GiB for each, 60 GiB are mapped for all guests already, and 100 GiB is the most";
        assert_eq!(refused.to_string(), why);
        assert!(BUDGET.take(u64::MAX, OWN).is_err(), "the sum wraps");
        let second = BUDGET.take(40 << 30, OWN).unwrap();
        drop(first);
        let third = BUDGET.take(60 << 30, OWN).unwrap();
        drop((second, third));
        assert_eq!(BUDGET.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_a_guests_own_is_never_refused() {
        static BUDGET: Budget = Budget::of(1 << 40);
        let _all = BUDGET.take(1 << 40, OWN).unwrap();
        let own = BUDGET.take(20 << 30, 0).unwrap();
        assert_eq!((own.bytes(), own.beyond), (20 << 30, 0));
        let rest = BUDGET.take(12 << 30, 20 << 30).unwrap();
        assert_eq!(rest.beyond, 0);
        assert!(BUDGET.take(1, 32 << 30).is_err());
        assert!(BUDGET.take(13 << 30, 20 << 30).is_err());
    }
}
