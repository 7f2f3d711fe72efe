//! A ring of slots that kernel and process hand over to each other, each by the status word at its start (TPACKET_V2:
//! linux/if_packet.h, Documentation/networking/packet_mmap.rst).

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page.
const PAGE: usize = 4096;

/// Bytes of a slot: a frame of 64 KiB and everything before it. Whole pages, so that the kernel, which sends a frame from
/// its slot, needs no more than the 17 fragments that a packet may have (MAX_SKB_FRAGS).
pub(super) const SLOT: usize = 17 * PAGE;

/// Slots of a block, which the kernel allocates contiguously: this number fills the 512 pages that it allocates for a
/// block best.
pub(super) const BLOCK: usize = 30;

/// Bytes of virtio's header before a frame, as in the tap.
pub(super) const HEADER: usize = 10;

/// The slots of one ring, in memory that the owner maps.
pub(super) struct Slots {
    start: *mut u8,
    count: usize,
}

// SAFETY: the address of a mapping means the same in every thread.
unsafe impl Send for Slots {}

impl Slots {
    /// A ring of `count` slots from `start` on.
    ///
    /// # Safety
    /// `start` is the first of `count` slots that stay mapped as long as this lives and that nothing else in this process
    /// uses.
    pub(super) unsafe fn new(start: *mut u8, count: usize) -> Slots {
        Slots { start, count }
    }

    /// Number of slots.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The first byte of a slot; numbers wrap around.
    fn slot(&self, number: usize) -> *mut u8 {
        // SAFETY: it is below the mapping's end.
        unsafe { self.start.add(number % self.count * SLOT) }
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        // SAFETY: a slot begins at a page with its status, which both sides read and write atomically.
        unsafe { AtomicU32::from_ptr(self.slot(number).cast()) }
    }

    /// The status, which says whom a slot belongs to. What the kernel wrote into the slot before is visible.
    #[inline]
    pub(super) fn status(&self, number: usize) -> u32 {
        self.word(number).load(Ordering::Acquire)
    }

    /// Hands a slot over by this status. What was written into it before is visible to the kernel.
    #[inline]
    pub(super) fn hand_over(&self, number: usize, status: u32) {
        self.word(number).store(status, Ordering::Release);
    }

    /// The kernel's header of a frame, in a slot that belongs to the process.
    #[inline]
    pub(super) fn header(&self, number: usize) -> libc::tpacket2_hdr {
        // SAFETY: the header is at the slot's start, and consists of numbers. The kernel does not write to it while the
        // slot is ours.
        unsafe { self.slot(number).cast::<libc::tpacket2_hdr>().read() }
    }

    /// Sets the frame's length in a slot, before it is handed to the kernel.
    #[inline]
    pub(super) fn set_len(&mut self, number: usize, len: u32) {
        // SAFETY: the header is at the slot's start.
        unsafe { (&raw mut (*self.slot(number).cast::<libc::tpacket2_hdr>()).tp_len).write(len) };
    }

    /// All bytes of a slot that belongs to the process.
    ///
    /// # Safety
    /// The kernel has handed it to the process, and does not write to it until it is handed back.
    #[inline]
    pub(super) unsafe fn bytes(&self, number: usize) -> &[u8] {
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: a slot has SLOT bytes, and the caller guarantees that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.slot(number), SLOT)
        }
    }

    /// [`Slots::bytes`] for writing.
    ///
    /// # Safety
    /// As [`Slots::bytes`].
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, number: usize) -> &mut [u8] {
        #[expect(clippy::disallowed_methods, reason = "as above")]
        // SAFETY: as above, and no other reference into the ring lives beside this one.
        unsafe {
            std::slice::from_raw_parts_mut(self.slot(number), SLOT)
        }
    }
}
