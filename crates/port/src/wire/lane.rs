//! One direction of a wire: a ring of bytes, and a queue of the frames in it.
//!
//! The [`Sender`] copies frames into free bytes of the ring without holding the lock, then publishes them; the
//! [`Receiver`] reads published bytes without holding it, and frees them when they are consumed. So the lock is held
//! for a few dozen words of bookkeeping once a burst, never during a copy. A frame is contiguous: if it does not fit
//! before the ring's end it starts at the beginning, and the bytes skipped count as its own.

use crate::{BURST, Batch, Burst, Frame};
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of the largest frame a wire carries: 64 KiB of IP, an Ethernet header and room for VLAN tags.
pub const FRAME: u64 = 65_550;

/// The least space a frame takes, so that the number of frames is bounded too: Ethernet's shortest, without its FCS.
const SHORTEST: usize = 60;

/// A published frame.
#[derive(Clone, Copy)]
struct Slot {
    start: usize,
    len: usize,
    /// Bytes of the ring that it takes up.
    taken: usize,
    offload: Offload,
    arrival: Nanos,
}

struct Queue {
    slots: VecDeque<Slot>,
    /// Bytes of the ring that were freed and not yet claimed by the sender.
    freed: usize,
    receiver_sleeps: bool,
    /// The number of bytes that a sleeping sender waits for.
    sender_wants: Option<usize>,
    /// Bytes taken up by all frames in `slots`.
    held: usize,
}

/// The state shared by both halves.
pub(super) struct Lane {
    bytes: Box<[UnsafeCell<u8>]>,
    queue: Mutex<Queue>,
}

// SAFETY: only the two halves, of which there is one each, access the cells, through raw pointers. Every byte of the
// ring belongs to the sender (free) or to the receiver (published and not consumed); it changes hands under the mutex.
unsafe impl Sync for Lane {}

/// The half that frames are put into.
pub(super) struct Sender {
    lane: Arc<Lane>,
    /// Where the next frame starts, if it fits before the end.
    write: usize,
    /// Free bytes of the ring, as far as known.
    free: usize,
    /// Frames copied but not published.
    pending: Vec<Slot>,
}

/// The half that frames are taken from.
pub(super) struct Receiver {
    lane: Arc<Lane>,
    /// The frames of the last offer.
    shown: Vec<Slot>,
}

