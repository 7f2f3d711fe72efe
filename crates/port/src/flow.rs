//! Which of several queues a frame goes to: a flow stays on its own, as its order must not change. How they stand together.

use fairlane_core::ack::Ring;

/// The number of the queue, of `queues`, for a frame that begins with `head`.
#[inline]
pub(crate) fn queue(head: &[u8], queues: usize) -> usize {
    if queues == 1 {
        return 0;
    }
    // From the MAC addresses to the transport's ports, over the fields that a flow does not change.
    let flow = [0..12, 26..38].into_iter().filter_map(|part| head.get(part)).flatten();
    let hash = flow.fold(0u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    ((u64::from(hash) * queues as u64) >> 32) as usize
}

/// How several receive rings of a guest stand, as if they were one.
pub(crate) fn together(rings: impl Iterator<Item = Ring>) -> Ring {
    rings.fold(Ring::default(), |all, ring| Ring {
        waiting: all.waiting + ring.waiting,
        taken: all.taken.wrapping_add(ring.taken),
    })
}
