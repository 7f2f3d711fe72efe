//! When early ack is engaged for a guest: while it does not drain its ring, and for a while after.

use crate::time::Nanos;

/// How long a ring makes no progress before its guest counts as waiting for a CPU. A running guest drains its ring
/// within tens of microseconds, or some milliseconds if the host is interrupted; the guests of the vSnoop paper wait 30
/// ms at a time ("Illustrative Experiment"). A stall counts for [`ENGAGED_AFTER_STALL`], so a false positive is
/// expensive, and late detection of the first stall is cheap.
pub const STALL: Nanos = Nanos::from_millis(5);

/// How long early ack stays engaged after the last stall. By then senders have measured short round trips; with Linux's
/// least retransmission timeout of 200 ms, a stall while disengaged would cause a timeout. So this is long compared
/// with that timeout and with the time between two stalls, also of a connection that is used once a second: in the
/// simulator such transfers of 100 KB on an open connection take as long as to a guest that never waits, and six times
/// as long with two seconds. A guest that stalls less often is watched for nothing: some tens of nanoseconds a frame.
pub const ENGAGED_AFTER_STALL: Nanos = Nanos::from_millis(10_000);

/// One in this many bursts of a guest that is left alone is noted: a flow with one segment a minute is almost certainly
/// noted within [`super::AGEING`].
const SAMPLE: u32 = 16;

/// When data is acknowledged early for a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    #[default]
    Off,
    /// While the guest does not drain its ring.
    Auto,
    /// Always, for experiments.
    Always,
}

impl Mode {
    /// The name in a policy and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Auto => "stalled",
            Mode::Always => "always",
        }
    }
}

/// The state of a guest's receive ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Frames that the guest has not yet consumed.
    pub waiting: u32,
    /// Changes whenever the guest consumes frames.
    pub taken: u32,
}

/// The state of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guest {
    pub mode: Mode,
    /// Flows in the table.
    pub flows: u32,
    /// Bytes retained for all of them.
    pub retained: u64,
    /// Flows that open or close.
    pub unsettled: u32,
    /// Whether segments have been skipped, not noted.
    pub skips: bool,
    /// Incremented when all segments are noted again: what was known of flows before is old.
    pub epoch: u32,
    /// Whether the flows were exported and the guest has not run here since.
    pub frozen: bool,
    /// The first state of the ring that was seen after that.
    frozen_at: Option<Ring>,
    /// Bursts looked up so far.
    bursts: u32,
    ring: Ring,
    /// When the guest last consumed frames, or had none to consume.
    last_progress: Nanos,
    engaged_until: Nanos,
}

impl Guest {
    /// A guest whose ring is not yet known.
    pub(super) fn new(mode: Mode) -> Guest {
        Guest { mode, ..Guest::default() }
    }

    /// Whether all segments of a burst must be noted: early ack is engaged, data is retained, a flow opens or closes,
    /// or the burst is a sample, which keeps live flows from ageing.
    #[inline]
    pub(super) fn watch(&mut self, now: Nanos) -> bool {
        self.bursts = self.bursts.wrapping_add(1);
        let is_sample = self.bursts.is_multiple_of(SAMPLE);
        let watched = self.is_engaged(now) || self.retained > 0 || self.unsettled > 0 || is_sample;
        if watched && self.skips {
            self.skips = false;
            self.epoch = self.epoch.wrapping_add(1);
        }
        watched
    }

    /// Notes that the flows are exported now.
    pub(super) fn freeze(&mut self) {
        (self.frozen, self.frozen_at) = (true, None);
    }

    /// Whether the guest consumed frames since its flows were exported, so that it still runs here. After it left, its
    /// ring looks like a new one.
    pub(super) fn is_alive(&mut self, ring: Ring) -> bool {
        self.frozen && ring != Ring::default() && self.frozen_at.get_or_insert(ring).taken != ring.taken
    }

    /// Notes the present state of the ring. Returns the latest time to check it again.
    pub(super) fn observe(&mut self, ring: Ring, now: Nanos) -> Nanos {
        if ring.waiting == 0 || ring.taken != self.ring.taken || self.ring.waiting == 0 {
            self.last_progress = now;
        }
        self.ring = ring;
        if self.stalls(now) {
            self.engaged_until = now + ENGAGED_AFTER_STALL;
        }
        // A detected stall lasts until the guest consumes frames, and then its ACKs cause the next check.
        if self.mode == Mode::Auto && ring.waiting > 0 && !self.stalls(now) {
            self.last_progress + STALL
        } else {
            Nanos::NEVER
        }
    }

    /// Whether frames wait and the guest has consumed none for [`STALL`].
    #[inline]
    pub(super) fn stalls(&self, now: Nanos) -> bool {
        self.ring.waiting > 0 && now.since(self.last_progress) >= STALL
    }

    /// Whether data is acknowledged early now.
    #[inline]
    pub(super) fn is_engaged(&self, now: Nanos) -> bool {
        match self.mode {
            _ if self.frozen => false,
            Mode::Off => false,
            Mode::Auto => now < self.engaged_until || self.stalls(now),
            Mode::Always => true,
        }
    }
}
