//! Where a burst's frames come to be seen: their fronts at once, by one call; the bodies of large ones when someone needs them.
//!
//! A frame of up to half a page comes as a whole, as a page that is copied from twice is looked up twice. From here it goes to
//! another Xen guest by one more copy, or to any other receiver. Of a larger frame only the head comes. A receiver that can name
//! grants itself (another Xen guest) has the hypervisor copy the body from where it is to its own pages; every other asks for
//! the bytes, and they are copied here once, all it asks for in one call. A frame whose bytes cannot be had goes to nobody:
//! it is dropped, and where its sender took them away, that one's port is disabled.

use super::host::{Host, Lent, PAGE, Packing, Segment};
use crate::burst::{BURST, End, HEAD, PIECES, Place, Remote};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the largest frame that comes as a whole: two of them always find room in a page.
const WHOLE: usize = PAGE / 2;

/// Pages for fronts.
const FRONTS: usize = BURST / 2;

/// Pieces of a burst that land in memory which is named by grants.
const LENT: usize = 48;

/// The first bytes of a frame.
struct Front {
    /// Where they are, counted from the landing's start.
    at: usize,
    /// Whether that is all of the frame.
    whole: bool,
}

/// A piece of a frame behind its head.
#[derive(Clone, Copy)]
struct Piece {
    /// Where it is in the guest; none if it came with the front.
    from: Option<Place>,
    len: u16,
    /// Where it is or will be once it landed, counted from the landing's start.
    at: usize,
}

/// Where a burst's frames are.
pub struct Landing {
    host: Arc<dyn Host>,
    /// The pages of fronts, and one for each of the first pieces.
    lent: Option<Lent>,
    /// A page for each that is not lent, and one more as the first need not begin where a page does.
    memory: Box<[UnsafeCell<u8>]>,
    fronts: Vec<Front>,
    packing: Packing,
    pieces: Vec<Piece>,
    /// Pieces that are here.
    landed: RefCell<Range<usize>>,
    segments: RefCell<Vec<Segment>>,
    /// The grant that did not hold.
    withdrawn: Cell<Option<u32>>,
}

impl Landing {
    /// One for no burst yet. The memory is the system's until something lands there.
    pub fn new(host: Arc<dyn Host>) -> Landing {
        let memory =
            Box::into_raw(vec![0u8; (FRONTS + PIECES + 1) * PAGE].into_boxed_slice()) as *mut [UnsafeCell<u8>];
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box is ours alone.
        let memory = unsafe { Box::from_raw(memory) };
        let (fronts, pieces) = (Vec::with_capacity(BURST), Vec::with_capacity(PIECES));
        let segments = RefCell::new(Vec::with_capacity(PIECES));
        let lent = host.lend(FRONTS + LENT);
        let (packing, landed, withdrawn) = Default::default();
        Landing { host, lent, memory, fronts, packing, pieces, landed, segments, withdrawn }
    }

    /// Forgets the last burst.
    pub fn clear(&mut self) {
        self.fronts.clear();
        self.packing = Packing::default();
        self.pieces.clear();
        *self.landed.get_mut() = 0..0;
    }

    /// Forgets what is behind so many frames and pieces.
    pub fn truncate(&mut self, frames: usize, pieces: usize) {
        self.fronts.truncate(frames);
        self.pieces.truncate(pieces);
    }

    /// Makes room for the front of the next frame, which has `len` bytes: where it is to be copied to, and how much of it.
    pub fn front(&mut self, len: usize) -> (End, usize) {
        let whole = len <= WHOLE;
        let bytes = if whole { len } else { HEAD };
        let at = self.packing.place(bytes);
        self.fronts.push(Front { at, whole });
        (self.end(at), bytes)
    }

    /// The first byte of a frame's front. [`HEAD`] bytes can be read from there, of which as many mean something as it has.
    #[inline]
    pub fn head(&self, frame: usize) -> *const u8 {
        self.start(self.fronts[frame].at)
    }

    /// Adds what is behind the head of the last front, which has so many bytes, and answers where it is.
    pub fn push_rest(&mut self, bytes: usize) -> *const u8 {
        let at = self.fronts.last().map_or(0, |front| front.at) + HEAD;
        self.pieces.push(Piece { from: None, len: bytes as u16, at });
        self.start(at)
    }

    /// Adds a piece of a guest's, and answers where it will be once it landed: as far from its page's start as it is in the
    /// guest, as that copies best.
    #[inline]
    pub fn push(&mut self, place: Place, len: u16) -> *const u8 {
        let at = (FRONTS + self.pieces.len()) * PAGE + usize::from(place.offset);
        self.pieces.push(Piece { from: Some(place), len, at });
        self.start(at)
    }

    /// The grant that did not hold when a receiver wanted its bytes.
    pub fn withdrawn(&self) -> Option<u32> {
        self.withdrawn.get()
    }

    /// A place here.
    #[inline]
    fn start(&self, at: usize) -> *mut u8 {
        if let Some(lent) = self.lent.as_ref().filter(|lent| at / PAGE < lent.pages()) {
            return lent.start(0).wrapping_add(at);
        }
        let first = self.memory.as_ptr().cast::<u8>();
        self.memory[first.align_offset(PAGE) + at..].as_ptr() as *mut u8
    }

    /// The same, for the hypervisor.
    #[inline]
    fn end(&self, at: usize) -> End {
        match &self.lent {
            Some(lent) if at / PAGE < lent.pages() => End::Guest(lent.place(at / PAGE)).after(at % PAGE),
            _ => End::Ours(self.start(at)),
        }
    }
}

impl Remote for Landing {
    fn whole(&self, frame: usize) -> Option<End> {
        let front = &self.fronts[frame];
        front.whole.then(|| self.end(front.at))
    }

    fn place(&self, piece: usize) -> End {
        let Piece { from, at, .. } = self.pieces[piece];
        from.map_or_else(|| self.end(at), End::Guest)
    }

    fn withdraw(&self, piece: usize) {
        // What came with a front, which is ours, has no number or no place.
        if let Some(Piece { from: Some(place), .. }) = self.pieces.get(piece) {
            self.withdrawn.set(Some(place.reference));
        }
    }

    fn fetch(&self, pieces: Range<usize>) -> Option<usize> {
        let mut landed = self.landed.borrow_mut();
        if pieces.is_empty() || (landed.start <= pieces.start && pieces.end <= landed.end) {
            return None;
        }
        let mut lost = None;
        let missing = || pieces.clone().filter_map(|piece| Some((piece, self.pieces[piece].from?)));
        let mut segments = self.segments.borrow_mut();
        segments.clear();
        segments.extend(missing().map(|(piece, from)| {
            let Piece { len, at, .. } = self.pieces[piece];
            Segment::new(End::Guest(from), self.end(at), len)
        }));
        // SAFETY: each piece has a page to itself, of which it takes no more than is behind its offset.
        unsafe { self.host.copy(&mut segments) };
        for (segment, (piece, _)) in segments.iter().zip(missing()).filter(|(segment, _)| !segment.done()) {
            if segment.refused() {
                self.withdraw(piece);
            }
            // SAFETY: as above.
            unsafe { self.start(self.pieces[piece].at).write_bytes(0, segment.len().into()) };
            lost = lost.or(Some(piece));
        }
        *landed = pieces.start..lost.unwrap_or(pieces.end);
        lost
    }
}
