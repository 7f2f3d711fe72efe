//! How much of a worker's time frames from outside may take, by the guest that receives them.
//!
//! Frames of a guest wait in its ring until the scheduler serves it. Frames from the uplink come in the order of the wire: a flood
//! at one guest would take the worker from all others, and what overflows in the card's ring is lost whoever it is for. So what a
//! guest receives from the uplink is measured like what it sends, and while the worker cannot do all work, frames for a guest
//! above its share are dropped before they are copied.
//!
//! # The share
//! Each guest is two flows: what it sends, by its weight, and what it receives, by its `rx_weight`. In each period, the worker's
//! time is divided among them by max-min fairness (Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2): a flow that wants
//! less than its part gets all it wants, and the others share the rest by weight. The result is one number, the time per weight
//! that no receiver may exceed, as the fair share of core-stateless fair queueing (Stoica, Shenker and Zhang, SIGCOMM 1998). No
//! frame is dropped for it while the worker has time to spare: there is a limit only after a period in which the worker was never
//! idle although a guest had more to send, or in which the uplink lost frames. Tenants do not count here: each guest has its own
//! weight.

use crate::PortId;
use crate::time::{Nanos, SECOND};

/// Shortest period. A limit follows a change of the load after one or two of them.
const PERIOD: Nanos = Nanos::from_millis(1);

/// Nanoseconds of a period for each active flow at least, so that the division costs little beside their services.
const FLOW_PERIOD: u64 = 1_000;

/// The time whose share a receiver may use at once after it used less.
const BURST: Nanos = Nanos::from_millis(8);

/// How many times as long as guests' services the uplink may take while receivers are limited.
const UPLINK_PART: i64 = 64;

/// The most that the uplink can be ahead, in nanoseconds: time that other threads took of the worker is not all its own.
const MOST_AHEAD: i64 = 1_000_000;

/// Drops that take about as long as a delivery.
const DROPS: u64 = 4;

/// Longest time for which a receiver is refused after one delivery.
const MOST_NEEDED: Nanos = Nanos(SECOND);

/// Fraction bits of [`Inflow::limit`].
const FRACTION: u32 = 32;

/// The demand of a flow that something else limits is not known. It is taken to be this much, so that the flow can grow by as much in
/// each period, until it gets all it wants.
fn grown(took: u64) -> u64 {
    took + took / 8 + 1
}

/// The time that each flow took of a worker, and the limit for receivers.
#[derive(Default)]
pub struct Inflow {
    /// Number of the period, and when it began.
    period: u32,
    began: Nanos,
    /// The worker's time per time and weight that a receiver may use, with [`FRACTION`] fraction bits; none if unlimited.
    limit: Option<u64>,
    senders: Flows,
    receivers: Flows,
    /// The time that receivers took beyond that of senders, in nanoseconds.
    ahead: i64,
    /// Whether the worker was idle in this period.
    idle: bool,
    /// Whether the uplink had no room for what guests send in this period.
    uplink_full: bool,
    /// Frames that the uplink had lost when the period began.
    lost: u64,
    /// Weights and wanted times of flows; kept for its memory.
    demands: Vec<(u64, u64)>,
}

/// The flows of one direction.
#[derive(Default)]
struct Flows {
    flows: Vec<Flow>,
    /// Those that took time in this period.
    active: Vec<PortId>,
}

/// What a sender wants beyond what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wants {
    /// Nothing: its ring is empty, or it waits for another guest.
    #[default]
    Nothing,
    /// Perhaps more, but a rate limits it.
    Limited,
    /// As much of the worker's time as it can get.
    All,
}

#[derive(Clone, Copy, Default)]
struct Flow {
    /// The period of the next three fields.
    period: u32,
    weight: u32,
    /// The worker's time that it took, in nanoseconds.
    took: u64,
    /// The time that what it was refused would have taken.
    refused: u64,
    /// For a sender: what it wants beyond that, and whether it wanted nothing after an earlier service of the period.
    wants: Wants,
    emptied: bool,
    /// When a receiver's limit has allowed all that it took.
    allowed: Nanos,
}

impl Flows {
    fn get(&mut self, port: PortId, weight: u32, period: u32) -> &mut Flow {
        let index = port.index();
        if self.flows.len() <= index {
            self.flows.resize(index + 1, Flow::default());
        }
        let flow = &mut self.flows[index];
        if flow.period != period {
            *flow = Flow { period, allowed: flow.allowed, ..Flow::default() };
            self.active.push(port);
        }
        flow.weight = weight;
        flow
    }

    fn active(&self) -> impl Iterator<Item = &Flow> {
        self.active.iter().map(|port| &self.flows[port.index()])
    }
}

impl Inflow {
    /// Without limits, in the first period.
    pub fn new() -> Inflow {
        Inflow { period: 1, ahead: -1, ..Inflow::default() }
    }

    /// Whether the uplink may be served before the next guest. It may take as much time as all guests' services. While there is a
    /// limit, which divides the time better, it may take several times as much.
    #[inline]
    pub fn uplink_is_next(&self) -> bool {
        self.ahead < 0
    }

    /// Whether frames from the uplink may be delivered to a port.
    #[inline]
    pub fn admits(&self, port: PortId, now: Nanos) -> bool {
        let allowed = |flow: &Flow| flow.allowed <= now + BURST;
        self.limit.is_none() || self.receivers.flows.get(port.index()).is_none_or(allowed)
    }

