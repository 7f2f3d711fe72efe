//! Which of a guest's several queues a frame goes to (a flow stays on one queue, which keeps its order), their combined
//! state, and which queue to offer frames from.

use fairlane_core::ack::Ring;

/// The index of the queue, of `queues`, for a frame that begins with `head`.
#[inline]
pub(crate) fn queue(head: &[u8], queues: usize) -> usize {
    if queues == 1 {
        return 0;
    }
    // From the MAC addresses to the transport's ports: fields that are constant within a flow.
    let flow = [0..12, 26..38].into_iter().filter_map(|part| head.get(part)).flatten();
    let hash = flow.fold(0u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    ((u64::from(hash) * queues as u64) >> 32) as usize
}

/// The state of a guest's receive rings, added up as if they were one.
pub(crate) fn combined(rings: impl Iterator<Item = Ring>) -> Ring {
    rings.fold(Ring::default(), |all, ring| Ring {
        waiting: all.waiting + ring.waiting,
        taken: all.taken.wrapping_add(ring.taken),
    })
}

/// Round robin among a guest's transmit queues. A queue keeps its turn until all frames that it offered are consumed:
/// otherwise other frames than those already shown would be judged, and the first ones judged a second time, as if they
/// had come twice.
#[derive(Default)]
pub(crate) struct Turn {
    queue: usize,
    /// Frames of it that were offered and not consumed.
    left: usize,
}

impl Turn {
    /// The queue to offer from, of `queues`: the first for which `waiting` is true.
    #[inline]
    pub(crate) fn next(&self, queues: usize, mut waiting: impl FnMut(usize) -> bool) -> Option<usize> {
        let first = self.queue + usize::from(self.left == 0);
        (0..queues).map(|step| (first + step) % queues).find(|queue| waiting(*queue))
    }

    /// Notes an offer of `frames` frames.
    #[inline]
    pub(crate) fn offered(&mut self, queue: usize, frames: usize) {
        *self = Turn { queue, left: frames };
    }

    /// The queue of the last offer, and its frames that were offered and not taken.
    pub(crate) fn shown(&self) -> (usize, usize) {
        (self.queue, self.left)
    }

    /// Notes that frames of the last offer were consumed. Returns their queue.
    #[inline]
    pub(crate) fn taken(&mut self, frames: usize) -> usize {
        self.left -= frames;
        self.queue
    }
}
