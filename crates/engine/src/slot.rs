//! A port as its bridge keeps it: the port, its counters, and what it waits for.

use crate::early::Early;
use crate::waiters::{Ticket, Waiters};
use fairlane_core::PortId;
use fairlane_core::sched::Share;
use fairlane_core::stats::Counters;
use fairlane_core::time::Nanos;
use fairlane_port::capture::Captured;
use fairlane_port::{Limit, Port};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};

/// Buckets of a [`Waiting`] histogram.
pub const BUCKETS: usize = 36;

/// How long frames waited to be served: bucket `k` counts waits below 2^k ns, and not below half of that.
///
/// The last bucket takes all longer ones; its lower end is 17 seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Services in each bucket.
    pub buckets: Vec<u64>,
    /// All waits together, in nanoseconds.
    pub sum: u64,
}

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { buckets: vec![0; BUCKETS], sum: 0 }
    }
}

impl Waiting {
    /// Counts one wait.
    #[inline]
    pub fn record(&mut self, wait: Nanos) {
        let bucket = (u64::BITS - wait.0.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum += wait.0;
    }
}

/// Where a port stands with the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its ring was empty when last seen; it is asked now and then.
    Idle,
    /// The scheduler knows of its frames.
    Active,
    /// Its next frame waits for room in this port.
    Parked(PortId),
}

/// A port as it is, or under capture.
pub(crate) enum Attached {
    Plain(Box<dyn Port>),
    Captured(Box<Captured>),
}

impl Deref for Attached {
    type Target = dyn Port;

    #[inline]
    fn deref(&self) -> &(dyn Port + 'static) {
        match self {
            Attached::Plain(port) => &**port,
            Attached::Captured(port) => &**port,
        }
    }
}

impl DerefMut for Attached {
    #[inline]
    fn deref_mut(&mut self) -> &mut (dyn Port + 'static) {
        match self {
            Attached::Plain(port) => &mut **port,
            Attached::Captured(port) => &mut **port,
        }
    }
}

/// A port and all that its bridge knows of it.
pub(crate) struct Slot {
    pub name: String,
    pub port: Attached,
    /// Early ack for its guest.
    pub early: Option<Box<Early>>,
    /// What the policy grants.
    pub share: Share,
    /// What bounds it beside the policy.
    pub limit: Option<Limit>,
    /// Whether the switch looks at its frames' IP addresses.
    pub judged_by_ip: bool,
    pub counters: Counters,
    /// Bytes of its frames that went to the uplink.
    pub uplink_bytes: u64,
    pub waiting: Waiting,
    pub turn: Turn,
    /// Since when its next frame waits for service.
    pub since: Nanos,
    /// Ports whose next frame is for this one, which was full.
    pub waiters: Waiters,
    /// Its turn at the guest for which it last waited.
    pub ticket: Option<Ticket>,
    /// Since when it took nothing although frames were there; none if it took the last one.
    pub refusing: Option<Nanos>,
    /// Its part of the link in the last whole second, and the bytes that count at the second's start.
    pub part: f64,
    pub marked: u64,
    /// Whether something is to be flushed.
    pub touched: bool,
    /// Backend time that one of its frames takes, in nanoseconds: a moving average.
    frame_time: u64,
}

/// Backend time of a port's first frame at most, in nanoseconds.
const FIRST_FRAME: u64 = 10_000;

/// Backend time of a frame at least, in nanoseconds, whatever was measured: a clock may stand still for a while (Linux's on Xen does where it
/// is behind that of another CPU), and an average of nothing would let nothing be charged ever after.
const LEAST_FRAME: u64 = 10;

/// How much longer than on average a port's frames may take in one service.
const SURPRISE: u64 = 8;

impl Slot {
    pub fn new(name: String, port: Box<dyn Port>, share: Share) -> Slot {
        Slot {
            name,
            port: Attached::Plain(port),
            early: None,
            share,
            limit: None,
            judged_by_ip: false,
            counters: Counters::default(),
            uplink_bytes: 0,
            waiting: Waiting::default(),
            turn: Turn::Idle,
            since: Nanos(0),
            waiters: Waiters::default(),
            ticket: None,
            refusing: None,
            part: 0.0,
            marked: 0,
            touched: false,
            frame_time: 0,
        }
    }
}

impl Slot {
    /// What it is granted: the policy's, and where that has no `max_rate` the limit beside it.
    pub fn granted(&self) -> Share {
        match self.limit {
            Some(Limit { rate, burst }) if self.share.max_rate.is_none() => {
                Share { max_rate: Some(rate), burst, ..self.share }
            }
            _ => self.share,
        }
    }

    /// Whether frames wait: in its ring, or sent for its guest.
    #[inline]
    pub fn has_frames(&mut self, now: Nanos) -> bool {
        self.sends_for_guest() || self.port.waiting(now)
    }

    /// Whether frames wait that were sent for its guest.
    #[inline]
    pub fn sends_for_guest(&self) -> bool {
        self.early.as_ref().is_some_and(|early| early.waiting())
    }

    /// The part of the `nanos` that a service of `frames` frames took that is the port's own doing.
    ///
    /// The clock runs on while the system lets others use the core, some milliseconds at a time; no port shall pay for
    /// that. So time far above what its frames took before is not charged, though the average follows what lasts.
    pub fn own_time(&mut self, nanos: u64, frames: u64) -> u64 {
        let frames = frames.max(1);
        let most = if self.frame_time == 0 { FIRST_FRAME } else { self.frame_time * SURPRISE };
        let own = nanos.min(most * frames);
        self.frame_time = (if self.frame_time == 0 { own / frames } else { (7 * self.frame_time + own / frames) / 8 })
            .max(LEAST_FRAME);
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlane_port::memory;

    #[test]
    fn time_that_was_others_is_not_charged() {
        let share = Share { weight: 1, min_rate: 0, max_rate: None, burst: 0 };
        let mut slot = Slot::new("a".to_owned(), Box::new(memory::pair(1).0), share);
        assert_eq!(slot.own_time(4_000_000, 1), FIRST_FRAME, "nothing is known yet");
        for _ in 0..100 {
            slot.own_time(3_200, 32);
        }
        assert_eq!(slot.own_time(3_200, 32), 3_200);
        assert_eq!(slot.own_time(4_000_000, 32), 100 * SURPRISE * 32);
        // Frames that really take longer are charged in full before long.
        for _ in 0..100 {
            slot.own_time(320_000, 32);
        }
        assert_eq!(slot.own_time(320_000, 32), 320_000);
    }

    #[test]
    fn a_clock_that_stood_still_is_forgotten() {
        let share = Share { weight: 1, min_rate: 0, max_rate: None, burst: 0 };
        let mut slot = Slot::new("a".to_owned(), Box::new(memory::pair(1).0), share);
        (0..100).for_each(|_| _ = slot.own_time(0, 32));
        (0..100).for_each(|_| _ = slot.own_time(320_000, 32));
        assert_eq!(slot.own_time(320_000, 32), 320_000);
    }

    #[test]
    fn waits_fall_into_their_buckets() {
        let mut waiting = Waiting::default();
        for (wait, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (1024, 11), (u64::from(u32::MAX), 32), (1 << 60, 35)] {
            let before = waiting.buckets[bucket];
            waiting.sum = 0;
            waiting.record(Nanos(wait));
            assert_eq!(waiting.buckets[bucket], before + 1, "{wait}");
            assert_eq!(waiting.sum, wait);
        }
    }
}
