//! When early ack is engaged for a guest: while it does not drain its ring, and for a while after.

use crate::time::Nanos;

/// How long a ring stands still before its guest counts as waiting for its CPU. A guest that runs drains within tens of
/// microseconds, or some milliseconds where its host is interrupted; the source's wait 30 ms at a time (seed 003, "Illustrative
/// Experiment"). One stall counts for [`LINGER`], so a hiccup that counts is dear, and to find the first stall late is cheap.
pub const STALL: Nanos = Nanos::from_millis(5);

/// How long early ack stays engaged after the last stall. Senders have measured short round trips by then; with a
/// retransmission timeout of 200 ms at least in Linux, a stall that found it disengaged would fire it. So it must be long
/// beside that and beside the pause between two stalls.
pub const LINGER: Nanos = Nanos::from_millis(2_000);

/// Of so many bursts of a guest that is let alone one is noted: a flow that speaks once a minute is heard of in
/// [`super::AGEING`] with all but certainty.
const SAMPLE: u32 = 16;

/// Whether a guest's flows are acknowledged early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never.
    #[default]
    Off,
    /// While the guest does not drain its ring.
    Auto,
    /// Always, for study.
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

/// A guest's receive ring, as the caller sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Frames in it that the guest has not taken.
    pub waiting: u32,
    /// Changes whenever the guest takes frames.
    pub taken: u32,
}

/// What is known of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Guest {
    pub mode: Mode,
    /// Its flows in the table.
    pub flows: u32,
    /// Bytes retained for all of them.
    pub retained: u64,
    /// Its flows that open or close.
    pub unsettled: u32,
    /// Whether some of its segments are not noted now.
    pub skips: bool,
    /// Grows when all are noted again: what is known of its flows from before is old.
    pub epoch: u32,
    /// Whether its flows were exported, and it was not heard of since.
    pub frozen: bool,
    /// How its ring stood when that was seen first.
    frozen_at: Option<Ring>,
    /// Bursts that were looked at.
    looks: u32,
    ring: Ring,
    /// When it last took something, or had nothing to take.
    moved: Nanos,
    engaged_until: Nanos,
}

impl Guest {
    /// One of whose ring nothing is known yet.
    pub fn new(mode: Mode) -> Guest {
        Guest { mode, ..Guest::default() }
    }

    /// Whether all segments of a burst are to be noted: early ack is engaged, something is retained, a flow opens or closes, or it is
    /// one of the bursts by which flows are known to live.
    #[inline]
    pub fn watch(&mut self, now: Nanos) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let is_sample = self.looks.is_multiple_of(SAMPLE);
        let watched = self.is_engaged(now) || self.retained > 0 || self.unsettled > 0 || is_sample;
        if watched && self.skips {
            self.skips = false;
            self.epoch = self.epoch.wrapping_add(1);
        }
        watched
    }

    /// Notes that its flows are exported now.
    pub fn freeze(&mut self) {
        (self.frozen, self.frozen_at) = (true, None);
    }

    /// Whether it took something since its flows were exported: it runs on here. Where it is gone, its ring is as one never used.
    pub fn is_alive(&mut self, ring: Ring) -> bool {
        self.frozen && ring != Ring::default() && self.frozen_at.get_or_insert(ring).taken != ring.taken
    }

    /// Notes the ring as it is now. Returns when it is to be looked at again at the latest.
    pub fn observe(&mut self, ring: Ring, now: Nanos) -> Nanos {
        if ring.waiting == 0 || ring.taken != self.ring.taken || self.ring.waiting == 0 {
            self.moved = now;
        }
        self.ring = ring;
        if self.stalls(now) {
            self.engaged_until = now + LINGER;
        }
        // A stall that was seen lasts until the guest takes something, and then its frames call.
        if self.mode == Mode::Auto && ring.waiting > 0 && !self.stalls(now) { self.moved + STALL } else { Nanos::NEVER }
    }

    /// Whether it has frames to take and took none for a while.
    #[inline]
    pub fn stalls(&self, now: Nanos) -> bool {
        self.ring.waiting > 0 && now.since(self.moved) >= STALL
    }

    /// Whether its flows are acknowledged early now.
    #[inline]
    pub fn is_engaged(&self, now: Nanos) -> bool {
        match self.mode {
            _ if self.frozen => false,
            Mode::Off => false,
            Mode::Auto => now < self.engaged_until || self.stalls(now),
            Mode::Always => true,
        }
    }
}
