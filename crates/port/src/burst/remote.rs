//! Frame bodies in memory that a guest granted and that is not mapped in this process.

use std::ops::Range;

/// A place in memory that a guest granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The guest's domain.
    pub domain: u16,
    /// The grant reference, which names one page.
    pub reference: u32,
    /// The offset in the page.
    pub offset: u16,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Memory of this process.
    Ours(*mut u8),
    /// A guest's granted memory.
    Guest(Place),
}

impl End {
    /// The same place, `bytes` further on.
    #[inline]
    pub(crate) fn after(self, bytes: usize) -> End {
        match self {
            End::Ours(start) => End::Ours(start.wrapping_add(bytes)),
            End::Guest(place) => End::Guest(Place { offset: place.offset + bytes as u16, ..place }),
        }
    }
}

/// A sender whose bodies are not mapped until a receiver needs their bytes. Segments are numbered in the order they
/// were added.
pub(crate) trait Remote {
    /// Where a frame is, if it was copied to this domain as a whole.
    fn whole(&self, frame: usize) -> Option<End>;

    /// Where a segment is.
    fn place(&self, segment: usize) -> End;

    /// Copies segments to where `Segment::start` points, unless they are there already. Returns the first that could
    /// not be copied; zeros are in its place.
    fn fetch(&self, segments: Range<usize>) -> Option<usize>;

    /// Notes that a segment could not be copied from where it lies.
    fn withdraw(&self, segment: usize);
}
