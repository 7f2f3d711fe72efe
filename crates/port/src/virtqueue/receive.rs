//! A guest's receive queue: frames into the buffers that the guest lent.

use super::log::DirtyLog;
use super::memory::GuestMemory;
use super::ring::{Direction, HOLD, Ring};
use super::violation::Violation;
use crate::Refusal;
use crate::access;
use crate::burst::Frame;
use crate::plain::Plain;
use crate::vnet::{self, HEADER};
use fairlane_core::packet::Offload;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::sync::Arc;

/// Buffers and pieces that one frame may be spread over. Sixty-four bytes each would do for the largest frame. Of one that is cut, all
/// segments together.
const MAX_PIECES: usize = 1024;

/// The frame is larger than all buffers that the queue can hold.
const TOO_LARGE: Option<Refusal> = Some(Refusal::Never(DropReason::TooLarge));

/// So many bytes within [`HOLD`] are a bulk flow (0.65 Gbit/s), whose frames can wait for each other. Requests and answers are
/// less, and urgent.
const BULK: u64 = 16 << 10;

/// A receive queue in service.
pub struct Receive {
    /// The queue.
    pub ring: Ring,
    /// Whether a frame may take several buffers (VIRTIO_NET_F_MRG_RXBUF).
    mergeable: bool,
    /// Where pages of the guest that were written are marked, while it is moved.
    log: Option<Arc<DirtyLog>>,
    /// Chains taken for the frame at hand, with the bytes each has room for.
    chains: Vec<(u16, u32)>,
    /// Their pieces.
    pieces: Vec<(*mut u8, u32)>,
    /// Available entries that were not enough for a frame; 0 if the last frame found room.
    short: u16,
    /// Since when `bytes` counts, and how many there were in as long before.
    since: Nanos,
    bytes: u64,
    bytes_before: u64,
}

// SAFETY: the pointers are used within one call only.
unsafe impl Send for Receive {}

impl Receive {
    /// A queue in which nothing was put yet.
    pub fn new(ring: Ring, mergeable: bool, log: Option<Arc<DirtyLog>>) -> Receive {
        let (chains, pieces) = (Vec::with_capacity(MAX_PIECES), Vec::with_capacity(MAX_PIECES));
        Receive { ring, mergeable, log, chains, pieces, short: 0, since: Nanos(0), bytes: 0, bytes_before: 0 }
    }

    /// Publishes what was put; answers when to do so again ([`Ring::publish`]).
    #[inline]
    pub fn publish(&mut self, now: Nanos) -> Nanos {
        if now.since(self.since) >= HOLD {
            (self.since, self.bytes_before, self.bytes) = (now, self.bytes, 0);
        }
        let bulk = self.bytes.max(self.bytes_before) >= BULK;
        self.ring.publish(now, !bulk)
    }

    /// Whether there are more buffers than when a frame last found too few.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.available(self.short)? > 0)
    }

    /// Asks to be kicked when there are. True if there are already.
    pub fn arm(&mut self) -> bool {
        self.ring.arm(self.short)
    }

    /// Copies one frame into the guest's buffers.
    ///
    /// # Errors
    /// The rule that the driver broke.
    #[inline]
    pub fn put(&mut self, memory: &GuestMemory, frame: &Frame<'_>) -> Result<Option<Refusal>, Violation> {
        let bytes = HEADER as u32 + frame.bytes() as u32;
        if let Some(refusal) = self.gather(memory, bytes)? {
            return Ok(Some(refusal));
        }
        let mut writer = Writer { pieces: &self.pieces, used: 0 };
        let header = vnet::encode(frame.offload(), self.chains.len() as u16);
        // SAFETY: `gather` found places of guest memory with room for `bytes` in all, and what is written here adds up to
        // that: header, head and body. Sources are readable: two of ours, and pieces that the batch keeps.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.head().as_ptr(), frame.head().len() as u32);
            for piece in frame.body() {
                writer.write(piece.start, piece.len);
            }
        }
        self.hand_over(memory, bytes);
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
        plain: &mut Plain,
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
        if self.short == self.ring.size() { Ok(TOO_LARGE) } else { Ok(Some(refusal)) }
    }

    /// Copies a frame of ours, nothing left to do on it, into the guest's buffers, of which so many pieces are `left`.
    fn put_bytes(
        &mut self,
        memory: &GuestMemory,
        frame: &[u8],
        left: &mut usize,
    ) -> Result<Option<Refusal>, Violation> {
        let bytes = (HEADER + frame.len()) as u32;
        if let Some(refusal) = self.gather(memory, bytes)? {
            return Ok(Some(refusal));
        }
        match left.checked_sub(self.pieces.len()) {
            Some(fewer) => *left = fewer,
            None => return Ok(TOO_LARGE),
        }
        let mut writer = Writer { pieces: &self.pieces, used: 0 };
        let header = vnet::encode(Offload::default(), self.chains.len() as u16);
        // SAFETY: as in `put`.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.as_ptr(), frame.len() as u32);
        }
        self.hand_over(memory, bytes);
        Ok(None)
    }

    /// Completes the gathered chains with `bytes` in them.
    #[inline]
    fn hand_over(&mut self, memory: &GuestMemory, bytes: u32) {
        if let Some(log) = &self.log {
            mark(log, memory, &self.pieces, bytes);
        }
        self.bytes += u64::from(bytes);
        let mut left = bytes;
        for &(head, room) in &self.chains {
            let here = left.min(room);
            self.ring.complete(head, here);
            left -= here;
        }
    }

    /// Finds available chains with room for `bytes`.
    #[inline]
    fn gather(&mut self, memory: &GuestMemory, bytes: u32) -> Result<Option<Refusal>, Violation> {
        self.chains.clear();
        self.pieces.clear();
        let mut room: u32 = 0;
        while room < bytes {
            let skip = self.chains.len() as u16;
            if skip == self.ring.size() || usize::from(skip) == MAX_PIECES || (skip == 1 && !self.mergeable) {
                return Ok(TOO_LARGE);
            }
            if self.ring.available(skip)? == 0 {
                self.short = skip;
                return Ok(Some(Refusal::Full));
            }
            let head = self.ring.head(skip)?;
            let pieces = &mut self.pieces;
            let mut here: u32 = 0;
            self.ring.walk(head, Direction::Write, memory, |start, len| {
                if pieces.len() == MAX_PIECES {
                    return Err(Violation::TooManyPieces);
                }
                pieces.push((start, len));
                here = here.saturating_add(len);
                Ok(())
            })?;
            self.chains.push((head, here));
            room = room.saturating_add(here);
        }
        self.short = 0;
        Ok(None)
    }
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
    pieces: &'a [(*mut u8, u32)],
    /// Bytes of the first piece that are written already.
    used: u32,
}

impl Writer<'_> {
    /// Appends bytes.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; the pieces are writable and have room for them.
    #[inline]
    unsafe fn write(&mut self, mut from: *const u8, mut len: u32) {
        while len > 0 {
            let (start, room) = self.pieces[0];
            let here = len.min(room - self.used);
            // SAFETY: what the caller promises; source and target are different guests' memory or ours and a guest's, and
            // where a guest makes its own buffers overlap, `copy` still does what it says.
            unsafe {
                access::copy(from, start.add(self.used as usize), here as usize);
                from = from.add(here as usize);
            }
            (self.used, len) = (self.used + here, len - here);
            if self.used == room {
                (self.pieces, self.used) = (&self.pieces[1..], 0);
            }
        }
    }
}
