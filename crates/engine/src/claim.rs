//! A worker's claim to its core: whether it may wait there for frames, or leaves it to others at once.
//!
//! A worker without work waits awake for a while and lets others on its core go first (`sched_yield`). If one of them keeps the core, the
//! worker is neither woken by a frame nor moved to an idle core: it waits for its turn, which takes the other's time slice, a millisecond
//! or more. One that sleeps is woken, and on an idle core if there is one. On the other hand a guest must wake one that sleeps, which
//! costs a stream between two guests a fifth of its throughput.
//!
//! So a worker sleeps at once if others take its core *and* frames take little of its time; then it does not give way in its work either.

use fairlane_core::time::Nanos;

/// Others want the core if one of them kept it for longer than this.
const KEPT: Nanos = Nanos::from_micros(30);

/// For how long they are taken to want it. A guest that shares its CPU under Xen's credit scheduler returns within some tenths of a second.
const MEMORY: Nanos = Nanos::from_millis(1000);

/// How long the worker's time is observed before it is judged.
const PERIOD: Nanos = Nanos::from_millis(10);

/// Frames take little of the time if it is less than a part of so many.
const PART: u64 = 8;

/// The claim.
pub(crate) struct Claim {
    /// Until when others are taken to want the core.
    wanted: Nanos,
    /// Since when the time is observed, and how much of it frames took.
    since: Nanos,
    moving: Nanos,
    /// Whether they took little in the period before.
    is_light: bool,
}

impl Claim {
    /// The claim of a worker that begins.
    pub(crate) fn new(now: Nanos) -> Claim {
        Claim { wanted: Nanos(0), since: now, moving: Nanos(0), is_light: true }
    }

    /// The worker moved frames.
    pub(crate) fn moved(&mut self, from: Nanos, to: Nanos) {
        self.moving.0 += to.since(from).0;
    }

    /// The worker let others go first.
    pub(crate) fn gave_way(&mut self, from: Nanos, to: Nanos) {
        if to.since(from) > KEPT {
            self.wanted = to + MEMORY;
        }
    }

    /// Whether the worker is to leave its core as soon as it has nothing to do, and to keep it until then.
    pub(crate) fn is_weak(&mut self, now: Nanos) -> bool {
        let observed = now.since(self.since);
        if observed >= PERIOD {
            self.is_light = self.moving.0 * PART < observed.0;
            (self.since, self.moving) = (now, Nanos(0));
        }
        self.is_light && now < self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn a_core_that_nobody_keeps_is_waited_on() {
        let mut claim = Claim::new(at(0));
        claim.gave_way(at(1), at(1) + KEPT);
        assert!(!claim.is_weak(at(2)));
    }

    #[test]
    fn a_core_that_somebody_kept_is_left_for_a_while() {
        let mut claim = Claim::new(at(0));
        claim.gave_way(at(1), at(3));
        assert!(claim.is_weak(at(4)) && claim.is_weak(at(1_002)) && !claim.is_weak(at(1_003)));
    }

    #[test]
    fn a_busy_worker_waits_on_a_core_that_others_want() {
        let mut claim = Claim::new(at(0));
        claim.gave_way(at(1), at(3));
        claim.moved(at(3), at(5));
        assert!(!claim.is_weak(at(10)), "2 ms of 10");
        claim.moved(at(10), at(11));
        assert!(!claim.is_weak(at(19)), "the period is not over");
        assert!(claim.is_weak(at(20)), "1 ms of 10");
    }
}
