//! A burst of frames on their way from one port to another: heads copied once and checked, bodies left where they are.
//!
//! A guest may change its memory at any time. So the first [`HEAD`] bytes of each frame are copied here once, all decisions
//! and the receiver see that copy, and only bytes that nobody decides on are read from the sender's memory, once, into
//! the receiver's.
//!
//! Where the sender's memory is not mapped here (a Xen guest's grants), a body is a [`Remote`]'s: a receiver that can name
//! such memory copies from there ([`Batch::whole`], [`Frame::pieces`]), any other has it fetched first, by asking for the bytes.

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

/// Frames of a burst at most.
pub const BURST: usize = 32;

/// Bytes of a frame that are copied and checked: enough for Ethernet, two VLAN tags, IPv6 and TCP with all its options.
pub const HEAD: usize = 128;

/// Pieces of bodies that a burst has room for. A frame of 64 KiB is some 19 pieces.
pub(crate) const PIECES: usize = 1024;

/// A piece of a frame's body in the sender's memory.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub start: *const u8,
    pub len: u32,
}

#[derive(Clone, Copy)]
struct Meta {
    /// Bytes of the whole frame.
    len: u32,
    /// The body's pieces: first and count.
    first: u16,
    pieces: u16,
    offload: Offload,
}

/// The first bytes of a frame, of which as many mean something as the frame has.
#[repr(align(64))]
#[derive(Clone, Copy)]
pub struct Head(pub [u8; HEAD]);

/// Storage for one burst, reused for all. About 20 KiB: make one a worker.
pub struct Burst {
    metas: [Meta; BURST],
    heads: [Head; BURST],
    bodies: [Piece; PIECES],
}

// SAFETY: the pointers of a burst are followed only through a batch, which borrows both the burst and the memory that they
// point to. Between batches they are forgotten.
unsafe impl Send for Burst {}

impl Burst {
    /// Empty storage.
    pub fn new() -> Box<Burst> {
        Box::new(Burst {
            metas: [Meta { len: 0, first: 0, pieces: 0, offload: Offload::default() }; BURST],
            heads: [Head([0; HEAD]); BURST],
            bodies: [Piece { start: std::ptr::null(), len: 0 }; PIECES],
        })
    }

    /// Starts a new burst. What was in it is forgotten.
    #[inline]
    pub fn fill(&mut self) -> Filler<'_> {
        Filler { burst: self, frames: 0, pieces: 0, memory: PhantomData }
    }
}

