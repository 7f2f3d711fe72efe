//! The frames that the card is to send. All go through the card's first queue, so their order is kept: one worker fills
//! no more than one.

use super::memory::Memory;
use super::ring::{Consumer, Producer};
use crate::burst::Frame;
use crate::interface::check;
use fairlane_core::packet::{Checksum, Error, checksum};
use libc::xdp_desc;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

/// Frames being sent, and those that are free.
pub(super) struct Transmit {
    ring: Producer<xdp_desc>,
    sent: Consumer<u64>,
    /// Places of free frames. With those in the rings and in the kernel's hands, they are as many as the rings have
    /// entries.
    free: Vec<u64>,
    frames: usize,
    /// Frames that the driver dropped, or that were there when the interface went away.
    refused: u64,
    /// Whether the driver sends frames from where they lie.
    zero_copy: bool,
}

impl Transmit {
    /// Rings with no frame in them yet.
    pub(super) fn new(ring: Producer<xdp_desc>, sent: Consumer<u64>, free: Vec<u64>, zero_copy: bool) -> Transmit {
        Transmit { ring, sent, frames: free.len(), free, refused: 0, zero_copy }
    }

    /// Whether so many frames are free.
    #[inline]
    pub(super) fn has(&mut self, frames: usize) -> bool {
        if self.free.len() < frames {
            let sent = self.sent.available(u32::MAX);
            self.free.extend((0..sent).map(|index| self.sent.get(index)));
            self.sent.release(sent);
        }
        self.free.len() >= frames
    }

    /// Number of all frames.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Frames that were accepted and not sent.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Copies a frame that need not be cut, and is no larger than one of the memory's, and completes its checksum. One
    /// must be free.
    ///
    /// # Errors
    /// The checksum's place is not within the frame.
    #[inline]
    pub(super) fn push(&mut self, memory: &mut Memory, frame: &Frame<'_>) -> Result<(), Error> {
        self.write(memory, |to| {
            assert!(frame.bytes() as usize <= to.len());
            // SAFETY: there is room for so many bytes, which are ours.
            let len = unsafe { frame.copy_to(to.as_mut_ptr()) };
            if let Checksum::Partial { start, offset } = frame.offload().checksum {
                checksum::complete(&mut to[..len], start, offset)?;
            }
            Ok(len)
        })
    }

    /// Copies a complete frame. One must be free.
    #[inline]
    pub(super) fn push_bytes(&mut self, memory: &mut Memory, bytes: &[u8]) -> Result<(), Error> {
        self.write(memory, |to| {
            to[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    /// Has a free frame written, and puts it into the ring. The function returns its length.
    #[inline]
    fn write(
        &mut self,
        memory: &mut Memory,
        frame: impl FnOnce(&mut [u8]) -> Result<usize, Error>,
    ) -> Result<(), Error> {
        let place = *self.free.last().expect("the caller saw a free frame");
        // SAFETY: a free frame is not the kernel's, and nobody else has a reference to it.
        let len = frame(unsafe { memory.frame_mut(place) })?;
        self.free.pop();
        self.ring.push(xdp_desc { addr: place, len: len as u32, options: 0 });
        Ok(())
    }

    /// Publishes all frames, and makes the kernel send them if it does not by itself. Returns whether some wait still.
    ///
    /// # Errors
    /// The system's error: ENETDOWN or ENXIO if the interface is down or gone.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.ring.publish();
        loop {
            let waiting = self.ring.waiting();
            if waiting == 0 || !self.ring.wants_wakeup() {
                return Ok(waiting > 0);
            }
            // SAFETY: no pointer is passed: the frames are in the ring.
            let done = unsafe {
                libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            // Without zero copy a call sends 32 frames, and says EAGAIN if there are more (`xsk_generic_xmit` in
            // linux/net/xdp/xsk.c).
            let has_sent = self.ring.waiting() < waiting;
            match check(done.clamp(-1, 0) as libc::c_int).map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) => return Ok(self.ring.waiting() > 0),
                // The driver dropped a frame: there is no carrier, or no room.
                Err((Some(libc::EBUSY), _)) if has_sent && !self.zero_copy => self.refused += 1,
                Err((Some(libc::EAGAIN | libc::EBUSY), _)) if has_sent => {}
                Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM), _)) => return Ok(true),
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Counts what is in the ring as lost: the interface is gone.
    pub(super) fn abandon(&mut self) {
        self.refused += u64::from(self.ring.waiting());
    }
}
