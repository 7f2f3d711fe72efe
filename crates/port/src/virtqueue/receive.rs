//! A guest's receive queue: frames into the buffers that the guest lent.

use super::chain::Direction;
use super::log::DirtyLog;
use super::memory::GuestMemory;
use super::moderation::Volume;
use super::ring::Ring;
use super::violation::Violation;
use crate::Refusal;
use crate::access;
use crate::burst::Frame;
use crate::software_offload::SoftwareOffload;
use crate::vnet::{self, HEADER};
use fairlane_core::packet::Offload;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::sync::Arc;

/// Buffers and pieces that one frame may be spread over. Sixty-four bytes each would do for the largest frame. Of one that is cut, all
/// segments together.
const MAX_PIECES: usize = 1024;

/// The frame is larger than all buffers that the queue can hold.
const TOO_LARGE: Refusal = Refusal::Never(DropReason::TooLarge);

/// A receive queue in service.
pub struct Receive {
    /// The queue.
    pub ring: Ring,
    /// Chains that a frame may take at most: one, or several (VIRTIO_NET_F_MRG_RXBUF).
    most: u16,
    /// Where pages of the guest that were written are marked, while it is moved.
    log: Option<Arc<DirtyLog>>,
    /// Chains taken for the frame at hand, with the bytes each has room for.
    chains: Box<[(u16, u32); MAX_PIECES]>,
    /// Their pieces.
    pieces: Box<[(*mut u8, u32); MAX_PIECES]>,
    /// Available entries that were not enough for a frame; 0 if the last frame found room.
    short: u16,
    /// What was put.
    volume: Volume,
}

// SAFETY: the pointers are used within one call only.
unsafe impl Send for Receive {}

impl Receive {
    /// A queue in which nothing was put yet.
    pub fn new(ring: Ring, mergeable: bool, log: Option<Arc<DirtyLog>>) -> Receive {
        let most = if mergeable { ring.size().min(MAX_PIECES as u16) } else { 1 };
        let (chains, pieces) = (Box::new([(0, 0); MAX_PIECES]), Box::new([(std::ptr::null_mut(), 0); MAX_PIECES]));
        Receive { ring, most, log, chains, pieces, short: 0, volume: Volume::default() }
    }

    /// Publishes what was put; answers when to do so again ([`Ring::publish`]).
    #[inline]
    pub fn publish(&mut self, now: Nanos) -> Nanos {
        let urgent = !self.volume.is_bulk(now);
        self.ring.publish(now, urgent)
    }

