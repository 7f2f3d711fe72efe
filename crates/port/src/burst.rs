//! A burst of frames on its way from one port to another: heads are copied once and checked, bodies stay where they
//! are.
//!
//! A guest may change its memory at any time. So the first [`HEAD`] bytes of each frame are copied here once, and all
//! decisions, and the receiver, see that copy. Only bytes that no decision depends on are read from the sender's
//! memory: once, straight into the receiver's.
//!
//! Where the sender's memory is not mapped in this process (a Xen guest's grants), bodies belong to a [`Remote`]. A
//! receiver that can address such memory copies from there ([`Batch::whole`], [`Frame::segments`]); any other has the
//! bytes fetched first, by asking for them.

mod remote;

use crate::access;
use crate::refusal::Refusal;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
pub(crate) use remote::Remote;
pub use remote::{End, Place};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::ops::Range;

/// The most frames in a burst.
pub const BURST: usize = 32;

/// Bytes of a frame that are copied and checked: enough for Ethernet, two VLAN tags, IPv6 and TCP with all its options.
pub const HEAD: usize = 128;

/// Body segments that a burst has room for. A frame of 64 KiB has about 19.
pub(crate) const SEGMENTS: usize = 1024;

/// A segment of a frame's body in the sender's memory.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub start: *const u8,
    pub len: u32,
}

#[derive(Clone, Copy)]
struct Meta {
    /// Bytes of the whole frame.
    len: u32,
    /// The body's segments: index of the first, and count.
    first: u16,
    segments: u16,
    offload: Offload,
}

/// The first bytes of a frame. Only as many are valid as the frame has.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub struct Head(pub [u8; HEAD]);

/// Storage for one burst, reused for all. About 20 KiB: allocate one for each worker.
pub struct Burst {
    metas: [Meta; BURST],
    heads: [Head; BURST],
    bodies: [Segment; SEGMENTS],
}

// SAFETY: the pointers of a burst are followed only through a batch, which borrows both the burst and the memory that
// they point to. Between batches they are not used.
unsafe impl Send for Burst {}

impl Burst {
    /// Empty storage.
    pub fn new() -> Box<Burst> {
        Box::new(Burst {
            metas: [Meta { len: 0, first: 0, segments: 0, offload: Offload::default() }; BURST],
            heads: [Head([0; HEAD]); BURST],
            bodies: [Segment { start: std::ptr::null(), len: 0 }; SEGMENTS],
        })
    }

    /// Starts a new burst, discarding the last one.
    #[inline]
    pub fn fill(&mut self) -> Filler<'_> {
        Filler { burst: self, frames: 0, segments: 0, any_large: false, memory: PhantomData }
    }
}