impl Lane {
    /// The halves of a lane that holds frames of `storage` bytes.
    pub(super) fn pair(storage: usize) -> (Sender, Receiver) {
        // One frame more, for the bytes lost at the ring's end.
        let size = storage + FRAME as usize;
        let slots = VecDeque::with_capacity(size / SHORTEST + 1);
        let queue = Queue { slots, freed: 0, receiver_sleeps: false, sender_wants: None, held: 0 };
        // Zeroed memory from the system is not touched until it is used.
        let bytes = Box::into_raw(vec![0u8; size].into_boxed_slice()) as *mut [UnsafeCell<u8>];
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box is ours alone.
        let bytes = unsafe { Box::from_raw(bytes) };
        let lane = Arc::new(Lane { bytes, queue: Mutex::new(queue) });
        let sender = Sender { lane: lane.clone(), write: 0, free: size, pending: Vec::with_capacity(BURST) };
        (sender, Receiver { lane, shown: Vec::with_capacity(BURST) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder panics")
    }
}

impl Sender {
    /// Where a frame would start, and the bytes of the ring it would take up.
    fn place(&self, bytes: usize) -> (usize, usize) {
        let own = bytes.max(SHORTEST);
        let left = self.lane.bytes.len() - self.write;
        if own <= left { (self.write, own) } else { (0, left + own) }
    }

    /// Whether the ring has room for a frame.
    pub(super) fn fits(&mut self, bytes: u64) -> bool {
        let taken = self.place(bytes as usize).1;
        if taken > self.free {
            self.free += std::mem::take(&mut self.lane.queue().freed);
        }
        taken <= self.free
    }

    /// Copies a frame that fits.
    pub(super) fn push(&mut self, frame: &Frame<'_>, arrival: Nanos) {
        let bytes = frame.bytes() as usize;
        let (start, taken) = self.place(bytes);
        assert!(taken <= self.free && start + bytes <= self.lane.bytes.len(), "the caller checked that it fits");
        let to = self.lane.bytes[start..].as_ptr() as *mut u8;
        // SAFETY: `start + bytes` is within the ring (asserted), and these bytes are free: the receiver has freed them
        // and does not see them again before they are published.
        let len = unsafe { frame.copy_to(to) };
        self.write = start + bytes.max(SHORTEST);
        self.free -= taken;
        self.pending.push(Slot { start, len, taken, offload: frame.offload(), arrival });
    }

    /// Publishes pushed frames. True if the receiver must be woken: it sleeps, and knew of no frame.
    pub(super) fn publish(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let mut queue = self.lane.queue();
        let wake = queue.receiver_sleeps && queue.slots.is_empty();
        queue.held += self.pending.iter().map(|slot| slot.taken).sum::<usize>();
        queue.slots.extend(self.pending.drain(..));
        queue.receiver_sleeps &= !wake;
        wake
    }

    /// Asks to be woken when a frame of `bytes` fits. True if it does already.
    pub(super) fn enable_notifications(&mut self, bytes: u64) -> bool {
        let taken = self.place(bytes as usize).1;
        let mut queue = self.lane.queue();
        self.free += std::mem::take(&mut queue.freed);
        queue.sender_wants = (taken > self.free).then(|| taken - self.free);
        taken <= self.free
    }

    /// Withdraws the request.
    pub(super) fn disable_notifications(&mut self) {
        self.lane.queue().sender_wants = None;
    }
}

impl Receiver {
    /// When the next frame arrives or arrived.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.lane.queue().slots.front().map(|slot| slot.arrival)
    }

    /// Shows the frames that have arrived.
    pub(super) fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.shown.clear();
        let mut bytes = 0;
        let queue = self.lane.queue();
        for slot in queue.slots.iter().take(BURST.min(budget.frames as usize)) {
            if slot.arrival > now || bytes >= budget.bytes {
                break;
            }
            bytes += slot.len as u64;
            self.shown.push(*slot);
        }
        drop(queue);
        let mut filler = burst.fill();
        for slot in &self.shown {
            let cells = &self.lane.bytes[slot.start..slot.start + slot.len];
            #[expect(clippy::disallowed_methods, reason = "memory of this process")]
            // SAFETY: a published frame is not written to before it is consumed. That needs an exclusive reference to
            // this receiver, which is borrowed as long as the batch lives.
            let frame = unsafe { std::slice::from_raw_parts(cells.as_ptr() as *const u8, cells.len()) };
            filler.push(frame, slot.offload);
        }
        filler.done()
    }

    /// Frees the first frames. True if the sender must be woken: it sleeps, and has the room it waits for.
    pub(super) fn consume(&mut self, frames: usize) -> bool {
        assert!(frames <= self.shown.len(), "no more frames are consumed than were offered");
        self.shown.clear();
        let mut queue = self.lane.queue();
        let taken = queue.slots.drain(..frames).map(|slot| slot.taken).sum::<usize>();
        queue.freed += taken;
        queue.held -= taken;
        // The sender is woken when half of the ring is free, not for each frame.
        let wake =
            queue.sender_wants.is_some_and(|wanted| queue.freed >= wanted && queue.held <= self.lane.bytes.len() / 2);
        if wake {
            queue.sender_wants = None;
        }
        wake
    }

    /// Asks to be woken for the first frame if the lane is empty; otherwise returns when the next frame arrives.
    pub(super) fn enable_notifications(&mut self) -> Option<Nanos> {
        let mut queue = self.lane.queue();
        queue.receiver_sleeps = true;
        queue.slots.front().map(|slot| slot.arrival)
    }

    /// Withdraws the request.
    pub(super) fn disable_notifications(&mut self) {
        self.lane.queue().receiver_sleeps = false;
    }

    /// Whether the sender is gone.
    pub(super) fn alone(&self) -> bool {
        Arc::strong_count(&self.lane) < 2
    }
}
