//! A ring of slots that kernel and process pass to each other, each by the word at its start (TPACKET_V2:
//! linux/if_packet.h, Documentation/networking/packet_mmap.rst).

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes of a slot: a frame of 64 KiB with all that is before it. Whole pages, so that the kernel, which sends a frame from
/// where it lies, needs no more than the 17 pieces of memory that a packet of its own may have (MAX_SKB_FRAGS).
pub const SLOT: usize = 17 * PAGE;

/// Slots of a block, which the kernel would have in one piece of memory: these fill the 512 pages that it gives for as many
/// best.
pub const BLOCK: usize = 30;

/// Bytes of virtio's header in front of a frame, as the tap has it.
pub const HEADER: usize = 10;

/// The slots of one ring, in memory that somebody else maps.
pub struct Slots {
    start: *mut u8,
    count: usize,
}

// SAFETY: the address of a mapping means the same in every thread.
unsafe impl Send for Slots {}

impl Slots {
    /// # Safety
    /// `start` is the first of `count` slots that stay mapped as long as this lives, and that nobody in this process uses
    /// otherwise.
    pub unsafe fn new(start: *mut u8, count: usize) -> Slots {
        Slots { start, count }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The first byte of a slot; numbers go round.
    fn slot(&self, number: usize) -> *mut u8 {
        // SAFETY: it is below the mapping's end.
        unsafe { self.start.add(number % self.count * SLOT) }
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        // SAFETY: a slot begins at a page, with its status, which either side reads and writes in one piece.
        unsafe { AtomicU32::from_ptr(self.slot(number).cast()) }
    }

    /// Whose a slot is. What the kernel wrote into it before is there.
    #[inline]
    pub fn status(&self, number: usize) -> u32 {
        self.word(number).load(Ordering::Acquire)
    }

    /// Says whose a slot is from now on. What was written into it before is there for the kernel.
    #[inline]
    pub fn give(&self, number: usize, status: u32) {
        self.word(number).store(status, Ordering::Release);
    }

    /// What the kernel wrote of a frame, into a slot that is the process's.
    #[inline]
    pub fn header(&self, number: usize) -> libc::tpacket2_hdr {
        // SAFETY: the header is at the slot's start, and numbers alone. The kernel leaves it alone while the slot is ours.
        unsafe { self.slot(number).cast::<libc::tpacket2_hdr>().read() }
    }

    /// Writes what a slot holds, before it is given to the kernel.
    #[inline]
    pub fn set_len(&mut self, number: usize, len: u32) {
        // SAFETY: the header is at the slot's start.
        unsafe { (&raw mut (*self.slot(number).cast::<libc::tpacket2_hdr>()).tp_len).write(len) };
    }

    /// All bytes of a slot that is the process's.
    ///
    /// # Safety
    /// The kernel has given it to the process, and does not write to it until it is given back.
    #[inline]
    pub unsafe fn bytes(&self, number: usize) -> &[u8] {
        #[expect(clippy::disallowed_methods, reason = "the kernel's, which leaves them alone")]
        // SAFETY: a slot has SLOT bytes, and the caller sees to it that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.slot(number), SLOT)
        }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// As [`Slots::bytes`].
    #[inline]
    pub unsafe fn bytes_mut(&mut self, number: usize) -> &mut [u8] {
        #[expect(clippy::disallowed_methods, reason = "as above")]
        // SAFETY: as above, and no other reference into the ring lives beside this one.
        unsafe {
            std::slice::from_raw_parts_mut(self.slot(number), SLOT)
        }
    }
}