/// A burst being filled with frames that live in `'a`.
pub struct Filler<'a> {
    burst: &'a mut Burst,
    frames: usize,
    segments: usize,
    /// Whether a frame is to be segmented.
    any_large: bool,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Filler<'a> {
    /// Frames so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames
    }

    /// Whether no frame was added yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Adds a frame that is contiguous in memory. False if the burst is full.
    #[inline]
    pub fn push(&mut self, frame: &'a [u8], offload: Offload) -> bool {
        let first = self.segments;
        // SAFETY: `frame` lives for 'a, which outlasts the batch.
        if self.frames == BURST || !unsafe { self.segment(frame.as_ptr(), frame.len() as u32) } {
            return false;
        }
        self.gathered(first, frame.len() as u32);
        let settled = self.settle::<0, Infallible>(self.frames - 1, |_, _, _| Ok(offload));
        settled.is_ok()
    }

    /// Adds a frame whose first bytes, at most [`HEAD`], are copied from `start`, and whose others are in `rest`. False if the burst is
    /// full.
    ///
    /// # Panics
    /// If `start` is longer.
    #[inline]
    pub fn push_parts(&mut self, start: &[u8], rest: &'a [u8], offload: Offload) -> bool {
        let (of_head, body) = rest.split_at(rest.len().min(HEAD - start.len()));
        let first = self.segments;
        // SAFETY: `body` lives for 'a, which outlasts the batch.
        if self.frames == BURST || !body.is_empty() && !unsafe { self.segment(body.as_ptr(), body.len() as u32) } {
            return false;
        }
        let head = &mut self.burst.heads[self.frames].0;
        head[..start.len()].copy_from_slice(start);
        head[start.len()..start.len() + of_head.len()].copy_from_slice(of_head);
        let index = self.frames;
        self.gathered(first, (start.len() + rest.len()) as u32);
        self.decide(index, |_, _| Some(offload))
    }

    /// Adds contiguous frames in order, while budget is left and the burst has room.
    #[inline]
    pub fn push_all(&mut self, budget: Budget, frames: impl IntoIterator<Item = (&'a [u8], Offload)>) {
        let mut bytes = 0;
        for (frame, offload) in frames.into_iter().take(budget.frames as usize) {
            if bytes >= budget.bytes || !self.push(frame, offload) {
                break;
            }
            bytes += frame.len() as u64;
        }
    }

    /// Segments so far.
    #[inline]
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }

    /// Adds a segment of the next frame. False if there is no room for it.
    ///
    /// # Safety
    /// `start..start + len` is readable for `'a` (others may write to it meanwhile).
    #[inline]
    pub(crate) unsafe fn segment(&mut self, start: *const u8, len: u32) -> bool {
        let Some(place) = self.burst.bodies.get_mut(self.segments) else { return false };
        *place = Segment { start, len };
        self.segments += 1;
        true
    }

    /// Makes the segments from `first` on a frame of `len` bytes. Nothing of it is read until [`Filler::settle`].
    #[inline]
    pub(crate) fn gathered(&mut self, first: usize, len: u32) {
        let segments = (self.segments - first) as u16;
        self.burst.metas[self.frames] = Meta { len, first: first as u16, segments, offload: Offload::default() };
        self.frames += 1;
    }

    /// Discards the segments from `first` on, which do not form a frame yet.
    #[inline]
    pub(crate) fn abandon(&mut self, first: usize) {
        self.segments = first;
    }

    /// Strips the `N` bytes of a device's header from the front of a gathered frame, which must be longer, copies the
    /// frame's head, and stores the offload that `offload` derives from both.
    #[inline]
    pub(crate) fn settle<const N: usize, E>(
        &mut self,
        index: usize,
        offload: impl FnOnce(&[u8; N], u32, &[u8]) -> Result<Offload, E>,
    ) -> Result<(), E> {
        let Burst { metas, heads, bodies } = &mut *self.burst;
        let meta = &mut metas[index];
        let mut segments = &mut bodies[meta.first.into()..usize::from(meta.first) + usize::from(meta.segments)];
        let mut header = [0; N];
        take_front(&mut segments, &mut header);
        meta.len -= N as u32;
        let head = &mut heads[index].0[..(meta.len as usize).min(HEAD)];
        take_front(&mut segments, head);
        access::copied();
        meta.first += meta.segments - segments.len() as u16;
        meta.segments = segments.len() as u16;
        meta.offload = offload(&header, meta.len, head)?;
        self.any_large |= meta.offload.gso.is_some();
        Ok(())
    }

    /// Whether there is no room for another segment.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.segments == SEGMENTS
    }

    /// Where to copy the heads of the frames, [`HEAD`] bytes each, for frames whose segments are the body alone.
    #[inline]
    pub(crate) fn heads(&mut self) -> *mut u8 {
        self.burst.heads.as_mut_ptr().cast()
    }

    /// Stores the offload that `offload` derives from a frame's length and head. If it returns none, the frame is left
    /// without bytes, so that the switch drops it as malformed and counts it; false then.
    #[inline]
    pub(crate) fn decide(&mut self, index: usize, offload: impl FnOnce(u32, &[u8]) -> Option<Offload>) -> bool {
        let meta = &mut self.burst.metas[index];
        let head = &self.burst.heads[index].0[..(meta.len as usize).min(HEAD)];
        match offload(meta.len, head) {
            Some(offload) => {
                meta.offload = offload;
                self.any_large |= offload.gso.is_some();
            }
            None => (meta.len, meta.segments) = (0, 0),
        }
        meta.len > 0
    }

    /// Discards all frames.
    pub(crate) fn clear(&mut self) {
        self.frames = 0;
        self.segments = 0;
    }

    /// The frames, ready to be read.
    #[inline]
    pub fn done(self) -> Batch<'a> {
        let Filler { frames, any_large, .. } = self;
        let Burst { metas, heads, bodies } = self.burst;
        Batch { metas: &metas[..frames], heads: &heads[..frames], bodies, any_large, amended: false, remote: None }
    }

    /// The frames, with bodies that belong to `remote`.
    #[inline]
    pub(crate) fn done_remote(self, remote: &'a dyn Remote) -> Batch<'a> {
        Batch { remote: Some(remote), ..self.done() }
    }
}

