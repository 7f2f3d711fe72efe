//! How often a driver is called. A call interrupts the guest, the dearest thing that happens to it, so one that can wait waits for
//! others: network cards moderate their interrupts in the same way.

use fairlane_core::time::Nanos;

/// A call that is not urgent comes no sooner than this after the last. With one a large frame, TCP between two User-Mode Linux guests
/// was a fifth slower than with 200 us.
const HOLD: Nanos = Nanos::from_micros(200);

/// So many bytes within [`HOLD`] are a bulk flow (0.65 Gbit/s), whose frames can wait for each other. Requests and answers are
/// less, and urgent.
const BULK: u64 = 16 << 10;

/// When a queue's driver is called.
#[derive(Default)]
pub struct Moderation {
    /// Until when a call that can wait waits: [`HOLD`] after the last one.
    pub(super) quiet_until: Nanos,
}

impl Moderation {
    /// Answers until when a call is to wait. None if it is to be made now, and is then the last one.
    #[inline]
    pub fn hold(&mut self, now: Nanos, urgent: bool) -> Option<Nanos> {
        if now < self.quiet_until && !urgent {
            return Some(self.quiet_until);
        }
        self.quiet_until = now + HOLD;
        None
    }
}

/// How much passes.
#[derive(Default)]
pub struct Volume {
    /// Since when `bytes` counts, and how many there were in as long before.
    since: Nanos,
    bytes: u64,
    bytes_before: u64,
}

impl Volume {
    /// So many bytes more.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether it is so much that calls can wait.
    #[inline]
    pub fn is_bulk(&mut self, now: Nanos) -> bool {
        if now.since(self.since) >= HOLD {
            (self.since, self.bytes_before, self.bytes) = (now, self.bytes, 0);
        }
        self.bytes.max(self.bytes_before) >= BULK
    }
}
