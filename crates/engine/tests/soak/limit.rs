//! `max_rate` and `max_frames`, counted independently of the scheduler: never more than the rate and the burst may pass.

use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::{Nanos, SECOND};

/// Bits times 10^9 for a byte.
const BYTE: i128 = 8 * SECOND as i128;

/// Frames times 10^9 for a frame.
const FRAME: i128 = SECOND as i128;

/// How far the scheduler may be ahead of this, in bytes and in frames: it reads the clock at other times.
const BYTES_AHEAD: i128 = 256;
const FRAMES_AHEAD: i128 = 2;

/// The least that netback lets pass at once, in bytes.
const NETBACK_BURST: u64 = 128 << 10;

/// What a share lets pass.
#[derive(Default)]
pub(crate) struct Limits {
    bytes: Option<Limit>,
    frames: Option<Limit>,
}

/// A count of what may pass.
struct Limit {
    /// A byte or a frame.
    unit: i128,
    rate: u64,
    burst: i128,
    left: i128,
    at: Nanos,
}

impl Limits {
    /// The limits of a share, for a scheduler. Netback grants its credit interval by interval.
    pub(crate) fn of(share: &Share, kind: SchedulerKind, now: Nanos) -> Limits {
        let burst = |rate| match kind {
            SchedulerKind::Netback { refill } => {
                i128::from(NETBACK_BURST) * BYTE + 3 * i128::from(rate) * i128::from(refill.0)
            }
            _ => i128::from(share.burst) * BYTE,
        };
        let limit = |unit, rate, burst| Limit { unit, rate, burst, left: burst, at: now };
        Limits {
            bytes: share.max_rate.map(|rate| limit(BYTE, rate, burst(rate))),
            frames: share.max_frames.map(|rate| limit(FRAME, rate, i128::from(share.frame_burst) * FRAME)),
        }
    }

    /// Replaces earlier ones.
    pub(crate) fn after(mut self, mut old: Limits, now: Nanos) -> Limits {
        for (new, old) in [(&mut self.bytes, &mut old.bytes), (&mut self.frames, &mut old.frames)] {
            if let (Some(new), Some(old)) = (new, old) {
                old.fill(now);
                new.left = old.left.min(new.burst);
            }
        }
        self
    }

    /// Counts a frame: it may pass while something is left, whatever its size.
    pub(crate) fn take(&mut self, bytes: u64, kind: SchedulerKind, now: Nanos) {
        for (limit, amount, ahead) in [(&mut self.bytes, bytes, BYTES_AHEAD), (&mut self.frames, 1, FRAMES_AHEAD)] {
            let Some(limit) = limit else { continue };
            limit.fill(now);
            let left = limit.left / limit.unit;
            assert!(left > -ahead, "{amount} passed above a rate of {}, under {kind:?}: {left}", limit.rate);
            limit.left -= i128::from(amount) * limit.unit;
        }
    }
}

impl Limit {
    fn fill(&mut self, now: Nanos) {
        let more = i128::from(self.rate) * i128::from(now.since(self.at).0);
        self.left = (self.left + more).min(self.burst);
        self.at = self.at.max(now);
    }
}
