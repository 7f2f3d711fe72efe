//! Memory that is taken into use piece by piece. What was not yet is not so much as read: it may not be allocated.

use std::ops::{Deref, DerefMut, Index, IndexMut};

/// How much of its memory early ack uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Flows, from the first on.
    pub flows: usize,
    /// Blocks, from the first on.
    pub blocks: usize,
}

impl Extent {
    /// All that there is.
    pub const ALL: Extent = Extent { flows: usize::MAX, blocks: usize::MAX };
}

/// The part of a slice that is in use.
pub struct Part<'m, T> {
    all: &'m mut [T],
    len: usize,
}

impl<'m, T> Part<'m, T> {
    /// The first `len`, or all there are.
    pub fn new(all: &'m mut [T], len: usize) -> Part<'m, T> {
        let len = len.min(all.len());
        Part { all, len }
    }

    /// How many can be in use.
    pub fn most(&self) -> usize {
        self.all.len()
    }

    /// Takes more into use, up to `len` in all. Returns how many there were before.
    pub fn grow(&mut self, len: usize) -> usize {
        let before = self.len;
        self.len = len.clamp(before, self.all.len());
        before
    }
}

/// One that is in use, without looking at how many are: who has its number knows.
impl<T> Index<usize> for Part<'_, T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        debug_assert!(at < self.len);
        &self.all[at]
    }
}

impl<T> IndexMut<usize> for Part<'_, T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        debug_assert!(at < self.len);
        &mut self.all[at]
    }
}

impl<T> Deref for Part<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.all[..self.len]
    }
}

impl<T> DerefMut for Part<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[..self.len]
    }
}
