//! Bounds how much of this process's address space frontends may map. They may share sparse files of any size, and a
//! process that runs out of address space can map neither a neighbour's memory nor its own.

use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// The most bytes mapped for a guest's memory, counted from the first byte of each file.
pub(super) const GUEST_MOST: u64 = 1 << 40;

/// The most bytes mapped for its dirty log, counted likewise: one bit for each page below 32 TiB.
pub(super) const LOG_MOST: u64 = 1 << 30;

/// What each guest may map of its memory whatever the others map, besides its log: 32 TiB for a thousand guests.
const OWN: u64 = 32 << 30;

/// What all guests together may map beyond that: half of the address space of a process on x86-64 (47 bits,
/// `Documentation/arch/x86/x86_64/mm.rst`).
pub(super) static ALL: Budget = Budget::of(64 << 40);

/// The budget is used up. Displayed as the end of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("beyond {own} GiB for each, {used} GiB are mapped for all guests already, and {most} GiB is the most", own = OWN >> 30)]
pub(crate) struct Exhausted {
    /// GiB mapped beyond each guest's own share.
    used: u64,
    /// GiB in the budget.
    most: u64,
}

/// The bytes that may be mapped, and how many are.
pub(super) struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `most` bytes, all unused.
    pub(super) const fn of(most: u64) -> Budget {
        Budget { most, used: AtomicU64::new(0) }
    }

    /// Reserves `bytes` for a guest that has `held` bytes mapped, until the reservation is dropped. Only what exceeds
    /// the guest's own share comes out of the budget.
    ///
    /// # Errors
    /// Too little is left.
    pub(super) fn take(&'static self, bytes: u64, held: u64) -> Result<Reservation, Exhausted> {
        let beyond = bytes.saturating_sub(OWN.saturating_sub(held));
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(beyond).filter(|sum| *sum <= self.most)
        });
        match taken {
            Ok(_) => Ok(Reservation { budget: self, bytes, beyond }),
            Err(used) => Err(Exhausted { used: used >> 30, most: self.most >> 30 }),
        }
    }
}

/// A reservation from a budget, returned when dropped.
pub(super) struct Reservation {
    budget: &'static Budget,
    bytes: u64,
    /// The bytes taken from the budget.
    beyond: u64,
}

impl Reservation {
    /// The bytes reserved.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.beyond, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_returned_when_dropped() {
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
    fn a_guests_own_share_is_never_refused() {
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
