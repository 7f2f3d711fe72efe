//! What an administrator grants a port toward its guest: its share of what all receive, and the queue in front of its ring.

use crate::sched::Share;
use crate::time::Nanos;

/// The terms of a port in the receiving direction. Rates are in bits a second, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// How its queue is served beside those of other guests.
    pub share: Share,
    /// Bytes that wait at most for room in the guest's ring. What comes beyond that is dropped.
    pub queue: u64,
    /// How long a frame waits at most. An older one is dropped: by then its sender has sent it again, or gave up.
    pub timeout: Nanos,
}

/// [`Receive::queue`] where the policy names none: 90 ms, three slices of Xen's credit scheduler, of more than 300 Mbit/s, and 2,700
/// full frames where a tap holds 1,000 (`txqueuelen`).
pub const QUEUE: u64 = 4 << 20;

/// [`Receive::timeout`] where the policy names none: sixteen slices of Xen's credit scheduler.
pub const TIMEOUT: Nanos = Nanos::from_millis(500);

/// Bytes that wait for all guests of a link together where the policy names none.
pub const POOL: u64 = 64 << 20;

impl Receive {
    /// The terms of a port that names none: the weight of what it sends, no rates.
    pub fn with_weight(weight: u32) -> Receive {
        Receive { share: Share::of_weight(weight), queue: QUEUE, timeout: TIMEOUT }
    }
}
