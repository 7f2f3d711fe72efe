//! What one hardware queue of the card received. As many frames belong to a queue as its rings have entries, so they
//! are always either in one of the rings or in the kernel's hands, and neither ring overflows.
//!
//! A frame that is given back is added to the fill ring, then it is released from the other, then the fill ring is
//! published. So at any time there were as many frames added, in the order of the fill ring, as all frames of the queue and
//! those that were released: a process that follows one that was killed publishes what that one could not, and none is
//! lost or twice in a ring.

use super::memory::{Memory, RECEIVE};
use super::ring::{Consumer, Producer};
use crate::interface::get;
use libc::xdp_desc;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A queue and its socket.
pub(super) struct Queue {
    socket: Arc<OwnedFd>,
    /// Its number.
    number: usize,
    /// Places of frames that the kernel may receive into.
    fill: Producer<u64>,
    received: Consumer<xdp_desc>,
    /// Frames of the last offer that are not consumed.
    offered: u32,
    /// Frames that were missed before this process had the queue, and reported.
    reported: u64,
}

impl Queue {
    /// A queue whose frames were added to the fill ring once.
    pub(super) fn new(
        socket: Arc<OwnedFd>,
        number: usize,
        (fill, received): (Producer<u64>, Consumer<xdp_desc>),
        memory: &Memory,
    ) -> Queue {
        let reported = memory.reported(number).load(Relaxed);
        let mut queue = Queue { socket, number, fill, received, offered: 0, reported };
        queue.find();
        queue
    }

    /// Finds the places in both rings, after another process had them.
    pub(super) fn find(&mut self) {
        self.received.find();
        self.fill.find_up_to(self.received.next().wrapping_add(RECEIVE));
        self.offered = 0;
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
            // Before the release: this file's rule. The kernel finds the frame's begin by itself
            // (`xp_aligned_extract_addr`).
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

    /// Frames that found no free frame or no room in the ring, or were larger than a frame, and that no former process
    /// reported.
    ///
    /// What the kernel counts as `rx_fill_ring_empty_descs` is among its `rx_dropped`; with zero copy it is no frame,
    /// but an attempt of the driver to get one, and the card itself drops and counts.
    pub(super) fn missed(&self, memory: &Memory) -> u64 {
        // SAFETY: it consists of numbers, for which zero is a value.
        let none: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        let statistics = get(&self.socket, libc::SOL_XDP, libc::XDP_STATISTICS, none).unwrap_or(none);
        let missed = statistics.rx_dropped + statistics.rx_ring_full;
        memory.reported(self.number).store(missed, Relaxed);
        missed.saturating_sub(self.reported)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Layout;
    use super::super::ring::shared;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Processes are killed, after any store, while they give frames back: each frame is in the kernel's hands or in one
        /// ring, once, however often.
        #[test]
        fn every_frame_has_one_owner_wherever_a_process_was_killed(
            start in prop_oneof![Just(0), (u32::MAX - 5000)..],
            steps in prop::collection::vec((0..70u32, 0..70u32, 0..33u32, prop::option::of(0..33u32), any::<bool>()), 1..300),
        ) {
            let layout = Layout { index: 1, address: [0; 6], queues: 1, size: 2048 };
            let (memory, file) = Memory::new(layout).unwrap();
            let socket = Arc::new(OwnedFd::from(file));
            let (fill, received) = (shared::file(start), shared::file(start));
            let mut first = shared::producer(&fill, RECEIVE);
            memory.places(0..RECEIVE).for_each(|place| first.push(place));
            first.publish();
            let mut filled: Consumer<u64> = shared::consumer(&fill, RECEIVE);
            let mut arrives: Producer<xdp_desc> = shared::producer(&received, RECEIVE);
            let mut kernels = VecDeque::new();
            let next = || {
                let rings = (shared::producer(&fill, RECEIVE), shared::consumer(&received, RECEIVE));
                Queue::new(socket.clone(), 0, rings, &memory)
            };
            let mut queue = next();
            for (taken, arrived, consumed, killed_at, publishes) in steps {
                for _ in 0..taken.min(filled.available(taken)) {
                    kernels.push_back(filled.get(0));
                    filled.release(1);
                }
                for addr in kernels.drain(..kernels.len().min(arrived as usize)) {
                    arrives.push(xdp_desc { addr, len: 60, options: 0 });
                }
                arrives.publish();
                let offered = queue.offer(consumed);
                match killed_at {
                    // In the midst of `consume`: it has added some, and released none.
                    Some(added) if added < offered => {
                        (0..added).for_each(|index| queue.fill.push(queue.received.get(index).addr));
                        queue = next();
                    }
                    // After it.
                    Some(_) => {
                        queue.consume(consumed);
                        queue = next();
                    }
                    None => {
                        queue.consume(consumed);
                    }
                }
                if publishes {
                    queue.publish();
                }
            }
            queue.publish();
            let mut all: Vec<u64> = kernels.into();
            all.extend((0..filled.available(u32::MAX)).map(|index| filled.get(index)));
            all.extend((0..queue.received.available(u32::MAX)).map(|index| queue.received.get(index).addr));
            all.sort();
            prop_assert!(all.into_iter().eq(memory.places(0..RECEIVE)));
        }
    }
}
