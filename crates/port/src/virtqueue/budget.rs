//! How much of this process's address space frontends may have mapped. What they share may be a sparse file of any size, and a
//! process without address space cannot map a neighbour's memory, nor its own.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes mapped for a table of a guest's memory, or for its dirty log, at most, counted from the first byte of each file.
pub const GUEST_MOST: u64 = 1 << 40;

/// For all guests together: half of what a process has on x86-64 (47 bits, `Documentation/arch/x86/x86_64/mm.rst`).
pub static ALL: Budget = Budget::of(64 << 40);

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

    /// Takes a part of it until that is dropped.
    ///
    /// # Errors
    /// The end of a sentence: there is not so much left.
    pub fn take(&'static self, bytes: u64) -> Result<Part, String> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.most)
        });
        match taken {
            Ok(_) => Ok(Part { budget: self, bytes }),
            Err(used) => {
                let [used, most] = [used, self.most].map(|bytes| bytes >> 30);
                Err(format!("{used} GiB are mapped for all guests already, and {most} GiB is the most"))
            }
        }
    }
}

/// A part of a budget, given back when dropped.
pub struct Part {
    budget: &'static Budget,
    bytes: u64,
}

impl Part {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_taken_and_given_back() {
        static BUDGET: Budget = Budget::of(100 << 30);
        let first = BUDGET.take(60 << 30).unwrap();
        let refused = BUDGET.take((40 << 30) + 1).err().unwrap();
        assert_eq!(refused, "60 GiB are mapped for all guests already, and 100 GiB is the most");
        assert!(BUDGET.take(u64::MAX).is_err(), "the sum wraps");
        let second = BUDGET.take(40 << 30).unwrap();
        drop(first);
        let third = BUDGET.take(60 << 30).unwrap();
        drop((second, third));
        assert_eq!(BUDGET.used.load(Ordering::Relaxed), 0);
    }
}
