//! What one hardware queue of the card received. As many frames belong to a queue as its rings have entries, so they
//! are always either in one of the rings or in the kernel's hands, and neither ring overflows.

use super::ring::{Consumer, Producer};
use libc::xdp_desc;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A queue and its socket.
pub(super) struct Queue {
    pub socket: OwnedFd,
    /// Places of frames that the kernel may receive into.
    fill: Producer<u64>,
    received: Consumer<xdp_desc>,
    /// Frames of the last offer that are not consumed.
    offered: u32,
}

impl Queue {
    /// A queue whose fill ring has its frames.
    pub(super) fn new(socket: OwnedFd, fill: Producer<u64>, received: Consumer<xdp_desc>) -> Queue {
        Queue { socket, fill, received, offered: 0 }
    }

    /// Whether a frame waits.
    #[inline]
    pub(super) fn has_frames(&mut self) -> bool {
        self.received.available(1) > 0
    }

    /// Begins an offer of at most `most` frames. Returns how many.
    #[inline]
    pub(super) fn offer(&mut self, most: u32) -> u32 {
        self.offered = self.received.available(most).min(most);
        self.offered
    }

    /// Frames of the last offer that are not consumed.
    #[inline]
    pub(super) fn offered(&self) -> u32 {
        self.offered
    }

    /// A frame that was offered, counted from the first that is not consumed.
    #[inline]
    pub(super) fn frame(&self, index: u32) -> xdp_desc {
        self.received.get(index)
    }

    /// Gives back the first offered frames, at most `frames`. Returns how many.
    #[inline]
    pub(super) fn consume(&mut self, frames: u32) -> u32 {
        let frames = frames.min(self.offered);
        for index in 0..frames {
            // The kernel finds the frame's begin by itself (`xp_aligned_extract_addr`).
            self.fill.push(self.received.get(index).addr);
        }
        self.received.release(frames);
        self.offered -= frames;
        frames
    }

    /// Hands frames that were given back to the kernel, and wakes it if it ran out of them.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.fill.publish() {
            self.wake();
        }
    }

    /// Makes the driver look at the fill ring if it asked for that.
    #[inline]
    pub(super) fn wake(&self) {
        if self.fill.wants_wakeup() {
            // SAFETY: no pointer is passed. What the call cannot do now it does for the next burst.
            unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }

    /// Frames that found no free frame or no room in the ring, or were larger than a frame.
    ///
    /// What the kernel counts as `rx_fill_ring_empty_descs` is among its `rx_dropped`; with zero copy it is no frame,
    /// but an attempt of the driver to get one, and the card itself drops and counts.
    pub(super) fn missed(&self) -> u64 {
        // SAFETY: it consists of numbers, for which zero is a value.
        let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&statistics) as libc::socklen_t;
        let value = (&raw mut statistics).cast();
        // SAFETY: `statistics` has `len` bytes to be written. If the call fails they stay zero.
        unsafe { libc::getsockopt(self.socket.as_raw_fd(), libc::SOL_XDP, libc::XDP_STATISTICS, value, &raw mut len) };
        statistics.rx_dropped + statistics.rx_ring_full
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
