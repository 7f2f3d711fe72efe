//! Weighted fair sharing with guarantees: the default.
//!
//! Three parts, in this order: [`Throttle`] holds back ports above their `max_rate` or `max_frames`; [`Guarantee`]
//! serves ports below their `min_rate`; [`Queue`] shares the rest by weight. A port in service is in none of them.
//!
//! # What is shared
//! A service costs the larger of two times: the uplink's time for its bytes and the backend's time. This is the
//! dominant share of dominant resource fairness, in its memoryless form for packets (Ghodsi et al., "Multi-Resource
//! Fair Queueing for Packet Processing", SIGCOMM 2012, section 5). Each resource has one second of time per second, so
//! of two ports of the same weight, one with 64 KB frames that fills the link and one with tiny frames that fills the
//! core, each gets the same share of the resource it needs most. A flood of tiny frames gets no more backend time than
//! its weight allows, and frames that stay on the host are not free. A link without a rate shares backend time only. A
//! service without any time (tests do not measure it) counts each byte as a nanosecond.
//!
//! Costs are known only after the service, so a service has a budget, [`BUDGET_BYTES`], which the last frame may
//! exceed. L, the most that a regular service costs, is that budget and one frame of the largest size.

mod guarantee;
mod queue;
mod stacks;

use super::throttle::Throttle;
use super::{After, BUDGET_BYTES, BUDGET_FRAMES, Budget, Cost, Next, Scheduler, Share};
use crate::PortId;
use crate::time::{Nanos, SECOND};
use guarantee::Guarantee;
use queue::Queue;

/// Bytes of the largest frame: 64 KiB of IP with an Ethernet header (segmentation offload).
const MAX_FRAME: u64 = 65_550;

/// Bytes of the largest service.
const MAX_SERVICE: u64 = BUDGET_BYTES + MAX_FRAME;

/// Fraction bits of [`Fair::byte_time`].
const BYTE_TIME_FRACTION: u32 = 20;

/// The budget of a port without limits.
const WHOLE_BUDGET: Budget = Budget { bytes: BUDGET_BYTES, frames: BUDGET_FRAMES };

/// The least cost of a service in nanoseconds, even if the ring was empty.
const LEAST_COST: u64 = 64;

/// Byte-accurate weighted fair sharing with `min_rate`, `max_rate` and bounded lag.
pub(super) struct Fair {
    queue: Queue,
    /// The uplink's time per byte, in nanoseconds.
    byte_time: u64,
    /// Until then no port is released by `throttle` or due by `guarantee`. It may be too early.
    timer: Nanos,
    throttle: Throttle,
    guarantee: Guarantee,
    idle_timeout: Nanos,
}

/// What is known of a port beside its place in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Vif {
    state: State,
    /// Has a limit or a guarantee.
    rated: bool,
}

impl Vif {
    const UNKNOWN: Vif = Vif { state: State::Unknown, rated: false };

    /// A queued port that shares by weight alone.
    const ORDINARY: Vif = Vif { state: State::Ready, rated: false };

    const ORDINARY_IN_SERVICE: Vif = Vif { state: State::Serving, rated: false };
}

/// The state of a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never configured, or removed.
    Unknown,
    /// Nothing to send.
    Idle,
    /// No room at its destination, so its place does not expire.
    Blocked,
    /// Queued.
    Ready,
    /// Offered by `next` and not yet charged. An activation now is ignored: the charge reports newer state.
    Serving,
    /// The same, out of turn, as its `min_rate` owed it.
    ServingOwed,
    /// Waits for tokens of its `max_rate` or `max_frames`.
    Held,
}

impl State {
    fn is_served(self) -> bool {
        matches!(self, State::Serving | State::ServingOwed)
    }
}

impl Fair {
    /// A scheduler without ports, for a link of `link_rate` bits a second. A port that returns within `idle_timeout`
    /// keeps what it was owed, at most one service.
    pub(super) fn new(link_rate: Option<u64>, idle_timeout: Nanos) -> Fair {
        let byte_time = link_rate.map_or(0, |rate| ((8 * SECOND) << BYTE_TIME_FRACTION) / rate.max(1));
        let most = link_time(MAX_SERVICE, byte_time).clamp(MAX_SERVICE, u64::from(u32::MAX));
        Fair {
            queue: Queue::new(most),
            byte_time,
            timer: Nanos::NEVER,
            throttle: Throttle::default(),
            guarantee: Guarantee::default(),
            idle_timeout,
        }
    }

