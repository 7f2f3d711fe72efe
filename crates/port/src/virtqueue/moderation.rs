//! Notification moderation: how often a driver is notified. A notification interrupts the guest, which costs more than
//! anything else here, so one that is not urgent waits for others, as with the interrupt moderation of network cards.

use fairlane_core::time::Nanos;

/// The least time between notifications that are not urgent. With one for each large frame, TCP between two User-Mode
/// Linux guests was a fifth slower than with 200 us.
const NOTIFICATION_INTERVAL: Nanos = Nanos::from_micros(200);

/// This many bytes within [`NOTIFICATION_INTERVAL`] are a bulk flow (0.65 Gbit/s), whose frames can wait for each
/// other. Requests and responses are fewer bytes, and urgent.
const BULK: u64 = 16 << 10;

/// The moderation of one queue's notifications.
#[derive(Default)]
pub(super) struct Moderation {
    /// When the next notification that is not urgent may be sent: [`NOTIFICATION_INTERVAL`] after the last one.
    pub(super) quiet_until: Nanos,
}

impl Moderation {
    /// Returns until when to delay a notification. None if it is to be sent now; it then counts as sent.
    #[inline]
    pub(super) fn delay(&mut self, now: Nanos, urgent: bool) -> Option<Nanos> {
        if now < self.quiet_until && !urgent {
            return Some(self.quiet_until);
        }
        self.quiet_until = now + NOTIFICATION_INTERVAL;
        None
    }
}

/// Measures how many bytes a queue carries.
#[derive(Default)]
pub(super) struct Volume {
    /// Since when `bytes` counts, and the count of the interval before.
    since: Nanos,
    bytes: u64,
    bytes_before: u64,
}

impl Volume {
    /// Counts `bytes` more.
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether the queue carries a bulk flow, so that notifications can wait.
    #[inline]
    pub(super) fn is_bulk(&mut self, now: Nanos) -> bool {
        if now.since(self.since) >= NOTIFICATION_INTERVAL {
            (self.since, self.bytes_before, self.bytes) = (now, self.bytes, 0);
        }
        self.bytes.max(self.bytes_before) >= BULK
    }
}
