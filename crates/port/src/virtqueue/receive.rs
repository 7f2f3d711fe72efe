//! A guest's receive queue: writes frames into the buffers that the driver posted.

use super::chain::Direction;
use super::format::Format;
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

/// The most buffers and segments that one frame may be spread over. Sixty-four bytes each would be enough for the
/// largest frame. If a frame is segmented, this bounds all its TCP segments together.
const MAX_SEGMENTS: usize = 1024;

/// The frame is larger than all buffers that the queue can hold.
const TOO_LARGE: Refusal = Refusal::Never(DropReason::TooLarge);

/// A running receive queue.
pub(crate) struct Receive<F: Format> {
    /// The queue.
    pub ring: Ring<F>,
    /// The most chains that a frame may take: one, or several (VIRTIO_NET_F_MRG_RXBUF).
    most: u16,
    /// Where written pages are marked while the guest migrates.
    log: Option<Arc<DirtyLog>>,
    /// Chains gathered for the current frame, with the bytes each has room for.
    chains: Box<[(F::Chain, u32); MAX_SEGMENTS]>,
    /// Their segments.
    segments: Box<[(*mut u8, u32); MAX_SEGMENTS]>,
    /// Available entries that were too few for a frame; 0 if the last frame found room.
    short: u16,
    /// The bytes put.
    volume: Volume,
}

// SAFETY: the pointers are used within one call only.
unsafe impl<F: Format> Send for Receive<F> {}

impl<F: Format> Receive<F> {
    /// A queue into which nothing was put yet.
    pub(crate) fn new(ring: Ring<F>, mergeable: bool, log: Option<Arc<DirtyLog>>) -> Receive<F> {
        let most = if mergeable { ring.size().min(MAX_SEGMENTS as u16) } else { 1 };
        let (chains, segments) =
            (Box::new([(F::Chain::default(), 0); MAX_SEGMENTS]), Box::new([(std::ptr::null_mut(), 0); MAX_SEGMENTS]));
        Receive { ring, most, log, chains, segments, short: 0, volume: Volume::default() }
    }

    /// Publishes what was put; returns when to do so again ([`Ring::publish`]).
    #[inline]
    pub(crate) fn publish(&mut self, now: Nanos) -> Nanos {
        let urgent = !self.volume.is_bulk(now);
        self.ring.publish(now, urgent)
    }

    /// Whether there are more buffers than when a frame last found too few.
    pub(crate) fn has_room(&mut self) -> Result<bool, Violation> {
        Ok(self.ring.available(self.short)? > 0)
    }

    /// Asks the driver to kick when there are more buffers. True if there are already.
    pub(crate) fn enable_notifications(&mut self) -> bool {
        self.ring.enable_notifications(self.short)
    }

    /// Copies one frame into the guest's buffers.
    ///
    /// # Errors
    /// The rule that the driver broke.
    #[inline]
    pub(crate) fn put(&mut self, memory: &GuestMemory, frame: &Frame<'_>) -> Result<Option<Refusal>, Violation> {
        let bytes = HEADER as u32 + frame.bytes() as u32;
        let gathered = match self.gather(memory, bytes)? {
            Ok(gathered) => gathered,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let mut writer = Writer::into(&self.segments[..gathered.segments]);
        let header = vnet::encode(frame.offload(), gathered.chains as u16);
        // SAFETY: `gather` found segments of guest memory with room for `bytes` in all, and header, head and body add
        // up to that. The sources are readable: two are ours, and the batch keeps the body's segments readable.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.head().as_ptr(), frame.head().len() as u32);
            for segment in frame.body() {
                writer.write(segment.start, segment.len);
            }
        }
        self.complete(memory, gathered, bytes);
        Ok(None)
    }

    /// Copies a frame with its checksum and segmentation done in software, for a driver without these offloads: all or
    /// nothing.
    ///
    /// # Errors
    /// As [`Receive::put`].
    pub(crate) fn put_with_software_offload(
        &mut self,
        memory: &GuestMemory,
        frame: &Frame<'_>,
        software: &mut SoftwareOffload,
    ) -> Result<Option<Refusal>, Violation> {
        let start = self.ring.next();
        let mut left = MAX_SEGMENTS;
        let outcome = software.each(frame, |bytes| match self.put_bytes(memory, bytes, &mut left) {
            Ok(None) => Ok(()),
            Ok(Some(refusal)) => Err(Ok(refusal)),
            Err(violation) => Err(Err(violation)),
        });
        let refusal = match outcome {
            Ok(Ok(())) => return Ok(None),
            Ok(Err(Ok(refusal))) => refusal,
            Ok(Err(Err(violation))) => return Err(violation),
            // The sender changed the frame after its header was checked.
            Err(_) => Refusal::Never(DropReason::Malformed),
        };
        if refusal == Refusal::Full {
            self.short += self.ring.next().wrapping_sub(start);
        }
        self.ring.take_back(start);
        if self.short == self.ring.size() { Ok(Some(TOO_LARGE)) } else { Ok(Some(refusal)) }
    }