    /// The time of the resource that a service used most, in nanoseconds.
    #[inline(always)]
    pub(super) fn dominant(&self, cost: &Cost) -> u32 {
        let time = link_time(cost.uplink_bytes, self.byte_time).max(cost.nanos);
        if (LEAST_COST..=u32::MAX.into()).contains(&time) {
            return time as u32;
        }
        let time = if time == 0 { cost.bytes } else { time };
        time.clamp(LEAST_COST, u32::MAX.into()) as u32
    }

    /// Whether a port is in service.
    #[inline(always)]
    pub(super) fn serves(&self, port: PortId) -> bool {
        self.state(port).is_served()
    }

    /// Whether a port is in service because its guarantee owed it that.
    pub(super) fn is_owed(&self, port: PortId) -> bool {
        self.state(port) == State::ServingOwed
    }

    /// Takes a port out of turn, to be charged for an earlier service, which was owed or not.
    #[cold]
    pub(super) fn recall(&mut self, port: PortId, is_owed: bool, now: Nanos) {
        self.activate(port, now);
        if self.state(port) == State::Held {
            self.throttle.unhold(port.0);
            self.queue.join(port.0, now, Nanos::NEVER);
        }
        self.guarantee.leave(port.0);
        self.queue.take(port.0);
        self.set(port.0, if is_owed { State::ServingOwed } else { State::Serving });
    }

    /// [`Scheduler::charge`] for a cost whose [dominant](Fair::dominant) time is known.
    #[inline(always)]
    pub(super) fn charge_time(&mut self, port: PortId, cost: &Cost, nanos: u32, after: After, now: Nanos) {
        if after != After::Backlogged || !self.charge_at_once(port, nanos) {
            self.end_service(port.0, cost, nanos, after, now);
        }
    }

    /// Charges a port that has more frames, and neither limits nor guarantees. Returns whether it was one in service.
    #[inline(always)]
    pub(super) fn charge_at_once(&mut self, port: PortId, nanos: u32) -> bool {
        self.queue.charge_at_once(port.0, nanos)
    }

    /// Charges any port.
    #[inline(never)]
    fn end_service(&mut self, port: u32, cost: &Cost, nanos: u32, after: After, now: Nanos) {
        let Some(Vif { state, rated }) = self.queue.vif(port) else { return };
        match state {
            State::Serving => self.queue.charge(port, nanos),
            State::ServingOwed => self.queue.charge_owed(port, nanos),
            _ => return,
        }
        let mut throttled = false;
        if rated {
            self.throttle.take(port, cost, now);
            self.guarantee.charge(port, cost.bytes, now);
            throttled = self.throttle.room(port, now).is_none();
        }
        match after {
            After::Backlogged if throttled => {
                self.queue.leave(port, now);
                self.hold(port);
            }
            After::Backlogged => {
                self.set(port, State::Ready);
                self.queue.put_back(port);
                self.watch(port, now);
            }
            After::Empty | After::Blocked => {
                self.queue.leave(port, now);
                self.set(port, if after == After::Blocked { State::Blocked } else { State::Idle });
            }
        }
    }

    fn state(&self, port: PortId) -> State {
        self.queue.vif(port.0).map_or(State::Unknown, |vif| vif.state)
    }

    fn set(&mut self, port: u32, state: State) {
        if let Some(vif) = self.queue.vif_mut(port) {
            vif.state = state;
        }
    }

    /// Queues an active port, to wait for its `max_rate` or for its turn. A port that left the queue more than `grace`
    /// ago has lost what it was owed.
    fn enter(&mut self, port: u32, now: Nanos, grace: Nanos) {
        let rated = self.queue.vif(port).is_some_and(|vif| vif.rated);
        if rated && self.throttle.room(port, now).is_none() {
            return self.hold(port);
        }
        // One that waited already, and now does so with another share, was not idle either.
        let was_idle = !matches!(self.state(PortId(port)), State::Blocked | State::Ready);
        self.set(port, State::Ready);
        self.queue.join(port, now, grace);
        if rated {
            match was_idle {
                true => self.guarantee.resume(port, now),
                false => self.guarantee.unblock(port, now),
            }
            self.watch(port, now);
        }
    }

    /// Makes a port wait for its `max_rate` or `max_frames`.
    fn hold(&mut self, port: u32) {
        self.set(port, State::Held);
        self.throttle.hold(port);
        self.timer = Nanos(0);
    }

