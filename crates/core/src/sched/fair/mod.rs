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

use super::throttle::Throttle;
use super::{After, BUDGET_BYTES, BUDGET_FRAMES, Budget, Cost, Next, Scheduler, Share, State};
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

/// The least cost of a service in nanoseconds, even if the ring was empty.
const LEAST_COST: u64 = 64;

/// Byte-accurate weighted fair sharing with `min_rate`, `max_rate` and bounded lag.
pub(super) struct Fair {
    /// The uplink's time per byte, in nanoseconds.
    byte_time: u64,
    idle_timeout: Nanos,
    vifs: Vec<Vif>,
    throttle: Throttle,
    guarantee: Guarantee,
    queue: Queue,
}

#[derive(Clone, Copy, Default)]
struct Vif {
    state: State,
    /// Has a `max_rate` or `max_frames`.
    limited: bool,
    /// Has a `min_rate`.
    guaranteed: bool,
    /// The current service was owed by its `min_rate`.
    owed: bool,
    /// Waits for its destination, so its place does not expire.
    blocked: bool,
}

impl Fair {
    /// A scheduler without ports, for a link of `link_rate` bits a second. A port that returns within `idle_timeout`
    /// keeps the lag it left with.
    pub(super) fn new(link_rate: Option<u64>, idle_timeout: Nanos) -> Fair {
        let byte_time = link_rate.map_or(0, |rate| ((8 * SECOND) << BYTE_TIME_FRACTION) / rate.max(1));
        let most = link_time(MAX_SERVICE, byte_time).clamp(MAX_SERVICE, u64::from(u32::MAX));
        Fair {
            byte_time,
            idle_timeout,
            vifs: Vec::new(),
            throttle: Throttle::default(),
            guarantee: Guarantee::default(),
            queue: Queue::new(most),
        }
    }

    /// The time of the resource that a service used most, in nanoseconds.
    pub(super) fn dominant(&self, cost: Cost) -> u32 {
        let time = link_time(cost.uplink_bytes, self.byte_time).max(cost.nanos);
        let time = if time == 0 { cost.bytes } else { time };
        u32::try_from(time.max(LEAST_COST)).unwrap_or(u32::MAX)
    }

    /// Whether a port is in service.
    pub(super) fn serves(&self, port: PortId) -> bool {
        self.vifs.get(port.index()).is_some_and(|vif| vif.state == State::Serving)
    }

    /// Takes a port out of turn, to be charged for an earlier service.
    #[cold]
    pub(super) fn recall(&mut self, port: PortId, now: Nanos) {
        self.activate(port, now);
        if self.vif(port, State::Held).is_some() {
            self.throttle.unhold(port.0);
            self.queue.join(port.0, now, Nanos::NEVER);
        }
        self.guarantee.leave(port.0);
        self.queue.take(port.0);
        let Some(vif) = self.vifs.get_mut(port.index()) else { return };
        (vif.state, vif.owed) = (State::Serving, false);
    }

    /// [`Scheduler::charge`] for a cost whose [dominant](Fair::dominant) time is known.
    #[inline(always)]
    pub(super) fn charge_time(&mut self, port: PortId, cost: Cost, nanos: u32, after: After, now: Nanos) {
        let Some(&mut vif) = self.vif(port, State::Serving) else { return };
        self.queue.charge(port.0, nanos, vif.owed);
        if vif.limited {
            self.throttle.take(port.0, &cost, now);
        }
        if vif.guaranteed {
            self.guarantee.charge(port.0, cost.bytes, now);
        }
        let throttled = vif.limited && self.throttle.room(port.0, now).is_none();
        let vif = &mut self.vifs[port.index()];
        if after == After::Backlogged && !throttled {
            vif.state = State::Ready;
            self.queue.put_back(port.0);
            if vif.guaranteed {
                self.guarantee.enter(port.0, now);
            }
            return;
        }
        self.queue.leave(port.0, now);
        vif.blocked = after == After::Blocked;
        vif.state = if after == After::Backlogged { State::Held } else { State::Idle };
        if after == After::Backlogged {
            self.throttle.hold(port.0);
        }
    }

    fn vif(&mut self, port: PortId, state: State) -> Option<&mut Vif> {
        self.vifs.get_mut(port.index()).filter(|vif| vif.state == state)
    }