    /// Charges a port for the worker's time that it took to deliver frames to it, in nanoseconds.
    #[inline]
    pub fn received(&mut self, port: PortId, weight: u32, nanos: u64, now: Nanos) {
        let limit = self.limit;
        let flow = self.receivers.get(port, weight, self.period);
        flow.took += nanos;
        if let Some(limit) = limit {
            // The generic cell rate algorithm (ITU-T I.371), with the time that the limit needs to allow this much.
            let needed = (u128::from(nanos) << FRACTION) / (u128::from(limit) * u128::from(weight.max(1)));
            let needed = Nanos(u64::try_from(needed).map_or(MOST_NEEDED.0, |needed| needed.min(MOST_NEEDED.0)));
            flow.allowed = flow.allowed.max(now) + needed;
        }
        self.ahead = (self.ahead + nanos as i64).min(MOST_AHEAD);
    }

    /// Reports that frames for a port were dropped for its limit, and the time that it would have taken to deliver them. The time
    /// of a drop is not charged: a flood that is too large even to be dropped would leave its guest nothing.
    pub fn refused(&mut self, port: PortId, weight: u32, nanos: u64) {
        self.receivers.get(port, weight, self.period).refused += nanos;
        self.ahead += (nanos / DROPS) as i64;
    }

    /// Charges a port for a service of its ring, in nanoseconds.
    #[inline]
    pub fn sent(&mut self, port: PortId, weight: u32, nanos: u64, wants: Wants) {
        let flow = self.senders.get(port, weight, self.period);
        flow.took += nanos;
        flow.wants = wants;
        flow.emptied |= wants == Wants::Nothing;
        let part = nanos as i64 * if self.limit.is_some() { UPLINK_PART } else { 1 };
        // What the uplink did not use before is lost.
        self.ahead = (self.ahead - part).max(-part);
    }

    /// Reports that no guest can be served now.
    #[inline]
    pub fn none_sends(&mut self) {
        self.ahead = -1;
    }

    /// Reports that the uplink had no room for what guests send.
    #[inline]
    pub fn uplink_full(&mut self) {
        self.uplink_full = true;
    }

    /// Reports that the worker had nothing to do.
    #[inline]
    pub fn idle(&mut self) {
        self.idle = true;
    }

    /// Forgets a port.
    pub fn remove(&mut self, port: PortId) {
        for flows in [&mut self.senders, &mut self.receivers] {
            flows.active.retain(|active| *active != port);
            if let Some(flow) = flows.flows.get_mut(port.index()) {
                *flow = Flow::default();
            }
        }
    }

    /// Ends the period if it is long enough. `lost` is the number of frames that the uplink has lost so far.
    #[inline]
    pub fn advance(&mut self, now: Nanos, lost: impl FnOnce() -> u64) {
        let elapsed = now.since(self.began);
        let flows = self.senders.active.len() + self.receivers.active.len();
        if elapsed >= PERIOD && elapsed.0 >= FLOW_PERIOD * flows as u64 {
            self.end_period(elapsed, lost());
            self.began = now;
        }
    }

    #[cold]
    fn end_period(&mut self, elapsed: Nanos, lost: u64) {
        let loses = std::mem::replace(&mut self.lost, lost) < lost;
        let starves = !self.idle && self.senders.active().any(|flow| flow.wants == Wants::All);
        let level = if loses || starves { self.level(loses) } else { None };
        self.limit = match (level, self.limit) {
            (Some((time, weights)), before) => {
                let rate = (u128::from(time) << FRACTION) / (u128::from(weights) * u128::from(elapsed.0));
                let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
                // What flows take follows the limit, so a limit that changes at once may swing.
                Some(before.map_or(rate, |before| before - before / 4 + rate / 4))
            }
            // Slowly, as the load that needed the limit may still be there.
            (None, before) => before.map(|limit| limit + limit / 32 + 1).filter(|limit| *limit < 1 << FRACTION),
        };
        self.period = self.period.wrapping_add(1).max(1);
        (self.idle, self.uplink_full) = (false, false);
        let period = self.period;
        let Flows { flows, active } = &mut self.senders;
        // Of many senders that want all, some are not served in every period.
        active.retain(|port| {
            let flow = &mut flows[port.index()];
            *flow = Flow { period, weight: flow.weight, wants: flow.wants, ..Flow::default() };
            flow.wants == Wants::All
        });
        self.receivers.active.clear();
    }

    /// The time that is left for flows which want more than their part, and the sum of their weights; none if every flow gets all
    /// it wants.
    fn level(&mut self, loses: bool) -> Option<(u64, u64)> {
        let senders = self.senders.active().map(|flow| {
            let wanted = match flow.wants {
                Wants::Nothing => flow.took,
                Wants::All if !self.uplink_full && !flow.emptied => u64::MAX,
                Wants::Limited | Wants::All => grown(flow.took),
            };
            (flow.weight, wanted)
        });
        let receivers = self.receivers.active().map(|flow| {
            // If the uplink lost frames, they may have been for any receiver.
            let wanted = if loses { grown(flow.took) } else { flow.took };
            (flow.weight, wanted.max(flow.took + flow.refused))
        });
        let demands = &mut self.demands;
        demands.clear();
        demands.extend(senders.chain(receivers).map(|(weight, wanted)| (u64::from(weight.max(1)), wanted)));
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        demands.sort_unstable_by(|a, b| product(a.1, b.0).cmp(&product(b.1, a.0)));
        let mut time = self.senders.active().chain(self.receivers.active()).map(|flow| flow.took).sum::<u64>();
        let mut weights = demands.iter().map(|(weight, _)| weight).sum::<u64>();
        for &(weight, wanted) in demands.iter() {
            if product(wanted, weights) > product(time, weight) {
                return Some((time, weights));
            }
            (time, weights) = (time - wanted, weights - weight);
        }
        None
    }
}