    /// Watches the guarantee of a queued port, if it has one.
    fn watch(&mut self, port: u32, now: Nanos) {
        if self.guarantee.enter(port, now) {
            self.timer = Nanos(0);
        }
    }

    /// Removes a port from every queue.
    fn withdraw(&mut self, port: u32, state: State, now: Nanos) {
        match state {
            State::Ready => self.guarantee.leave(port),
            State::Held => self.throttle.unhold(port),
            _ => {}
        }
        self.queue.withdraw(port, now);
    }

    /// [`Scheduler::next`] if rates may matter, or the next port is not the top of the chosen slot.
    #[inline(never)]
    fn choose(&mut self, now: Nanos) -> Next {
        let owed = if now >= self.timer { self.next_by_rate(now) } else { None };
        let (port, state) = match owed {
            Some(port) => {
                self.queue.take(port);
                (port, State::ServingOwed)
            }
            None => match self.queue.select() {
                Some(port) => (port, State::Serving),
                None => return self.throttle.next_release().map_or(Next::Idle, Next::WaitUntil),
            },
        };
        self.set(port, state);
        let mut budget = WHOLE_BUDGET;
        if self.queue.vif(port).is_some_and(|vif| vif.rated) {
            self.guarantee.leave(port);
            // A queued port has tokens, unless the clock went back.
            let Budget { bytes, frames } = self.throttle.room(port, now).unwrap_or(Budget { bytes: 1, frames: 1 });
            budget = Budget { bytes: bytes.min(BUDGET_BYTES), frames: frames.min(BUDGET_FRAMES) };
        }
        Next::Serve(PortId(port), budget)
    }

    /// Releases ports that have waited for their rates. Returns the port that is owed service first.
    fn next_by_rate(&mut self, now: Nanos) -> Option<u32> {
        while let Some(port) = self.throttle.release(now) {
            self.enter(port, now, Nanos::NEVER);
        }
        let owed = self.guarantee.next(now);
        let release = self.throttle.next_release().unwrap_or(Nanos::NEVER);
        self.timer = release.min(self.guarantee.next_due().unwrap_or(Nanos::NEVER));
        owed
    }
}

/// Nanoseconds for `bytes` at `byte_time`, a fixed-point number with [`BYTE_TIME_FRACTION`] bits.
fn link_time(bytes: u64, byte_time: u64) -> u64 {
    bytes.saturating_mul(byte_time) >> BYTE_TIME_FRACTION
}

impl Scheduler for Fair {
    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        let state = self.state(port);
        self.queue.configure(port.0, share.weight, now);
        let waits = state == State::Ready || state == State::Held;
        if waits {
            self.withdraw(port.0, state, now);
        }
        let limited = self.throttle.configure(port.0, &share, now);
        let guaranteed = self.guarantee.configure(port.0, &share, now);
        if let Some(vif) = self.queue.vif_mut(port.0) {
            vif.rated = limited || guaranteed;
        }
        if waits {
            self.enter(port.0, now, Nanos::NEVER);
        } else if state == State::Unknown {
            self.set(port.0, State::Idle);
            self.queue.reset(port.0, now);
        }
    }

    fn remove(&mut self, port: PortId) {
        let state = self.state(port);
        if state == State::Unknown {
            return;
        }
        self.withdraw(port.0, state, Nanos(0));
        self.throttle.remove(port.0);
        if let Some(vif) = self.queue.vif_mut(port.0) {
            *vif = Vif::UNKNOWN;
        }
    }

    fn activate(&mut self, port: PortId, now: Nanos) {
        match self.state(port) {
            State::Idle => self.enter(port.0, now, self.idle_timeout),
            State::Blocked => self.enter(port.0, now, Nanos::NEVER),
            _ => {}
        }
    }

    #[inline(always)]
    fn next(&mut self, now: Nanos) -> Next {
        if now < self.timer
            && let Some((port, vif)) = self.queue.select_at_once()
        {
            vif.state = State::Serving;
            return Next::Serve(PortId(port), WHOLE_BUDGET);
        }
        self.choose(now)
    }

    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos) {
        let nanos = self.dominant(&cost);
        self.charge_time(port, &cost, nanos, after, now);
    }

    fn defer(&mut self, port: PortId, now: Nanos) {
        let Some(vif) = self.queue.vif_mut(port.0).filter(|vif| vif.state.is_served()) else { return };
        vif.state = State::Ready;
        self.queue.put_back(port.0);
        self.watch(port.0, now);
    }
}
