//! The memory that a burst's frames are copied to: the front of each frame in one call; the bodies of large ones on
//! demand.
//!
//! A frame of up to half a page is copied as a whole, because a page that is copied from twice is also looked up twice.
//! From here it is copied once more, to another Xen guest or any other receiver. Of a larger frame only the head is
//! copied. A receiver that can use grants itself (another Xen guest) has the hypervisor copy the body straight to its
//! own pages; any other asks for the bytes, and they are copied here once, all that it asks for in one call. A frame
//! whose bytes cannot be copied is dropped, and if its sender revoked them, the sender's port is disabled.

use super::host::{GrantCopy, Host, PAGE, Packing, SelfGranted};
use crate::burst::{BURST, End, HEAD, Place, Remote, SEGMENTS};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the largest frame that is copied as a whole: two of them always fit in a page.
const WHOLE: usize = PAGE / 2;

/// Pages for the fronts.
const FRONTS: usize = BURST / 2;

/// Segments of a burst whose copies go to self-granted memory.
const SELF_GRANTED: usize = 48;

/// The first bytes of a frame.
struct Front {
    /// Offset in the buffer.
    at: usize,
    /// Whether it is the whole frame.
    whole: bool,
}

/// A segment of a frame after its head.
#[derive(Clone, Copy)]
struct Segment {
    /// Where it is in the guest; none if it was copied with the front.
    from: Option<Place>,
    len: u16,
    /// Offset in the buffer, of the bytes or of the space for them.
    at: usize,
}

/// The frames of a burst.
pub(super) struct BounceBuffer {
    host: Arc<dyn Host>,
    /// The pages of the fronts, and one for each of the first segments.
    granted: Option<SelfGranted>,
    /// One page for each segment that is not in self-granted memory, and one more for alignment.
    memory: Box<[UnsafeCell<u8>]>,
    fronts: Vec<Front>,
    packing: Packing,
    segments: Vec<Segment>,
    /// The segments that were fetched.
    fetched: RefCell<Range<usize>>,
    copies: RefCell<Vec<GrantCopy>>,
    /// The grant that turned out to be revoked.
    withdrawn: Cell<Option<u32>>,
}

impl BounceBuffer {
    /// An empty buffer. The system allocates its memory on first use.
    pub(super) fn new(host: Arc<dyn Host>) -> BounceBuffer {
        let memory =
            Box::into_raw(vec![0u8; (FRONTS + SEGMENTS + 1) * PAGE].into_boxed_slice()) as *mut [UnsafeCell<u8>];
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box is ours alone.
        let memory = unsafe { Box::from_raw(memory) };
        let (fronts, segments) = (Vec::with_capacity(BURST), Vec::with_capacity(SEGMENTS));
        let copies = RefCell::new(Vec::with_capacity(SEGMENTS));
        let granted = host.self_grant(FRONTS + SELF_GRANTED);
        let (packing, fetched, withdrawn) = Default::default();
        BounceBuffer { host, granted, memory, fronts, packing, segments, fetched, copies, withdrawn }
    }

    /// Discards the last burst.
    pub(super) fn clear(&mut self) {
        self.fronts.clear();
        self.packing = Packing::default();
        self.segments.clear();
        *self.fetched.get_mut() = 0..0;
    }

    /// Discards all but the first frames and segments.
    pub(super) fn truncate(&mut self, frames: usize, segments: usize) {
        self.fronts.truncate(frames);
        self.segments.truncate(segments);
    }

    /// Reserves space for the front of the next frame, of `len` bytes: returns where to copy it, and how many bytes.
    pub(super) fn front(&mut self, len: usize) -> (End, usize) {
        let whole = len <= WHOLE;
        let bytes = if whole { len } else { HEAD };
        let at = self.packing.place(bytes);
        self.fronts.push(Front { at, whole });
        (self.end(at), bytes)
    }

    /// The first byte of a frame's front. [`HEAD`] bytes are readable from there, of which only the frame's own are
    /// valid.
    #[inline]
    pub(super) fn head(&self, frame: usize) -> *const u8 {
        self.start(self.fronts[frame].at)
    }

    /// Adds the `bytes` bytes after the head in the last front as a segment, and returns where they are.
    pub(super) fn push_rest(&mut self, bytes: usize) -> *const u8 {
        let at = self.fronts.last().map_or(0, |front| front.at) + HEAD;
        self.segments.push(Segment { from: None, len: bytes as u16, at });
        self.start(at)
    }

    /// Adds a segment in the guest's memory, and returns where its bytes will be once fetched: at the same offset in a
    /// page as in the guest, as such copies are fastest.
    #[inline]
    pub(super) fn push(&mut self, place: Place, len: u16) -> *const u8 {
        let at = (FRONTS + self.segments.len()) * PAGE + usize::from(place.offset);
        self.segments.push(Segment { from: Some(place), len, at });
        self.start(at)
    }

    /// The revoked grant that a receiver ran into.
    pub(super) fn withdrawn(&self) -> Option<u32> {
        self.withdrawn.get()
    }

    /// The address of an offset in the buffer.
    #[inline]
    fn start(&self, at: usize) -> *mut u8 {
        if let Some(granted) = self.granted.as_ref().filter(|granted| at / PAGE < granted.pages()) {
            return granted.start(0).wrapping_add(at);
        }
        let first = self.memory.as_ptr().cast::<u8>();
        self.memory[first.align_offset(PAGE) + at..].as_ptr() as *mut u8
    }

    /// The same as an end of a copy.
    #[inline]
    fn end(&self, at: usize) -> End {
        match &self.granted {
            Some(granted) if at / PAGE < granted.pages() => End::Guest(granted.place(at / PAGE)).after(at % PAGE),
            _ => End::Ours(self.start(at)),
        }
    }
}

impl Remote for BounceBuffer {
    fn whole(&self, frame: usize) -> Option<End> {
        let front = &self.fronts[frame];
        front.whole.then(|| self.end(front.at))
    }

    fn place(&self, segment: usize) -> End {
        let Segment { from, at, .. } = self.segments[segment];
        from.map_or_else(|| self.end(at), End::Guest)
    }

    fn withdraw(&self, segment: usize) {
        // A segment of a front is in our own memory, and cannot be revoked.
        if let Some(Segment { from: Some(place), .. }) = self.segments.get(segment) {
            self.withdrawn.set(Some(place.reference));
        }
    }

    fn fetch(&self, segments: Range<usize>) -> Option<usize> {
        let mut fetched = self.fetched.borrow_mut();
        if segments.is_empty() || (fetched.start <= segments.start && segments.end <= fetched.end) {
            return None;
        }
        let mut lost = None;
        let missing = || segments.clone().filter_map(|segment| Some((segment, self.segments[segment].from?)));
        let mut copies = self.copies.borrow_mut();
        copies.clear();
        copies.extend(missing().map(|(segment, from)| {
            let Segment { len, at, .. } = self.segments[segment];
            GrantCopy::new(End::Guest(from), self.end(at), len)
        }));
        // SAFETY: each segment has a page to itself and is no longer than the rest of the page after its offset.
        unsafe { self.host.copy(&mut copies) };
        for (copy, (segment, _)) in copies.iter().zip(missing()).filter(|(copy, _)| !copy.done()) {
            if copy.refused() {
                self.withdraw(segment);
            }
            // SAFETY: as above.
            unsafe { self.start(self.segments[segment].at).write_bytes(0, copy.len().into()) };
            lost = lost.or(Some(segment));
        }
        *fetched = segments.start..lost.unwrap_or(segments.end);
        lost
    }
}
