//! Bodies of a burst that lie in granted memory, and a place for them here, for receivers that need the bytes.
//!
//! A receiver that can name grants itself (another Xen guest) has the hypervisor copy from there to its own; every other
//! asks for the bytes, and they are copied here once, all it asks for in one call. What a guest takes away meanwhile reads
//! as zeros, and its port is disabled for that.

use super::host::{End, Host, Lent, PAGE, Place, Segment};
use crate::burst::{BURST, HEAD, PIECES, Remote};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ops::Range;
use std::sync::Arc;

/// Pieces of a burst that land in memory which is named by grants: those of most bursts.
const LENT: usize = 64;

const _: () = assert!(BURST * HEAD <= PAGE);

/// Where a burst's pieces are.
pub struct Landing {
    host: Arc<dyn Host>,
    /// A page each for the first pieces, and one for heads.
    lent: Option<Lent>,
    /// A page a piece, and one more as the first need not begin where a page does.
    memory: Box<[UnsafeCell<u8>]>,
    /// Each piece: where it is and how long.
    pieces: Vec<(Place, u16)>,
    /// Pieces that are here.
    landed: RefCell<Range<usize>>,
    segments: RefCell<Vec<Segment>>,
    /// The grant that did not hold.
    withdrawn: Cell<Option<u32>>,
}

impl Landing {
    /// One for the pieces of no burst yet. The memory is the system's until a piece lands.
    pub fn new(host: Arc<dyn Host>) -> Landing {
        let memory = Box::into_raw(vec![0u8; (PIECES + 1) * PAGE].into_boxed_slice()) as *mut [UnsafeCell<u8>];
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box is ours alone.
        let memory = unsafe { Box::from_raw(memory) };
        let (pieces, segments) = (Vec::with_capacity(PIECES), RefCell::new(Vec::with_capacity(PIECES)));
        let lent = host.lend(LENT + 1).filter(|lent| lent.pages() > LENT);
        Landing { host, lent, memory, pieces, landed: RefCell::new(0..0), segments, withdrawn: Cell::new(None) }
    }

    /// Forgets the last burst.
    pub fn clear(&mut self) {
        self.pieces.clear();
        *self.landed.get_mut() = 0..0;
    }

    /// Forgets the pieces from this one on.
    pub fn truncate(&mut self, pieces: usize) {
        self.pieces.truncate(pieces);
    }

    /// Adds a piece, and answers where it will be once it landed.
    #[inline]
    pub fn push(&mut self, place: Place, len: u16) -> *const u8 {
        self.pieces.push((place, len));
        self.start(self.pieces.len() - 1)
    }

    /// The grant that did not hold when a receiver wanted its bytes.
    pub fn withdrawn(&self) -> Option<u32> {
        self.withdrawn.get()
    }

    /// Where the heads of a burst can be copied to by a grant, before they go where they belong: a page.
    pub fn heads(&self) -> Option<(*const u8, Place)> {
        self.lent.as_ref().map(|lent| (lent.start(LENT).cast_const(), lent.place(LENT)))
    }

    /// As [`Landing::start`], for the hypervisor.
    fn end(&self, piece: usize) -> End {
        match &self.lent {
            Some(lent) if piece < LENT => End::Guest(lent.place(piece)).after(self.pieces[piece].0.offset.into()),
            _ => End::Ours(self.start(piece)),
        }
    }

    /// Where a piece lands: as far from its page's start as it is in the guest, as that copies best.
    fn start(&self, piece: usize) -> *mut u8 {
        if let Some(lent) = self.lent.as_ref().filter(|_| piece < LENT) {
            return lent.start(piece).wrapping_add(self.pieces[piece].0.offset.into());
        }
        let first = self.memory.as_ptr().cast::<u8>();
        let aligned = first.align_offset(PAGE);
        self.memory[aligned + piece * PAGE + usize::from(self.pieces[piece].0.offset)..].as_ptr() as *mut u8
    }
}

impl Remote for Landing {
    fn place(&self, piece: usize) -> Place {
        self.pieces[piece].0
    }

    fn withdraw(&self, piece: usize) {
        self.withdrawn.set(Some(self.pieces[piece].0.reference));
    }

    fn fetch(&self, pieces: Range<usize>) {
        let mut landed = self.landed.borrow_mut();
        if pieces.is_empty() || (landed.start <= pieces.start && pieces.end <= landed.end) {
            return;
        }
        *landed = pieces.clone();
        let mut segments = self.segments.borrow_mut();
        segments.clear();
        segments.extend(pieces.clone().map(|piece| {
            let (place, len) = self.pieces[piece];
            Segment::new(End::Guest(place), self.end(piece), len)
        }));
        // SAFETY: each piece has a page of `memory` to itself, of which it takes no more than is behind its offset.
        unsafe { self.host.copy(&mut segments) };
        for (segment, piece) in segments.iter().zip(pieces).filter(|(segment, _)| !segment.done()) {
            self.withdraw(piece);
            // SAFETY: as above.
            unsafe { self.start(piece).write_bytes(0, segment.len().into()) };
        }
    }
}