    /// Queues an active port, to wait for its `max_rate` or for its turn. A port that left the queue more than `grace`
    /// ago has lost what it was owed.
    fn enter(&mut self, port: u32, now: Nanos, grace: Nanos) {
        let vif = &mut self.vifs[port as usize];
        if vif.limited && self.throttle.room(port, now).is_none() {
            vif.state = State::Held;
            self.throttle.hold(port);
            return;
        }
        vif.state = State::Ready;
        self.queue.join(port, now, grace);
        if vif.guaranteed {
            self.guarantee.resume(port, now);
            self.guarantee.enter(port, now);
        }
    }

    /// Removes a port from every queue.
    fn withdraw(&mut self, port: u32, now: Nanos) {
        let vif = self.vifs[port as usize];
        match vif.state {
            State::Ready => self.guarantee.leave(port),
            State::Held => self.throttle.unhold(port),
            State::Serving | State::Unknown | State::Idle => {}
        }
        self.queue.withdraw(port, now);
    }

    fn serve(&mut self, port: u32, owed: bool, now: Nanos) -> Next {
        let vif = &mut self.vifs[port as usize];
        (vif.state, vif.owed) = (State::Serving, owed);
        let mut budget = Budget { bytes: BUDGET_BYTES, frames: BUDGET_FRAMES };
        if vif.limited {
            // A queued port has tokens, unless the clock went back.
            let Budget { bytes, frames } = self.throttle.room(port, now).unwrap_or(Budget { bytes: 1, frames: 1 });
            budget = Budget { bytes: bytes.min(budget.bytes), frames: frames.min(budget.frames) };
        }
        Next::Serve(PortId(port), budget)
    }
}

/// Nanoseconds for `bytes` at `byte_time`, a fixed-point number with [`BYTE_TIME_FRACTION`] bits.
fn link_time(bytes: u64, byte_time: u64) -> u64 {
    bytes.saturating_mul(byte_time) >> BYTE_TIME_FRACTION
}

impl Scheduler for Fair {
    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        if self.vifs.len() <= port.index() {
            self.vifs.resize(port.index() + 1, Vif::default());
        }
        let state = self.vifs[port.index()].state;
        let waits = state == State::Ready || state == State::Held;
        if waits {
            self.withdraw(port.0, now);
        }
        self.queue.configure(port.0, share.weight, now);
        let limited = self.throttle.configure(port.0, &share, now);
        let guaranteed = self.guarantee.configure(port.0, &share, now);
        let vif = &mut self.vifs[port.index()];
        (vif.limited, vif.guaranteed) = (limited, guaranteed);
        if waits {
            self.enter(port.0, now, Nanos::NEVER);
        } else if state == State::Unknown {
            vif.state = State::Idle;
            self.queue.reset(port.0, now);
        }
    }

    fn remove(&mut self, port: PortId) {
        if self.vifs.get(port.index()).is_none_or(|vif| vif.state == State::Unknown) {
            return;
        }
        self.withdraw(port.0, Nanos(0));
        self.throttle.remove(port.0);
        self.vifs[port.index()] = Vif::default();
    }

    fn activate(&mut self, port: PortId, now: Nanos) {
        let idle_timeout = self.idle_timeout;
        let Some(vif) = self.vif(port, State::Idle) else { return };
        let grace = if std::mem::take(&mut vif.blocked) { Nanos::NEVER } else { idle_timeout };
        self.enter(port.0, now, grace);
    }

    // Not inlined, a decision with tenants takes 60 instructions more.
    #[inline(always)]
    fn next(&mut self, now: Nanos) -> Next {
        while let Some(port) = self.throttle.release(now) {
            self.enter(port, now, Nanos::NEVER);
        }
        if let Some(port) = self.guarantee.next(now) {
            self.queue.take(port);
            return self.serve(port, true, now);
        }
        if let Some(port) = self.queue.select() {
            if self.vifs[port as usize].guaranteed {
                self.guarantee.leave(port);
            }
            return self.serve(port, false, now);
        }
        self.throttle.next_release().map_or(Next::Idle, Next::WaitUntil)
    }

    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos) {
        let nanos = self.dominant(cost);
        self.charge_time(port, cost, nanos, after, now);
    }

    fn defer(&mut self, port: PortId, now: Nanos) {
        let Some(vif) = self.vif(port, State::Serving) else { return };
        vif.state = State::Ready;
        let guaranteed = vif.guaranteed;
        self.queue.put_back(port.0);
        if guaranteed {
            self.guarantee.enter(port.0, now);
        }
    }
}
