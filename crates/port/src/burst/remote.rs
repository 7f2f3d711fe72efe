//! Bodies that are elsewhere: in memory that a guest granted and that is not mapped here.

use std::ops::Range;

/// A place in memory that a guest granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Whose memory.
    pub domain: u16,
    /// The budget reference, which is one page.
    pub reference: u32,
    /// Where in the page.
    pub offset: u16,
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Memory of this process.
    Ours(*mut u8),
    /// A guest's.
    Guest(Place),
}

impl End {
    /// The same, some bytes further.
    #[inline]
    pub(crate) fn after(self, bytes: usize) -> End {
        match self {
            End::Ours(start) => End::Ours(start.wrapping_add(bytes)),
            End::Guest(place) => End::Guest(Place { offset: place.offset + bytes as u16, ..place }),
        }
    }
}

/// A sender whose bodies are elsewhere until someone needs their bytes. Pieces are numbered as they were added.
pub(crate) trait Remote {
    /// Where a frame is, if it is in one place and has come here.
    fn whole(&self, frame: usize) -> Option<End>;

    /// Where a piece is.
    fn place(&self, piece: usize) -> End;

    /// Brings pieces to where [`Piece::start`] points, those that are not there yet. Answers the first that could not be brought: zeros
    /// are in its place.
    fn fetch(&self, pieces: Range<usize>) -> Option<usize>;

    /// Notes that a piece could not be copied from where it is.
    fn withdraw(&self, piece: usize);
}