/// A burst being filled with frames that live in `'a`.
pub struct Filler<'a> {
    burst: &'a mut Burst,
    frames: usize,
    pieces: usize,
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

    /// Adds a frame that lies in one piece. False if the burst is full.
    #[inline]
    pub fn push(&mut self, frame: &'a [u8], offload: Offload) -> bool {
        let first = self.pieces;
        // SAFETY: `frame` lives for 'a, which outlasts the batch.
        if self.frames == BURST || !unsafe { self.piece(frame.as_ptr(), frame.len() as u32) } {
            return false;
        }
        self.gathered(first, frame.len() as u32);
        let settled = self.settle::<0, Infallible>(self.frames - 1, |_, _, _| Ok(offload));
        settled.is_ok()
    }

    /// Adds frames, each in one piece, in order while the budget has something left and the burst has room.
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

    /// Pieces so far.
    #[inline]
    pub(crate) fn pieces(&self) -> usize {
        self.pieces
    }

    /// Adds a piece of the next frame. False if there is no room for it.
    ///
    /// # Safety
    /// `start..start + len` is readable for `'a` (others may write to it meanwhile).
    #[inline]
    pub(crate) unsafe fn piece(&mut self, start: *const u8, len: u32) -> bool {
        let Some(place) = self.burst.bodies.get_mut(self.pieces) else { return false };
        *place = Piece { start, len };
        self.pieces += 1;
        true
    }

    /// Makes the pieces from `first` on a frame of `len` bytes, nothing of it read yet: [`Filler::settle`] does that.
    #[inline]
    pub(crate) fn gathered(&mut self, first: usize, len: u32) {
        let pieces = (self.pieces - first) as u16;
        self.burst.metas[self.frames] = Meta { len, first: first as u16, pieces, offload: Offload::default() };
        self.frames += 1;
    }

    /// Forgets the pieces from `first` on, which are no frame yet.
    #[inline]
    pub(crate) fn abandon(&mut self, first: usize) {
        self.pieces = first;
    }

    /// Takes the `N` bytes of a device's header off the front of a gathered frame, which is longer than that, copies
    /// the frame's head, and sets what `offload` makes of both.
    #[inline]
    pub(crate) fn settle<const N: usize, E>(
        &mut self,
        index: usize,
        offload: impl FnOnce(&[u8; N], u32, &[u8]) -> Result<Offload, E>,
    ) -> Result<(), E> {
        let Burst { metas, heads, bodies } = &mut *self.burst;
        let meta = &mut metas[index];
        let mut pieces = &mut bodies[meta.first.into()..usize::from(meta.first) + usize::from(meta.pieces)];
        let mut header = [0; N];
        take_front(&mut pieces, &mut header);
        meta.len -= N as u32;
        let head = &mut heads[index].0[..(meta.len as usize).min(HEAD)];
        take_front(&mut pieces, head);
        access::copied();
        meta.first += meta.pieces - pieces.len() as u16;
        meta.pieces = pieces.len() as u16;
        meta.offload = offload(&header, meta.len, head)?;
        Ok(())
    }

    /// Whether there is no room for another piece.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.pieces == PIECES
    }

    /// Where the heads of the frames are to be copied, for frames whose pieces are the body alone: [`HEAD`] bytes each.
    #[inline]
    pub(crate) fn heads(&mut self) -> *mut u8 {
        self.burst.heads.as_mut_ptr().cast()
    }

    /// Sets what `offload` makes of a frame's length and head. Where it makes nothing of it the frame is left without bytes,
    /// so that whoever judges it drops it as malformed and counts it; false then.
    #[inline]
    pub(crate) fn decide(&mut self, index: usize, offload: impl FnOnce(u32, &[u8]) -> Option<Offload>) -> bool {
        let meta = &mut self.burst.metas[index];
        let head = &self.burst.heads[index].0[..(meta.len as usize).min(HEAD)];
        match offload(meta.len, head) {
            Some(offload) => meta.offload = offload,
            None => (meta.len, meta.pieces) = (0, 0),
        }
        meta.len > 0
    }

    /// Forgets all frames.
    pub(crate) fn clear(&mut self) {
        self.frames = 0;
        self.pieces = 0;
    }

    /// The frames, to look at and pass on.
    #[inline]
    pub fn done(self) -> Batch<'a> {
        let Burst { metas, heads, bodies } = self.burst;
        Batch { metas: &metas[..self.frames], heads: &heads[..self.frames], bodies, amended: false, remote: None }
    }

    /// The frames, whose bodies are `remote`'s.
    #[inline]
    pub(crate) fn done_remote(self, remote: &'a dyn Remote) -> Batch<'a> {
        Batch { remote: Some(remote), ..self.done() }
    }
}

/// Moves bytes from the front of `pieces` to `out`, which is no longer than they are, and drops the pieces used up.
#[inline]
fn take_front(pieces: &mut &mut [Piece], out: &mut [u8]) {
    if let Some(piece) = pieces.first_mut().filter(|piece| out.len() <= piece.len as usize) {
        // All from one piece: for a header, of a length that the compiler knows, this is a move or two.
        // SAFETY: the piece is readable and no shorter than `out`.
        unsafe {
            access::copy(piece.start, out.as_mut_ptr(), out.len());
            piece.start = piece.start.add(out.len());
        }
        piece.len -= out.len() as u32;
        if piece.len == 0 {
            *pieces = &mut std::mem::take(pieces)[1..];
        }
        return;
    }
    take_front_of_several(pieces, out);
}

/// The same where the first piece is not enough.
#[cold]
fn take_front_of_several(pieces: &mut &mut [Piece], out: &mut [u8]) {
    let mut done = 0;
    loop {
        let left = out.len() - done;
        let Some(piece) = pieces.first_mut() else { break };
        let here = left.min(piece.len as usize);
        // SAFETY: the piece is readable, and `out` has room for what is left of it.
        unsafe {
            access::copy(piece.start, out.as_mut_ptr().add(done), here);
            piece.start = piece.start.add(here);
        }
        piece.len -= here as u32;
        done += here;
        if piece.len > 0 {
            break;
        }
        let rest = std::mem::take(pieces);
        *pieces = &mut rest[1..];
    }
}

/// Frames as a port offers them.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    metas: &'a [Meta],
    /// As many: those of the burst, or what stands in their place.
    heads: &'a [Head],
    bodies: &'a [Piece; PIECES],
    /// Whether they are others than the burst's.
    amended: bool,
    remote: Option<&'a dyn Remote>,
}

impl<'a> Batch<'a> {
    /// How many frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Whether there is no frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// As many of the first frames as there are heads, with these in place of their own, which have as many bytes.
    pub fn amended(self, heads: &'a [Head]) -> Batch<'a> {
        let frames = self.len().min(heads.len());
        Batch { metas: &self.metas[..frames], heads: &heads[..frames], amended: true, ..self }
    }

    /// One frame.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    // Each receiver's loop has its own: called, it takes 14 instructions a frame more.
    #[inline(always)]
    pub fn frame(&self, index: usize) -> Frame<'a> {
        let head = self.head(index);
        let meta = &self.metas[index];
        let first = usize::from(meta.first);
        let body = &self.bodies[first..first + usize::from(meta.pieces)];
        Frame { len: meta.len, offload: meta.offload, head, body, first, remote: self.remote }
    }