    /// Copies a complete frame from our memory into the guest's buffers, using at most `left` segments.
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
        match left.checked_sub(gathered.segments) {
            Some(fewer) => *left = fewer,
            None => return Ok(Some(TOO_LARGE)),
        }
        let mut writer = Writer::into(&self.segments[..gathered.segments]);
        let header = vnet::encode(Offload::default(), gathered.chains as u16);
        // SAFETY: as in `put`.
        unsafe {
            writer.write(header.as_ptr(), HEADER as u32);
            writer.write(frame.as_ptr(), frame.len() as u32);
        }
        self.complete(memory, gathered, bytes);
        Ok(None)
    }

    /// Completes the gathered chains with `bytes` in them.
    #[inline]
    fn complete(&mut self, memory: &GuestMemory, gathered: Gathered, bytes: u32) {
        if let Some(log) = &self.log {
            mark(log, memory, &self.segments[..gathered.segments], bytes);
        }
        self.volume.add(bytes.into());
        let mut left = bytes;
        for &(chain, room) in &self.chains[..gathered.chains] {
            let here = left.min(room);
            self.ring.complete(chain, here);
            left -= here;
        }
    }

    /// Finds available chains with room for `bytes`.
    #[inline]
    fn gather(&mut self, memory: &GuestMemory, bytes: u32) -> Result<Result<Gathered, Refusal>, Violation> {
        let mut gathered = Gathered { chains: 0, segments: 0 };
        let (mut room, mut skip): (u32, u16) = (0, 0);
        loop {
            if self.ring.available(skip)? == 0 {
                self.short = skip;
                return Ok(Err(if skip == self.ring.size() { TOO_LARGE } else { Refusal::Full }));
            }
            let mut here: u32 = 0;
            let chain = self.ring.walk(skip, Direction::Write, memory, |start, len| {
                let place = self.segments.get_mut(gathered.segments).ok_or(Violation::TooManySegments)?;
                *place = (start, len);
                gathered.segments += 1;
                here = here.saturating_add(len);
                Ok(())
            })?;
            self.chains[gathered.chains] = (chain, here);
            gathered.chains += 1;
            skip += F::entries(chain);
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

/// How many chains and segments were found for a frame.
#[derive(Clone, Copy)]
struct Gathered {
    chains: usize,
    segments: usize,
}

/// Marks the first `bytes` bytes of segments of guest memory, after they were written.
#[cold]
fn mark(log: &DirtyLog, memory: &GuestMemory, segments: &[(*mut u8, u32)], bytes: u32) {
    let mut left = bytes;
    for &(start, room) in segments {
        memory.mark(log, start, left.min(room));
        left -= left.min(room);
    }
}

/// Writes sequentially into segments of guest memory.
struct Writer<'a> {
    /// The current segment: where there is room, and how much.
    start: *mut u8,
    room: u32,
    /// The segments after it.
    segments: &'a [(*mut u8, u32)],
}

impl<'a> Writer<'a> {
    /// Begins at the first byte.
    #[inline]
    fn into(segments: &'a [(*mut u8, u32)]) -> Writer<'a> {
        let (start, room) = segments[0];
        Writer { start, room, segments: &segments[1..] }
    }

    /// Appends bytes.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes; the segments are writable and have room for them.
    #[inline]
    unsafe fn write(&mut self, mut from: *const u8, mut len: u32) {
        if len <= self.room {
            // For a header, whose length the compiler knows, this is a move or two.
            // SAFETY: the caller's.
            return unsafe { self.append(from, len) };
        }
        while len > self.room {
            let room = self.room;
            // SAFETY: the caller's, as there are more bytes left than room here.
            from = unsafe {
                self.append(from, room);
                from.add(room as usize)
            };
            len -= room;
            ((self.start, self.room), self.segments) = (self.segments[0], &self.segments[1..]);
        }
        // SAFETY: the caller's, and there is room here for all that is left.
        unsafe { self.append(from, len) };
    }

    /// [`Writer::write`] where the current segment has room.
    ///
    /// # Safety
    /// As [`Writer::write`], with room for `len` bytes.
    #[inline]
    unsafe fn append(&mut self, from: *const u8, len: u32) {
        // SAFETY: the caller's. Source and target are different guests' memory, or ours and a guest's; where a guest
        // makes its own buffers overlap, `copy` is still defined.
        unsafe {
            access::copy(from, self.start, len as usize);
            self.start = self.start.add(len as usize);
        }
        self.room -= len;
    }
}
