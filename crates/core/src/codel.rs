//! Controlled delay (CoDel, RFC 8289): which frames of a queue tell their senders to slow down.
//!
//! A queue that takes up a burst is a good one; a queue that stays is delay and nothing else. The least time that frames
//! waited within an interval tells one from the other: while it is above a target, senders are told, the more often the
//! longer it lasts. Who asks owns the queue: this is the estimator and the control law, a frame at a time, and it rests
//! on nothing but what is said of the frame at the head.

use crate::time::Nanos;

/// The delay that may stay (RFC 8289, 5.3: 5 ms).
pub const TARGET: Nanos = Nanos::from_millis(5);

/// In what time senders can be expected to answer, and the window of the least delay (RFC 8289, 5.3: 100 ms).
pub const INTERVAL: Nanos = Nanos::from_millis(100);

/// Bytes that may wait behind a frame whatever its delay (RFC 8289, 5.3: the interface's MTU): a frame of 1500 bytes and
/// its Ethernet header, as in Linux (`psched_mtu`). The largest frame seen is no measure, as a large one is many segments.
pub const MTU: u64 = 1514;

/// What is to be done with the frame at the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It is delivered as it is.
    Pass,
    /// Its sender is to be told: it is marked ([`crate::packet::ecn::mark`]) and delivered, or dropped.
    Congested,
}

/// The state of one queue (RFC 8289, 5.2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    /// When the delay will have been above the target for an interval; none while it is below.
    first_above: Option<Nanos>,
    /// When the next sender is told.
    drop_next: Nanos,
    /// How many were told since it began.
    count: u32,
    /// `count` when it last began.
    last_count: u32,
    /// Senders are being told.
    dropping: bool,
    /// The last answer was [`Verdict::Congested`] at `drop_next`, which is put forward when the next frame is seen to
    /// have waited too long as well.
    told: bool,
}

impl Codel {
    /// Judges the frame at the head, when it leaves the queue (RFC 8289, 5.5).
    ///
    /// It waited for `sojourn`, and `behind` bytes are left in the queue without it; `sojourn` and `now` are of one clock,
    /// [`Running`] for a guest's queue. Of a frame that is dropped, the next is judged at the same `now`. A queue that
    /// becomes empty needs not be told: behind its last frame there is nothing.
    #[inline]
    pub fn dequeue(&mut self, sojourn: Nanos, behind: u64, now: Nanos) -> Verdict {
        if !self.ok_to_drop(sojourn, behind, now) {
            (self.dropping, self.told) = (false, false);
            return Verdict::Pass;
        }
        if !self.dropping {
            self.enter(now);
            return Verdict::Congested;
        }
        if self.told {
            self.told = false;
            self.drop_next = control_law(self.drop_next, self.count);
        }
        if now < self.drop_next {
            return Verdict::Pass;
        }
        self.count = self.count.saturating_add(1);
        self.told = true;
        Verdict::Congested
    }

    /// Whether the delay has been above the target for an interval (RFC 8289, 5.6, `dodequeue`).
    #[inline]
    fn ok_to_drop(&mut self, sojourn: Nanos, behind: u64, now: Nanos) -> bool {
        if sojourn < TARGET || behind <= MTU {
            self.first_above = None;
            return false;
        }
        now >= *self.first_above.get_or_insert(now + INTERVAL)
    }

    /// Begins to tell senders, nearly as often as it took the last time, if that is not long ago (RFC 8289, 5.5).
    #[cold]
    fn enter(&mut self, now: Nanos) {
        let delta = self.count - self.last_count;
        let recent = now.since(self.drop_next).0 < 16 * INTERVAL.0;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = control_law(now, self.count);
        self.dropping = true;
    }
}

/// `from + INTERVAL / sqrt(count)`, to the nanosecond (RFC 8289, 5.6).
///
/// Rounded down, the step is the integer root of `INTERVAL^2 / count`; it is taken only when a sender is told. Linux keeps
/// an estimate of the reciprocal root instead (`include/net/codel_impl.h`), which spares a division and is off by some
/// percent where few were told.
fn control_law(from: Nanos, count: u32) -> Nanos {
    from + Nanos((INTERVAL.0 * INTERVAL.0 / u64::from(count)).isqrt())
}

/// How long a guest may take no frame and still count as running.
///
/// The driver of a guest that has its CPU takes frames more often than that: its interrupt comes within microseconds, and
/// then it polls, some 64 frames at a time (NAPI). One that stays away longer waits for something else than frames, mostly
/// for its CPU: 30 ms for each other's slice under Xen's credit scheduler.
pub const GAP: Nanos = Nanos::from_millis(1);

/// A clock that runs only while its guest takes frames.
///
/// A guest off its CPU is no congestion: its senders can do nothing about it, and the frames that gathered are taken at
/// once when it is back. However long it was away, they waited [`GAP`] for that by this clock. A guest that takes a frame a
/// second on purpose is never congested by it either, and loses what is beyond its queue's bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    /// What it showed when frames were last taken.
    now: Nanos,
    /// When that was, by the real clock.
    last: Nanos,
}

impl Running {
    /// What it shows at the real time `now`: this is a frame's stamp when it comes into the queue.
    #[inline]
    pub fn at(&self, now: Nanos) -> Nanos {
        self.now + now.since(self.last).min(GAP)
    }

    /// The guest is seen to take frames at the real time `now`: what it shows then.
    #[inline]
    pub fn advance(&mut self, now: Nanos) -> Nanos {
        self.now = self.at(now);
        self.last = now;
        self.now
    }
}

#[cfg(test)]
mod tests;
