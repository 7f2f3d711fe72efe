//! `max_rate`, counted independently of the scheduler: never more than the rate and the burst may pass.

use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::{Nanos, SECOND};

/// Bits times 10^9 for a byte.
const BYTE: i128 = 8 * SECOND as i128;

/// How far the scheduler may be ahead of this, in bytes: it reads the clock at other times.
const SLACK: i128 = 256;

/// The least that netback lets pass at once, in bytes.
const NETBACK_BURST: u64 = 128 << 10;

/// A count of what may pass.
pub(crate) struct Limit {
    rate: u64,
    burst: i128,
    left: i128,
    at: Nanos,
}

impl Limit {
    /// The limit of a share with a `max_rate`, for a scheduler. Netback grants its credit interval by interval.
    pub(crate) fn of(share: &Share, kind: SchedulerKind, now: Nanos) -> Option<Limit> {
        let rate = share.max_rate?;
        let burst = match kind {
            SchedulerKind::Netback { refill } => {
                i128::from(NETBACK_BURST) * BYTE + 3 * i128::from(rate) * i128::from(refill.0)
            }
            _ => i128::from(share.burst) * BYTE,
        };
        Some(Limit { rate, burst, left: burst, at: now })
    }

    /// Replaces an earlier one.
    pub(crate) fn after(mut self, old: Option<Limit>, now: Nanos) -> Limit {
        if let Some(mut old) = old {
            old.fill(now);
            self.left = old.left.min(self.burst);
        }
        self
    }

    /// Counts a frame: it may pass while something is left, whatever its size.
    pub(crate) fn take(&mut self, bytes: u64, kind: SchedulerKind, now: Nanos) {
        self.fill(now);
        let left = self.left / BYTE;
        assert!(left > -SLACK, "{bytes} bytes passed above a max_rate of {} bit/s, under {kind:?}: {left}", self.rate);
        self.left -= i128::from(bytes) * BYTE;
    }

    fn fill(&mut self, now: Nanos) {
        let more = i128::from(self.rate) * i128::from(now.since(self.at).0);
        self.left = (self.left + more).min(self.burst);
        self.at = self.at.max(now);
    }
}
