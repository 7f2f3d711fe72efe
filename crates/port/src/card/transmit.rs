//! The frames that the card is to send: they are copied into the ring, and the kernel is told once a round. It sends
//! them from the ring, so a slot is free again only when the card is done with it.

use super::open::TRANSMIT;
use super::slots::{HEADER, Slots};
use crate::burst::{Frame, HEAD};
use crate::interface::check;
use crate::vnet;
use fairlane_core::time::Nanos;
use libc::{TP_STATUS_AVAILABLE, TP_STATUS_SEND_REQUEST, TP_STATUS_SENDING, TP_STATUS_WRONG_FORMAT};
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

/// Offset of virtio's header in a slot: after the kernel's header, which has no address here (`tpacket_parse_header` in
/// linux/net/packet/af_packet.c).
const DATA: usize = libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>();

/// Bytes of the largest frame.
pub(super) const LARGEST: usize = TRANSMIT.slot - DATA - HEADER;

/// A frame that the interface's queue has dropped for this long is given up, even if other frames are in flight.
///
/// A drop for want of room loses nothing, as the frame stays in the ring; but a filter in that queue drops it for ever,
/// and the kernel reports both alike. As long as frames of ours are in flight, they may be what fills the queue, and
/// the frame waits. When none is, it is tried once more, at once, and then given up: otherwise a guest could block all
/// others by frames that are filtered.
const DROP_TIMEOUT: Nanos = Nanos::from_millis(100);

/// The transmit ring. Slot numbers only grow.
pub(super) struct Transmit {
    slots: Slots,
    /// The first slot that the kernel has not taken, and the first that is not filled.
    sent: usize,
    filled: usize,
    /// Since when the interface's queue has dropped the first waiting frame.
    dropped: Option<Nanos>,
    /// Frames given up.
    refused: u64,
}

impl Transmit {
    /// A ring, with the frames that wait in it.
    pub(super) fn new(slots: Slots) -> Transmit {
        let mut transmit = Transmit { slots, sent: 0, filled: 0, dropped: None, refused: 0 };
        transmit.find();
        transmit
    }

    /// Finds the frames that wait, after another process had the ring. They are sent with the next one.
    pub(super) fn find(&mut self) {
        let waiting = self.slots.find(|status| matches!(status, TP_STATUS_SEND_REQUEST | TP_STATUS_WRONG_FORMAT));
        (self.sent, self.filled, self.dropped) = (waiting.start, waiting.end, None);
    }

    /// Most frames that wait. One slot never does, so that the first that does is known by its status.
    fn most(&self) -> usize {
        self.slots.count() - 1
    }

    /// Whether a quarter of the slots is free: as slots are used in turn, if the last of those is.
    pub(super) fn has_room(&self) -> bool {
        let ahead = self.slots.count() / 4;
        self.waiting() + ahead < self.most() && self.slots.status(self.filled + ahead) == TP_STATUS_AVAILABLE
    }

    /// Number of frames that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.filled - self.sent
    }

    /// Frames that the kernel refused, as malformed or for good.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Copies a frame of at most [`LARGEST`] bytes into the next slot. False if that is not free.
    pub(super) fn push(&mut self, frame: &Frame<'_>) -> bool {
        let len = frame.bytes() as usize;
        let mut header = vnet::encode(frame.offload(), 0);
        if frame.offload().gso.is_none() {
            // The kernel copies this much into its own memory: all that drivers read, and small frames entirely.
            header[2..4].copy_from_slice(&(len.min(HEAD) as u16).to_le_bytes());
        }
        if self.waiting() >= self.most() {
            return false;
        }
        let Some(mut slot) = self.slots.free(self.filled) else { return false };
        let (to_header, to_frame) = slot.bytes()[DATA..DATA + HEADER + len].split_at_mut(HEADER);
        to_header.copy_from_slice(&header[..HEADER]);
        // SAFETY: the slot has so many bytes, and is ours.
        let copied = unsafe { frame.copy_to(to_frame.as_mut_ptr()) };
        slot.send((HEADER + copied) as u32);
        self.filled += 1;
        // After the status: the slots' rule.
        self.slots.set_place(self.filled);
        true
    }

    /// Makes the kernel send waiting frames, as far as it can. The rest waits.
    ///
    /// # Errors
    /// The system's error: ENETDOWN or ENXIO if the interface is down or gone.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, now: Nanos) -> io::Result<()> {
        let mut tried = false;
        while self.waiting() > 0 {
            let before = self.sent;
            // SAFETY: no pointer is passed: the frames are in the ring.
            let sent = unsafe {
                libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
            };
            let outcome = check(sent.clamp(-1, 0) as libc::c_int);
            self.advance();
            if self.sent > before {
                (self.dropped, tried) = (None, false);
            }
            if self.waiting() > 0 && self.slots.status(self.sent) == TP_STATUS_WRONG_FORMAT {
                self.give_up();
                continue;
            }
            let Err(error) = outcome else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ENOBUFS) => {
                    let alone = !self.has_frames_in_flight();
                    if (alone && tried) || now.since(*self.dropped.get_or_insert(now)) >= DROP_TIMEOUT {
                        (self.dropped, tried) = (None, false);
                        self.give_up();
                    } else if alone {
                        tried = true;
                    } else {
                        return Ok(());
                    }
                }
                Some(libc::EAGAIN | libc::ENOMEM) => return Ok(()),
                _ => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the kernel took frames that are not sent yet.
    fn has_frames_in_flight(&self) -> bool {
        (self.filled.saturating_sub(self.slots.count())..self.sent)
            .any(|number| self.slots.status(number) == TP_STATUS_SENDING)
    }

    /// Advances to the first slot that the kernel has not taken.
    fn advance(&mut self) {
        let taken = |status| !matches!(status, TP_STATUS_SEND_REQUEST | TP_STATUS_WRONG_FORMAT);
        while self.sent < self.filled && taken(self.slots.status(self.sent)) {
            self.sent += 1;
        }
    }

    /// Drops the first waiting frame: as the kernel resumes where it stopped, the frames after it move up.
    fn give_up(&mut self) {
        self.refused += 1;
        tracing::warn!(refused = self.refused, "the kernel refused a frame for a card");
        for number in self.sent..self.filled - 1 {
            let len = self.slots.header(number + 1).tp_len as usize;
            // SAFETY: waiting slots belong to the process until the kernel is told to send.
            let from = unsafe { self.slots.bytes(number + 1)[DATA..DATA + len].as_ptr() };
            // SAFETY: as above.
            let mut slot = unsafe { self.slots.refill(number) };
            // SAFETY: they are two slots, each with so many bytes.
            unsafe { from.copy_to_nonoverlapping(slot.bytes()[DATA..DATA + len].as_mut_ptr(), len) };
            slot.send(len as u32);
        }
        self.take_last();
    }

    /// Drops all waiting frames, as the interface is down.
    pub(super) fn abandon(&mut self) {
        self.refused += self.waiting() as u64;
        while self.filled > self.sent {
            self.take_last();
        }
    }

    /// Takes the last waiting frame out of the ring.
    fn take_last(&mut self) {
        self.filled -= 1;
        // Before the status: the slots' rule.
        self.slots.set_place(self.filled);
        self.slots.hand_over(self.filled, TP_STATUS_AVAILABLE);
    }
}