/// Copies bytes from the front of `segments` to `out`, which is no longer than they are, and removes the segments used
/// up.
#[inline]
fn take_front(segments: &mut &mut [Segment], out: &mut [u8]) {
    if let Some(segment) = segments.first_mut().filter(|segment| out.len() <= segment.len as usize) {
        // All from one segment: for a header, whose length the compiler knows, this is a move or two.
        // SAFETY: the segment is readable and no shorter than `out`.
        unsafe {
            access::copy(segment.start, out.as_mut_ptr(), out.len());
            segment.start = segment.start.add(out.len());
        }
        segment.len -= out.len() as u32;
        if segment.len == 0 {
            *segments = &mut std::mem::take(segments)[1..];
        }
        return;
    }
    take_front_of_several(segments, out);
}

/// [`take_front`] where the first segment is too short.
#[cold]
fn take_front_of_several(segments: &mut &mut [Segment], out: &mut [u8]) {
    let mut done = 0;
    loop {
        let left = out.len() - done;
        let Some(segment) = segments.first_mut() else { break };
        let here = left.min(segment.len as usize);
        // SAFETY: the segment is readable, and `out` has room for the rest of it.
        unsafe {
            access::copy(segment.start, out.as_mut_ptr().add(done), here);
            segment.start = segment.start.add(here);
        }
        segment.len -= here as u32;
        done += here;
        if segment.len > 0 {
            break;
        }
        let rest = std::mem::take(segments);
        *segments = &mut rest[1..];
    }
}

/// The frames that a port offers.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    metas: &'a [Meta],
    /// One for each frame: the burst's heads, or their replacements.
    heads: &'a [Head],
    bodies: &'a [Segment; SEGMENTS],
    /// Whether a frame is to be segmented.
    any_large: bool,
    /// Whether the heads are replacements.
    amended: bool,
    remote: Option<&'a dyn Remote>,
}

impl<'a> Batch<'a> {
    /// Number of frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Whether there are no frames.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// The first frames with their heads replaced by these, which are as long. Ends with the last frame that has a
    /// replacement.
    pub fn amended(self, heads: &'a [Head]) -> Batch<'a> {
        let frames = self.len().min(heads.len());
        Batch { metas: &self.metas[..frames], heads: &heads[..frames], amended: true, ..self }
    }

    /// One frame.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    // Inlined into each receiver's loop: a call takes 14 instructions a frame more.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Frame<'a> {
        let head = self.head(index);
        let meta = &self.metas[index];
        let first = usize::from(meta.first);
        let body = &self.bodies[first..first + usize::from(meta.segments)];
        Frame { len: meta.len, offload: meta.offload, head, body, first, remote: self.remote }
    }

    /// Where a frame lies contiguously in this domain's memory, if its sender's memory is not mapped, it was copied
    /// here as a whole, and no head was replaced.
    #[inline]
    pub(crate) fn whole(&self, index: usize) -> Option<End> {
        let remote = self.remote.filter(|_| !self.amended)?;
        remote.whole(index)
    }

