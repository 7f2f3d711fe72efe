//! The frames that the card is to send. All go through the card's first queue, so their order is kept: one worker fills
//! no more than one.
//!
//! The places of free frames are in the memory, in a circle: a frame that is added to the ring takes the first of them, and one
//! that was sent is put behind the last before it is released from the other ring. So the first and the last follow from the
//! rings' numbers, and after a process that was killed no frame of the memory is lost or used twice. What that process added
//! and did not publish is not sent.

use super::memory::{Memory, TRANSMIT};
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
    /// Places of frames that were sent. With those in both rings, in the kernel's hands and free, they are as many as a ring
    /// has entries.
    sent: Consumer<u64>,
    /// Frames that the driver dropped, or that were there when the interface went away.
    refused: u64,
    /// Whether the driver sends frames from where they lie.
    zero_copy: bool,
}

impl Transmit {
    /// Both rings, with what another process left in them.
    pub(super) fn new((ring, sent): (Producer<xdp_desc>, Consumer<u64>), zero_copy: bool) -> Transmit {
        Transmit { ring, sent, refused: 0, zero_copy }
    }

    /// Finds the places in both rings, after another process had them. What waits is sent with the next frame.
    pub(super) fn find(&mut self) {
        self.ring.find();
        self.sent.find();
    }

    /// The number of the place behind the last that is free. The first has the number of the next entry of the ring.
    #[inline]
    fn end(&self) -> u32 {
        self.sent.next().wrapping_add(TRANSMIT)
    }

    /// Number of free frames that are known.
    #[inline]
    fn free(&self) -> u32 {
        self.end().wrapping_sub(self.ring.filled())
    }

    /// Whether so many frames are free.
    #[inline]
    pub(super) fn has(&mut self, frames: u32, memory: &Memory) -> bool {
        if self.free() < frames {
            let (sent, end) = (self.sent.available(u32::MAX), self.end());
            // Before the release: this file's rule. What these overwrite was taken and published.
            (0..sent).for_each(|index| memory.set_free(end.wrapping_add(index), self.sent.get(index)));
            self.sent.release(sent);
        }
        self.free() >= frames
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
        assert!(self.free() > 0, "the caller saw a free frame");
        let place = memory.free(self.ring.filled());
        // SAFETY: a free frame is not the kernel's, and nobody else has a reference to it.
        let len = frame(unsafe { memory.frame_mut(place) })?;
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

#[cfg(test)]
mod tests {
    use super::super::memory::{Layout, RECEIVE};
    use super::super::ring::shared;
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::AsFd;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Processes are killed, after any store, while they add frames and find those that were sent, which are in any order:
        /// each frame's place is free, in the kernel's hands or in one ring, once. What was published is sent, once.
        #[test]
        fn every_frame_has_one_owner_wherever_a_process_was_killed(
            start in prop_oneof![Just(0), (u32::MAX - 5000)..],
            steps in prop::collection::vec(
                (0..300u32, 0..300u32, prop::collection::vec(any::<prop::sample::Index>(), 0..300), 0..5u32),
                1..100
            ),
        ) {
            let layout = Layout { index: 1, address: [0; 6], queues: 1, size: 2048 };
            let (mut memory, file) = Memory::new(layout).unwrap();
            let (ring, sent) = (shared::file(start), shared::file(start));
            let mut taken: Consumer<xdp_desc> = shared::consumer(&ring, TRANSMIT);
            let mut done: Producer<u64> = shared::producer(&sent, TRANSMIT);
            let next = || Transmit::new((shared::producer(&ring, TRANSMIT), shared::consumer(&sent, TRANSMIT)), false);
            let mut transmit = next();
            let (mut kernels, mut published, mut seen) = (Vec::new(), Vec::new(), Vec::new());
            for (number, (added, takes, completes, killed_at)) in steps.into_iter().enumerate() {
                transmit.has(added, &memory);
                let frames: Vec<_> = (0..added.min(transmit.free())).map(|index| [number as u32, index]).collect();
                for frame in &frames {
                    transmit.push_bytes(&mut memory, &frame.map(u32::to_ne_bytes).concat()).unwrap();
                }
                if killed_at == 0 {
                    // Before it published them.
                    transmit = next();
                } else {
                    transmit.send(file.as_fd()).unwrap();
                    published.extend(frames);
                }
                for _ in 0..takes.min(taken.available(takes)) {
                    let frame = taken.get(0);
                    // SAFETY: it is the kernel's, which is here.
                    let bytes = unsafe { memory.bytes(frame.addr, frame.len as usize) };
                    seen.push([0, 4].map(|at| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())));
                    kernels.push(frame.addr);
                    taken.release(1);
                }
                for index in completes {
                    if !kernels.is_empty() {
                        done.push(kernels.swap_remove(index.index(kernels.len())));
                    }
                }
                done.publish();
                match killed_at {
                    // In the midst of `has`: it has put some behind the free ones, and released none.
                    1 => {
                        let sent = transmit.sent.available(u32::MAX) / 2;
                        (0..sent).for_each(|index| {
                            memory.set_free(transmit.end().wrapping_add(index), transmit.sent.get(index));
                        });
                        transmit = next();
                    }
                    // After it.
                    2 => {
                        transmit.has(TRANSMIT, &memory);
                        transmit = next();
                    }
                    _ => {}
                }
            }
            transmit.has(TRANSMIT, &memory);
            let mut all: Vec<u64> = (0..transmit.free()).map(|index| memory.free(transmit.ring.filled().wrapping_add(index))).collect();
            let waiting: Vec<u64> = (0..taken.available(u32::MAX)).map(|index| taken.get(index).addr).collect();
            prop_assert_eq!(&seen[..], &published[..published.len() - waiting.len()]);
            all.extend(waiting.into_iter().chain(kernels));
            all.sort();
            prop_assert!(all.into_iter().eq(memory.places(RECEIVE..RECEIVE + TRANSMIT)));
        }
    }
}
