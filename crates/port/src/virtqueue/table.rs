//! Descriptors in a table in guest memory: a split queue's own, or an indirect one of either format (virtio 1.2,
//! sections 2.7.5.3 and 2.8.7).

use super::violation::Violation;
use crate::access::{self, Word, Words};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Size of a descriptor of either format (`struct virtq_desc`, `struct pvirtq_desc`) in words of 64 bits, and in bytes.
pub(super) const DESCRIPTOR: usize = 2;
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// A table of descriptors.
pub(super) struct Table<A: Words> {
    start: *const u8,
    /// The index of the last descriptor.
    pub last: u32,
    words: PhantomData<A>,
}

impl<A: Words> Table<A> {
    /// A table whose last descriptor has the index `last`.
    ///
    /// # Safety
    /// `last + 1` descriptors from `start` on are readable while the table lives. The queue's own table is aligned to
    /// its words; an indirect one may be at any address.
    #[inline(always)]
    pub(super) unsafe fn over(start: *const u8, last: u32) -> Table<A> {
        Table { start, last, words: PhantomData }
    }

    /// Checks an index that the driver wrote.
    ///
    /// # Errors
    /// It is outside of the table.
    #[inline(always)]
    pub(super) fn find(&self, next: u16) -> Result<u32, Violation> {
        let index = u32::from(next);
        if index <= self.last { Ok(index) } else { Err(Violation::Next { next, entries: self.last + 1 }) }
    }

    /// Reads the words of a descriptor once: the driver may write to it meanwhile, and only the copy is used.
    ///
    /// # Safety
    /// The table has more than `index` descriptors.
    #[inline(always)]
    pub(super) unsafe fn read(&self, index: u32) -> [u64; DESCRIPTOR] {
        let words = self.start.cast::<A::Long>();
        if words.is_aligned() {
            // SAFETY: both words are within the table, and aligned.
            return unsafe {
                let start = words.add(DESCRIPTOR * index as usize);
                [(*start).load(Ordering::Relaxed), (*start.add(1)).load(Ordering::Relaxed)]
            };
        }
        // SAFETY: as above, and bytes are always aligned.
        unsafe { unaligned(self.start.add(DESCRIPTOR_BYTES * index as usize)) }
    }
}

/// Reads a descriptor at any address.
///
/// # Safety
/// Its bytes are readable.
#[cold]
unsafe fn unaligned(start: *const u8) -> [u64; DESCRIPTOR] {
    let mut words = [0; DESCRIPTOR];
    // SAFETY: the caller's; the words have as many bytes.
    unsafe { access::copy(start, words.as_mut_ptr().cast(), DESCRIPTOR_BYTES) };
    access::copied();
    words
}