    /// The first bytes of a frame, as in [`Frame::head`].
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn head(&self, index: usize) -> &'a [u8] {
        &self.heads[index].0[..(self.metas[index].len as usize).min(HEAD)]
    }

    /// The work on a frame that its sender left to the receiver.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn offload(&self, index: usize) -> Offload {
        self.metas[index].offload
    }

    /// Length of a frame in bytes.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn bytes(&self, index: usize) -> u64 {
        u64::from(self.metas[index].len)
    }

    /// Total bytes of some frames.
    ///
    /// # Panics
    /// If the range does not end at [`Batch::len`] or before.
    #[inline]
    pub fn bytes_of(&self, frames: Range<usize>) -> u64 {
        self.metas[frames].iter().map(|meta| u64::from(meta.len)).sum()
    }

    /// Number of frames on a wire that some frames become.
    ///
    /// # Panics
    /// If the range does not end at [`Batch::len`] or before.
    #[inline]
    pub fn segments_of(&self, frames: Range<usize>) -> u64 {
        if !self.any_large {
            return frames.len() as u64;
        }
        self.metas[frames].iter().map(|meta| meta.offload.segments(meta.len.into())).sum()
    }

    /// Fetches the bytes of these frames where they are in memory that is not mapped, all at once. Returns the frames
    /// that are readable, from the first on, and why the next is to be dropped.
    #[inline]
    pub(crate) fn fetch(&self, frames: Range<usize>) -> (Range<usize>, Option<Refusal>) {
        match self.remote {
            Some(remote) if !frames.is_empty() => self.fetch_from(remote, frames),
            _ => (frames, None),
        }
    }

    fn fetch_from(&self, remote: &dyn Remote, frames: Range<usize>) -> (Range<usize>, Option<Refusal>) {
        let metas = &self.metas[frames.clone()];
        let end = |meta: &Meta| usize::from(meta.first + meta.segments);
        let Some(lost) = remote.fetch(metas[0].first.into()..end(&metas[metas.len() - 1])) else {
            return (frames, None);
        };
        let here = metas.iter().take_while(|meta| end(meta) <= lost).count();
        (frames.start..frames.start + here, Some(Refusal::Never(DropReason::Malformed)))
    }

    /// Appends a whole frame to `out`. False, with nothing appended, if its bytes could not be fetched.
    pub fn read(&self, frame: usize, out: &mut Vec<u8>) -> bool {
        let is_here = self.fetch(frame..frame + 1).1.is_none();
        if is_here {
            self.frame(frame).read(out);
        }
        is_here
    }

    /// All frames in order.
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = Frame<'a>> + '_ {
        (0..self.len()).map(|index| self.frame(index))
    }
}

/// One frame: a checked head, and the body in its sender's memory.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    len: u32,
    offload: Offload,
    head: &'a [u8],
    body: &'a [Segment],
    /// Index of the body's first segment.
    first: usize,
    remote: Option<&'a dyn Remote>,
}

impl<'a> Frame<'a> {
    /// Bytes of the whole frame.
    #[inline]
    pub fn bytes(&self) -> u64 {
        u64::from(self.len)
    }

    /// The first bytes, at most [`HEAD`]: the copy that all decisions see.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// The work that the sender left to the receiver.
    #[inline]
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// The segments of the body, fetched if necessary.
    #[inline]
    pub(crate) fn body(&self) -> &'a [Segment] {
        if let Some(remote) = self.remote {
            remote.fetch(self.first..self.first + self.body.len());
        }
        self.body
    }

    /// The segments of the body where they lie, to be copied from there: index, place and length.
    #[inline]
    pub(crate) fn segments(&self) -> impl Iterator<Item = (usize, End, u32)> + '_ {
        self.body.iter().enumerate().map(|(index, segment)| {
            let number = self.first + index;
            let place = match self.remote {
                Some(remote) => remote.place(number),
                None => End::Ours(segment.start.cast_mut()),
            };
            (number, place, segment.len)
        })
    }

    /// Whether its bytes are in memory of this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.remote.is_none()
    }

    /// Notes that a segment could not be copied from where it lies.
    pub(crate) fn withdraw(&self, segment: usize) {
        if let Some(remote) = self.remote {
            remote.withdraw(segment);
        }
    }

    /// Appends the whole frame to `out`.
    pub fn read(&self, out: &mut Vec<u8>) {
        out.reserve(self.len as usize);
        // SAFETY: the spare capacity is at least `len` bytes, and the first `copied` of them are written.
        unsafe {
            let copied = self.copy_to(out.as_mut_ptr().add(out.len()));
            out.set_len(out.len() + copied);
        }
    }

    /// Copies the whole frame to `to` and returns the number of bytes: never more than [`Frame::bytes`].
    ///
    /// # Safety
    /// `to` is valid for writes of [`Frame::bytes`] bytes that no one else touches meanwhile.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) -> usize {
        // SAFETY: the head is no longer than the frame.
        unsafe { access::copy(self.head.as_ptr(), to, self.head.len()) };
        let mut copied = self.head.len();
        for segment in self.body() {
            let len = (segment.len as usize).min(self.len as usize - copied);
            // SAFETY: the segment is readable for 'a, and `copied + len` is at most the frame's length.
            unsafe { access::copy(segment.start, to.add(copied), len) };
            copied += len;
        }
        access::copied();
        copied
    }
}
