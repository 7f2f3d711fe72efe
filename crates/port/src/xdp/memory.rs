//! The memory that all queues of a card share with the kernel (UMEM): frames of the same size, each of them either the
//! kernel's or ours, as the rings say.

use crate::map::Map;
use std::io;
use std::ops::Range;

/// Bytes that the kernel leaves free before a received frame (XDP_PACKET_HEADROOM of linux/bpf.h).
const HEADROOM: usize = 256;

/// Sizes of a frame that the kernel accepts: half a page and a page.
const SIZES: [usize; 2] = [2048, 4096];

/// The frames.
pub(super) struct Memory {
    map: Map,
    /// Bytes of a frame.
    size: usize,
    frames: usize,
}

impl Memory {
    /// The size that a frame must have to hold `bytes` received bytes; none if no size is enough.
    pub(super) fn size_for(bytes: usize) -> Option<usize> {
        SIZES.into_iter().find(|size| HEADROOM + bytes <= *size)
    }

    /// Most bytes of a received frame.
    pub(super) const LARGEST: usize = SIZES[1] - HEADROOM;

    /// Takes memory for `frames` frames of `size` bytes.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn new(size: usize, frames: usize) -> io::Result<Memory> {
        Ok(Memory { map: Map::memory(size * frames)?, size, frames })
    }

    /// What the kernel is told about it.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.map.start() as u64,
            len: (self.size * self.frames) as u64,
            chunk_size: self.size as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// The places of some frames, as the rings name them.
    pub(super) fn places(&self, frames: Range<usize>) -> impl Iterator<Item = u64> + use<> {
        let size = self.size;
        frames.map(move |frame| (frame * size) as u64)
    }

    /// Most bytes of a frame to be sent.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Some bytes.
    ///
    /// # Panics
    /// If they are not within the memory.
    ///
    /// # Safety
    /// They are of a frame that is not the kernel's as long as the reference lives, and that no other reference for
    /// writing is about.
    #[inline]
    pub(super) unsafe fn bytes(&self, place: u64, len: usize) -> &[u8] {
        let place = place as usize;
        assert!(place.checked_add(len).is_some_and(|end| end <= self.size * self.frames), "the kernel named {place}");
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: they are within the mapping, and the caller guarantees that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.map.start().add(place), len)
        }
    }

    /// All bytes of the frame at a place, for writing.
    ///
    /// # Panics
    /// As [`Memory::bytes`].
    ///
    /// # Safety
    /// As [`Memory::bytes`].
    #[inline]
    pub(super) unsafe fn frame_mut(&mut self, place: u64) -> &mut [u8] {
        let place = place as usize;
        assert!(place + self.size <= self.size * self.frames);
        #[expect(clippy::disallowed_methods, reason = "as above")]
        // SAFETY: as above, and no other reference into the memory lives beside this one.
        unsafe {
            std::slice::from_raw_parts_mut(self.map.start().add(place), self.size)
        }
    }
}
