//! Frames received by a packet socket: they wait in the ring until they are consumed, and are copied from there.

use super::open;
use super::slots::{HEADER, Received, Slots};
use crate::burst::{BURST, HEAD};
use crate::map::Map;
use crate::vnet;
use fairlane_core::packet::Offload;
use libc::{
    TP_STATUS_KERNEL, TP_STATUS_LOSING, TP_STATUS_USER, TP_STATUS_VLAN_TPID_VALID, TP_STATUS_VLAN_VALID, tpacket2_hdr,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a VLAN tag.
const TAG: usize = 4;

/// The usual tag type (IEEE 802.1Q), if the kernel does not state one.
const VLAN: u16 = 0x8100;

/// NEEDS_CSUM of virtio's header, and the place of its csum_start.
const PARTIAL: u8 = 1;
const START: std::ops::Range<usize> = 6..8;

/// A frame that waits in its slot. One that cannot be passed on has no bytes, so that the switch counts it as
/// malformed.
#[derive(Clone, Copy, Default)]
struct Waiting {
    /// Where it begins: in the slot, when it is found there, and in the ring.
    start: usize,
    len: usize,
    offload: Offload,
}

/// The receive ring of a packet socket.
pub(crate) struct Receive {
    slots: Slots,
    /// The slot of the first frame that is not consumed. Slot numbers only grow.
    next: usize,
    /// The frames read from there on, each at its slot number modulo BURST.
    frames: [Waiting; BURST],
    count: usize,
    /// Frames that found no free slot.
    missed: u64,
    socket: Arc<OwnedFd>,
    _map: Map,
}

impl Receive {
    /// A socket's ring, with the frames that wait in it. The slots are in `map`.
    pub(super) fn new(socket: Arc<OwnedFd>, map: Map, slots: Slots) -> Receive {
        let frames = [Waiting::default(); BURST];
        let mut receive = Receive { slots, next: 0, frames, count: 0, missed: 0, socket, _map: map };
        receive.find();
        receive
    }

    /// Finds the first frame that is not consumed, after another process had the ring.
    pub(crate) fn find(&mut self) {
        (self.next, self.count) = (self.slots.find(|status| status & TP_STATUS_USER != 0).start, 0);
        self.look_at(0);
    }

    /// Has [`Receive::has_next`] tell of the frame with this index from now on, counted from the first that is not consumed then.
    #[inline]
    pub(super) fn look_at(&mut self, index: usize) {
        self.slots.set_next(self.next + index);
    }

    /// Whether that frame is there.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.slots.next_status() & TP_STATUS_USER != 0
    }

    /// Reads slots until `wanted` frames wait. Returns how many do.
    pub(crate) fn fill(&mut self, wanted: usize) -> usize {
        let mut losing = false;
        while self.count < wanted.min(BURST) {
            let number = self.next + self.count;
            let Some(Received { at, status, header, bytes }) = self.slots.received(number) else { break };
            losing |= status & TP_STATUS_LOSING != 0;
            let mut frame = waiting(bytes, &header, status).unwrap_or_else(|| {
                tracing::warn!(bytes = header.tp_len, "a card received a frame that cannot be passed on");
                Waiting::default()
            });
            frame.start += at;
            self.frames[number % BURST] = frame;
            self.count += 1;
        }
        if losing {
            let missed = open::missed(&self.socket);
            self.missed += missed;
            tracing::warn!(missed, "a card's ring was full: frames from the wire were lost");
        }
        self.count
    }

    /// A waiting frame, counted from the first.
    #[inline]
    pub(crate) fn frame(&self, index: usize) -> (&[u8], Offload) {
        let Waiting { start, len, offload } = self.frames[(self.next + index) % BURST];
        // SAFETY: the slot belongs to the process until `consume`, for which this borrow must have ended.
        (unsafe { self.slots.part(start, len) }, offload)
    }

    /// When a waiting frame arrived, in seconds and nanoseconds.
    pub(super) fn arrival(&self, index: usize) -> (u32, u32) {
        let header = self.slots.header(self.next + index);
        (header.tp_sec, header.tp_nsec)
    }

    /// Returns the slots of the first frames to the kernel.
    pub(crate) fn consume(&mut self, frames: usize) {
        assert!(frames <= self.count, "no more frames are consumed than were offered");
        let consumed = self.next..self.next + frames;
        self.next = consumed.end;
        // Before the statuses: the slots' rule.
        self.slots.set_place(self.next);
        consumed.for_each(|number| self.slots.hand_over(number, TP_STATUS_KERNEL));
        self.count -= frames;
    }

    /// Frames that found no free slot.
    pub(crate) fn missed(&self) -> u64 {
        self.missed
    }

    /// Clears the error that the socket holds since its interface went down, so that the next call does not return it.
    pub(crate) fn clear_error(&self) {
        open::clear_error(&self.socket);
    }
}

impl AsFd for Receive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Finds the frame in a slot, after putting a VLAN tag that the card stripped back in its place. None if the frame is
/// incomplete, or its offload cannot be expressed.
fn waiting(slot: &mut [u8], header: &tpacket2_hdr, status: u32) -> Option<Waiting> {
    let (mut start, mut len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
    if start < HEADER + TAG || start + len > slot.len() || header.tp_snaplen < header.tp_len {
        return None;
    }
    let mut vnet = [0; HEADER];
    vnet.copy_from_slice(&slot[start - HEADER..start]);
    if status & TP_STATUS_VLAN_VALID != 0 && len >= 12 {
        slot.copy_within(start..start + 12, start - TAG);
        (start, len) = (start - TAG, len + TAG);
        let kind = if status & TP_STATUS_VLAN_TPID_VALID != 0 { header.tp_vlan_tpid } else { VLAN };
        slot[start + 12..start + 14].copy_from_slice(&kind.to_be_bytes());
        slot[start + 14..start + 16].copy_from_slice(&header.tp_vlan_tci.to_be_bytes());
        if vnet[0] & PARTIAL != 0 {
            // The kernel counts without the tag.
            let start_without_tag = u16::from_le_bytes([vnet[START.start], vnet[START.start + 1]]);
            vnet[START].copy_from_slice(&start_without_tag.saturating_add(TAG as u16).to_le_bytes());
        }
    }
    let head = &slot[start..start + len.min(HEAD)];
    let offload = vnet::decode(&vnet, len as u32, head).ok()?;
    Some(Waiting { start, len, offload })
}
