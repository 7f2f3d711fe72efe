//! Memory that is put into use gradually. The rest is not even read, as it may not be allocated.

use std::ops::{Deref, DerefMut, Index, IndexMut};

/// How much of its memory early ack uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of flows, from the first.
    pub flows: usize,
    /// Number of blocks, from the first.
    pub blocks: usize,
}

impl Extent {
    /// All of the memory.
    pub const ALL: Extent = Extent { flows: usize::MAX, blocks: usize::MAX };
}

/// The first part of a slice, which is in use.
pub(super) struct InUse<'m, T> {
    all: &'m mut [T],
    len: usize,
}

impl<'m, T> InUse<'m, T> {
    /// Uses the first `len` elements, or all if there are fewer.
    pub(super) fn new(all: &'m mut [T], len: usize) -> InUse<'m, T> {
        let len = len.min(all.len());
        InUse { all, len }
    }

    /// The number of elements that can be put into use.
    pub(super) fn capacity(&self) -> usize {
        self.all.len()
    }

    /// Puts more elements into use, up to `len` in total. Returns the number before.
    pub(super) fn grow(&mut self, len: usize) -> usize {
        let before = self.len;
        self.len = len.clamp(before, self.all.len());
        before
    }
}

/// Access to an element without a check against the length in use: whoever has a number got it for an element in use.
impl<T> Index<usize> for InUse<'_, T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        debug_assert!(at < self.len);
        &self.all[at]
    }
}

impl<T> IndexMut<usize> for InUse<'_, T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        debug_assert!(at < self.len);
        &mut self.all[at]
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.all[..self.len]
    }
}

impl<T> DerefMut for InUse<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[..self.len]
    }
}