    /// Where a frame of a sender whose memory is not mapped is as a whole, if it has come here and nothing of it was amended.
    #[inline]
    pub(crate) fn whole(&self, index: usize) -> Option<End> {
        let remote = self.remote.filter(|_| !self.amended)?;
        remote.whole(index)
    }

    /// The first bytes of a frame, as [`Frame::head`] has them.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn head(&self, index: usize) -> &'a [u8] {
        &self.heads[index].0[..(self.metas[index].len as usize).min(HEAD)]
    }

    /// What the sender of a frame left to do.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn offload(&self, index: usize) -> Offload {
        self.metas[index].offload
    }

    /// Bytes of a frame.
    ///
    /// # Panics
    /// If `index` is not below [`Batch::len`].
    #[inline]
    pub fn bytes(&self, index: usize) -> u64 {
        u64::from(self.metas[index].len)
    }

    /// Bytes of some frames together.
    ///
    /// # Panics
    /// If the range does not end at [`Batch::len`] or before.
    #[inline]
    pub fn bytes_of(&self, frames: Range<usize>) -> u64 {
        self.metas[frames].iter().map(|meta| u64::from(meta.len)).sum()
    }

    /// Has the bytes of these frames brought here, where they are elsewhere all at once. Answers which of them are here, from the first
    /// on, and why the next is not to be passed on.
    #[inline]
    pub(crate) fn fetch(&self, frames: Range<usize>) -> (Range<usize>, Option<Refusal>) {
        match self.remote {
            Some(remote) if !frames.is_empty() => self.fetch_from(remote, frames),
            _ => (frames, None),
        }
    }

    fn fetch_from(&self, remote: &dyn Remote, frames: Range<usize>) -> (Range<usize>, Option<Refusal>) {
        let metas = &self.metas[frames.clone()];
        let end = |meta: &Meta| usize::from(meta.first + meta.pieces);
        let Some(lost) = remote.fetch(metas[0].first.into()..end(&metas[metas.len() - 1])) else {
            return (frames, None);
        };
        let here = metas.iter().take_while(|meta| end(meta) <= lost).count();
        (frames.start..frames.start + here, Some(Refusal::Never(DropReason::Malformed)))
    }

    /// Appends a whole frame to `out`. False if its bytes, which are elsewhere, can be had no more: then nothing is appended.
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
    body: &'a [Piece],
    /// The number of the body's first piece.
    first: usize,
    remote: Option<&'a dyn Remote>,
}

impl<'a> Frame<'a> {
    /// Bytes of the whole frame.
    #[inline]
    pub fn bytes(&self) -> u64 {
        u64::from(self.len)
    }

    /// The first bytes, at most [`HEAD`], as all decisions see them.
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        self.head
    }

    /// What its sender left to do.
    #[inline]
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// The pieces of the body, to read.
    #[inline]
    pub(crate) fn body(&self) -> &'a [Piece] {
        if let Some(remote) = self.remote {
            remote.fetch(self.first..self.first + self.body.len());
        }
        self.body
    }

    /// The pieces of the body where they are, to be copied from there: number, place and bytes.
    #[inline]
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, End, u32)> + '_ {
        self.body.iter().enumerate().map(|(index, piece)| {
            let number = self.first + index;
            let place = match self.remote {
                Some(remote) => remote.place(number),
                None => End::Ours(piece.start.cast_mut()),
            };
            (number, place, piece.len)
        })
    }

    /// Whether its bytes are in memory of this process.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.remote.is_none()
    }

    /// Notes that the piece of this number could not be copied from where it is.
    pub(crate) fn withdraw(&self, piece: usize) {
        if let Some(remote) = self.remote {
            remote.withdraw(piece);
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

    /// Copies the whole frame to `to` and tells how many bytes that were: never more than [`Frame::bytes`].
    ///
    /// # Safety
    /// `to` is valid for writes of [`Frame::bytes`] bytes that no one else touches meanwhile.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, to: *mut u8) -> usize {
        // SAFETY: the head is no longer than the frame.
        unsafe { access::copy(self.head.as_ptr(), to, self.head.len()) };
        let mut copied = self.head.len();
        for piece in self.body() {
            let len = (piece.len as usize).min(self.len as usize - copied);
            // SAFETY: the piece is readable for 'a, and `copied + len` is at most the frame's length.
            unsafe { access::copy(piece.start, to.add(copied), len) };
            copied += len;
        }
        access::copied();
        copied
    }
}