    /// Whether there are more buffers than when a frame last found too few.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.available(self.short)? > 0)
    }

    /// Asks to be kicked when there are. True if there are already.
    pub fn enable_notifications(&mut self) -> bool {
        self.ring.enable_notifications(self.short)
    }

    /// Copies one frame into the guest's buffers.
    ///
    /// # Errors
    /// The rule that the driver broke.
    #[inline]
    pub fn put(&mut self, memory: &GuestMemory, frame: &Frame<'_>) -> Result<Option<Refusal>, Violation> {
        let bytes = HEADER as u32 + frame.bytes() as u32;
        let gathered = match self.gather(memory, bytes)? {
            Ok(gathered) => gathered,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let mut writer = Writer::into(&self.pieces[..gathered.pieces]);
        let header = vnet::encode(frame.offload(), gathered.chains as u16);
        // SAFETY: `gather` found places of guest memory with room for `bytes` in all, and what is written here adds up to
        // that: header, head and body. Sources are readable: two of ours, and pieces that the batch keeps.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.head().as_ptr(), frame.head().len() as u32);
            for piece in frame.body() {
                writer.write(piece.start, piece.len);
            }
        }
        self.hand_over(memory, gathered, bytes);
        Ok(None)
    }

    /// Copies what a frame comes to when nothing is left to do on it, for a driver that does not do it: all or nothing.
    ///
    /// # Errors
    /// As [`Receive::put`].
    pub fn put_plain(
        &mut self,
        memory: &GuestMemory,
        frame: &Frame<'_>,
        plain: &mut SoftwareOffload,
    ) -> Result<Option<Refusal>, Violation> {
        let start = self.ring.base();
        let mut left = MAX_PIECES;
        let outcome = plain.each(frame, |bytes| match self.put_bytes(memory, bytes, &mut left) {
            Ok(None) => Ok(()),
            Ok(Some(refusal)) => Err(Ok(refusal)),
            Err(violation) => Err(Err(violation)),
        });
        let refusal = match outcome {
            Ok(Ok(())) => return Ok(None),
            Ok(Err(Ok(refusal))) => refusal,
            Ok(Err(Err(violation))) => return Err(violation),
            // Its sender changed it since its header was checked.
            Err(_) => Refusal::Never(DropReason::Malformed),
        };
        if refusal == Refusal::Full {
            self.short += self.ring.base().wrapping_sub(start);
        }
        self.ring.take_back(start);
        if self.short == self.ring.size() { Ok(Some(TOO_LARGE)) } else { Ok(Some(refusal)) }
    }

    /// Copies a frame of ours, nothing left to do on it, into the guest's buffers, of which so many pieces are `left`.
    fn put_bytes(
        &mut self,
        memory: &GuestMemory,
        frame: &[u8],
        left: &mut usize,
    ) -> Result<Option<Refusal>, Violation> {
        let bytes = (HEADER + frame.len()) as u32;
        let gathered = match self.gather(memory, bytes)? {
            Ok(gathered) => gathered,
            Err(refusal) => return Ok(Some(refusal)),
        };
        match left.checked_sub(gathered.pieces) {
            Some(fewer) => *left = fewer,
            None => return Ok(Some(TOO_LARGE)),
        }
        let mut writer = Writer::into(&self.pieces[..gathered.pieces]);
        let header = vnet::encode(Offload::default(), gathered.chains as u16);
        // SAFETY: as in `put`.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.as_ptr(), frame.len() as u32);
        }
        self.hand_over(memory, gathered, bytes);
        Ok(None)
    }

    /// Completes the gathered chains with `bytes` in them.
    #[inline]
    fn hand_over(&mut self, memory: &GuestMemory, gathered: Gathered, bytes: u32) {
        if let Some(log) = &self.log {
            mark(log, memory, &self.pieces[..gathered.pieces], bytes);
        }
        self.volume.add(bytes.into());
        let mut left = bytes;
        for &(head, room) in &self.chains[..gathered.chains] {
            let here = left.min(room);
            self.ring.complete(head, here);
            left -= here;
        }
    }

    /// Finds available chains with room for `bytes`.
    #[inline]
    fn gather(&mut self, memory: &GuestMemory, bytes: u32) -> Result<Result<Gathered, Refusal>, Violation> {
        let mut gathered = Gathered { chains: 0, pieces: 0 };
        let mut room: u32 = 0;
        loop {
            let skip = gathered.chains as u16;
            if self.ring.available(skip)? == 0 {
                self.short = skip;
                return Ok(Err(Refusal::Full));
            }
            let head = self.ring.head(skip)?;
            let mut here: u32 = 0;
            self.ring.walk(head, Direction::Write, memory, |start, len| {
                let place = self.pieces.get_mut(gathered.pieces).ok_or(Violation::TooManyPieces)?;
                *place = (start, len);
                gathered.pieces += 1;
                here = here.saturating_add(len);
                Ok(())
            })?;
            self.chains[gathered.chains] = (head, here);
            gathered.chains += 1;
            room = room.saturating_add(here);
            if room >= bytes {
                break;
            }
            if gathered.chains == usize::from(self.most) {
                return Ok(Err(TOO_LARGE));
            }
        }
        self.short = 0;
        Ok(Ok(gathered))
    }
}

/// How much was found for a frame.
#[derive(Clone, Copy)]
struct Gathered {
    chains: usize,
    pieces: usize,
}

/// Marks the first `bytes` bytes of pieces of guest memory, which were written.
#[cold]
fn mark(log: &DirtyLog, memory: &GuestMemory, pieces: &[(*mut u8, u32)], bytes: u32) {
    let mut left = bytes;
    for &(start, room) in pieces {
        memory.mark(log, start, left.min(room));
        left -= left.min(room);
    }
}

/// Writes one after the other into pieces of guest memory.
struct Writer<'a> {
    /// Where there is room now, and how much.
    start: *mut u8,
    room: u32,
    /// The pieces behind.
    pieces: &'a [(*mut u8, u32)],
}

impl<'a> Writer<'a> {
    /// Begins at the first byte.
    #[inline]
    fn into(pieces: &'a [(*mut u8, u32)]) -> Writer<'a> {
        let (start, room) = pieces[0];
        Writer { start, room, pieces: &pieces[1..] }
    }

    /// Appends bytes.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; the pieces are writable and have room for them.
    #[inline]
    unsafe fn write(&mut self, mut from: *const u8, mut len: u32) {
        if len <= self.room {
            // Of a header, of a length that the compiler knows, this is a move or two.
            // SAFETY: the caller's.
            return unsafe { self.append(from, len) };
        }
        while len > self.room {
            let room = self.room;
            // SAFETY: the caller's, as what is left has more bytes than there is room here.
            from = unsafe {
                self.append(from, room);
                from.add(room as usize)
            };
            len -= room;
            ((self.start, self.room), self.pieces) = (self.pieces[0], &self.pieces[1..]);
        }
        // SAFETY: the caller's, and there is room here for all that is left.
        unsafe { self.append(from, len) };
    }

    /// The same where there is room in one piece.
    ///
    /// # Safety
    /// As [`Writer::write`], with room for `len` bytes.
    #[inline]
    unsafe fn append(&mut self, from: *const u8, len: u32) {
        // SAFETY: what the caller promises; source and target are different guests' memory or ours and a guest's, and where a
        // guest makes its own buffers overlap, `copy` still does what it says.
        unsafe {
            access::copy(from, self.start, len as usize);
            self.start = self.start.add(len as usize);
        }
        self.room -= len;
    }
}
