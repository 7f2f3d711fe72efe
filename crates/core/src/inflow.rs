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
//! idle although a guest had more to send, or in which the uplink lost frames.
//!
//! All time here is the worker's own ([`Inflow::set_now`]): time that other threads take of its core is nobody's to be divided, and a
//! worker that is kept from running is not one that guests give too much to do.
//!
//! Flows of a tenant's guests share what the tenant gets: the division is made among tenants and flows without one, by the tenants'
//! weights, and then in each tenant that wants more than its part. So there is a limit for each tenant.

use crate::time::{Nanos, SECOND};
use crate::{PortId, TenantId};

/// Shortest period while nobody is limited, and while somebody is. The first is short, as the uplink's ring may overflow within some
/// milliseconds; the second longer, as the division of little time is that of chance.
const PERIODS: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_millis(4));

/// Nanoseconds of a period for each active flow at least, so that the division costs little beside their services.
const FLOW_PERIOD: u64 = 1_000;

/// The time whose share a receiver may use at once after it used less.
const BURST: Nanos = Nanos::from_millis(8);

/// How many times as long as guests' services the uplink may take while receivers are limited.
const UPLINK_PART: i64 = 64;

/// Bursts of the uplink for each service of a guest: at least, and at most.
const BURSTS: (u64, u64) = (4, 16);

/// The most for the sake of frames that are dropped: guests' services should not pay for a flood that is too large even for that.
const MOST_WITH_DROPS: u64 = 8;

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
    /// The worker's own time.
    now: Nanos,
    /// Number of the period, and when it began.
    period: u32,
    began: Nanos,
    /// The worker's time per time and weight that a receiver without a tenant may use, with [`FRACTION`] fraction bits; none if
    /// unlimited.
    limit: Option<u64>,
    /// The same for receivers of each tenant.
    tenants: Vec<TenantLimit>,
    /// Whether there is any limit.
    is_limited: bool,
    senders: Flows,
    receivers: Flows,
    /// Bursts of the uplink since a guest was served last, and the most.
    bursts: u64,
    most_bursts: u64,
    /// The time that receivers took beyond that of senders, in nanoseconds.
    ahead: i64,
    /// Whether the worker was idle in this period.
    idle: bool,
    /// Whether the uplink had no room for what guests send in this period.
    uplink_full: bool,
    /// Frames that the uplink had lost when the period began.
    lost: u64,
    /// What flows want, and what tenants and flows without one want; kept for their memory.
    flows: Vec<Demand>,
    demands: Vec<(u64, u64)>,
}

/// The limit for receivers of a tenant.
#[derive(Clone, Copy, Default)]
struct TenantLimit {
    /// As [`Inflow::limit`].
    limit: Option<u64>,
    /// How much more its limited receivers have for their weight if tenants have more for theirs, with [`FRACTION`] fraction bits.
    gain: u64,
}

/// Whose a flow is: its guest's weight, and the guest's tenant with its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The weight of what the guest sends or receives.
    pub weight: u32,
    /// The tenant, and its weight in the same direction.
    pub tenant: Option<(TenantId, u32)>,
}

/// What a flow wants of a period.
#[derive(Clone, Copy)]
struct Demand {
    owner: Owner,
    is_received: bool,
    wanted: u64,
}

/// The time that is left for those who want more than their part, and the sum of their weights.
#[derive(Clone, Copy)]
struct Level {
    time: u64,
    weights: u64,
}

/// The flows of one direction.
#[derive(Default)]
struct Flows {
    flows: Vec<Flow>,
    /// Those that took time in this period.
    active: Vec<PortId>,
}

/// What a sender wants beyond what it took. While the worker is never idle, those from `Withheld` on lack its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wants {
    /// Nothing: its ring is empty, or it waits for another guest.
    #[default]
    Nothing,
    /// Perhaps more, but a rate limits it.
    Limited,
    /// Perhaps more, but its ring has no room for it until it learns what was taken.
    Withheld,
    /// As much of the worker's time as it can get.
    All,
}

#[derive(Clone, Copy, Default)]
struct Flow {
    /// The period of the next three fields.
    period: u32,
    owner: Owner,
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
    #[inline]
    fn get(&mut self, port: PortId, owner: Owner, period: u32) -> &mut Flow {
        let index = port.index();
        if self.flows.len() <= index {
            self.flows.resize(index + 1, Flow::default());
        }
        let flow = &mut self.flows[index];
        if flow.period != period {
            *flow = Flow { period, allowed: flow.allowed, ..Flow::default() };
            self.active.push(port);
        }
        flow.owner = owner;
        flow
    }

    fn active(&self) -> impl Iterator<Item = &Flow> {
        self.active.iter().map(|port| &self.flows[port.index()])
    }
}

impl Inflow {
    /// Without limits, in the first period. Until now the worker had nothing to do.
    pub fn new() -> Inflow {
        Inflow { period: 1, idle: true, ahead: -1, most_bursts: BURSTS.0, ..Inflow::default() }
    }

    /// Sets the time: that of a monotonic clock, without what other threads took of the worker's core while it had something to do. It may
    /// be corrected, and go back by a little.
    #[inline]
    pub fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Whether the uplink may deliver another burst before the next guest is served. It may take as much time as all guests' services.
    /// While there is a limit, which divides the time better, it may take several times as much, in a little more bursts than receivers
    /// are due for each service that senders are due.
    #[inline]
    pub fn uplink_is_next(&self) -> bool {
        self.ahead < 0 && self.bursts < self.most_bursts
    }

    /// Whether frames for any receiver may be dropped.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Reports that the uplink delivered a burst.
    #[inline]
    pub fn uplink_served(&mut self) {
        self.bursts += 1;
    }

    /// Whether frames from the uplink may be delivered to a port.
    #[inline]
    pub fn admits(&self, port: PortId) -> bool {
        let allowed = |flow: &Flow| flow.allowed <= self.now + BURST;
        !self.is_limited || self.receivers.flows.get(port.index()).is_none_or(allowed)
    }

    /// Charges a port for the worker's time that it took to deliver frames to it, in nanoseconds.
    #[inline]
    pub fn received(&mut self, port: PortId, owner: Owner, nanos: u64) {
        let limit = if self.is_limited { self.limit_of(owner) } else { None };
        let flow = self.receivers.get(port, owner, self.period);
        flow.took += nanos;
        if let Some(limit) = limit {
            // The generic cell rate algorithm (ITU-T I.371), with the time that the limit needs to allow this much.
            let needed = (u128::from(nanos) << FRACTION) / (u128::from(limit) * u128::from(owner.weight.max(1)));
            let needed = Nanos(u64::try_from(needed).map_or(MOST_NEEDED.0, |needed| needed.min(MOST_NEEDED.0)));
            flow.allowed = flow.allowed.max(self.now) + needed;
        }
        self.ahead = (self.ahead + nanos as i64).min(MOST_AHEAD);
    }

    /// Reports that frames for a port were dropped for its limit, and the time that it would have taken to deliver them. The time
    /// of a drop is not charged: a flood that is too large even to be dropped would leave its guest nothing.
    pub fn refused(&mut self, port: PortId, owner: Owner, nanos: u64) {
        self.receivers.get(port, owner, self.period).refused += nanos;
        self.ahead += (nanos / DROPS) as i64;
    }

    /// Charges a port for a service of its ring, in nanoseconds.
    #[inline]
    pub fn sent(&mut self, port: PortId, owner: Owner, nanos: u64, wants: Wants) {
        let flow = self.senders.get(port, owner, self.period);
        flow.took += nanos;
        flow.wants = wants;
        flow.emptied |= wants == Wants::Nothing;
        let part = nanos as i64 * if self.is_limited { UPLINK_PART } else { 1 };
        // What the uplink did not use before is lost.
        self.ahead = (self.ahead - part).max(-part);
        self.bursts = 0;
    }

    /// Reports that no guest can be served now.
    #[inline]
    pub fn none_sends(&mut self) {
        (self.ahead, self.bursts) = (-1, 0);
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

    /// Forgets a tenant: the next one with its number has no limit yet.
    pub fn remove_tenant(&mut self, tenant: TenantId) {
        if let Some(limit) = self.tenants.get_mut(tenant.index()) {
            *limit = TenantLimit::default();
        }
    }

    /// Ends the period if it is long enough. `lost` is the number of frames that the uplink has lost so far.
    #[inline]
    pub fn advance(&mut self, lost: impl FnOnce() -> u64) {
        let elapsed = self.now.since(self.began);
        let flows = self.senders.active.len() + self.receivers.active.len();
        let period = if self.is_limited { PERIODS.1 } else { PERIODS.0 };
        if elapsed >= period && elapsed.0 >= FLOW_PERIOD * flows as u64 {
            self.end_period(elapsed, lost());
            self.began = self.now;
        }
    }

    #[cold]
    fn end_period(&mut self, elapsed: Nanos, lost: u64) {
        let loses = std::mem::replace(&mut self.lost, lost) < lost;
        let starves = !self.idle && self.senders.active().any(|flow| flow.wants >= Wants::Withheld);
        if loses || starves {
            self.divide(loses, elapsed);
        } else {
            self.relax();
        }
        self.is_limited = self.limit.is_some() || self.tenants.iter().any(|tenant| tenant.limit.is_some());
        if !self.is_limited {
            self.most_bursts = BURSTS.0;
        }
        self.period = self.period.wrapping_add(1).max(1);
        (self.idle, self.uplink_full) = (false, false);
        let period = self.period;
        let Flows { flows, active } = &mut self.senders;
        // Of many senders that want all, some are not served in every period.
        active.retain(|port| {
            let flow = &mut flows[port.index()];
            let waits = flow.wants == Wants::All;
            if waits {
                *flow = Flow { period, owner: flow.owner, wants: flow.wants, ..Flow::default() };
            }
            waits
        });
        self.receivers.active.clear();
    }

    /// Raises the limits, slowly, as the load that needed them may still be there. What a tenant has more, its limited receivers share.
    fn relax(&mut self) {
        let more = self.limit.map(slowly);
        self.limit = raised(self.limit, slowly);
        for TenantLimit { limit, gain } in &mut self.tenants {
            *limit = raised(*limit, |limit| more.map_or(slowly(limit), |more| scaled(more, *gain).max(1)));
        }
    }

    /// Divides the period's time, and sets the limits.
    fn divide(&mut self, loses: bool, elapsed: Nanos) {
        let uplink_full = self.uplink_full;
        let senders = self.senders.active().map(|flow| {
            let wanted = match flow.wants {
                Wants::Limited | Wants::Withheld => grown(flow.took),
                Wants::All if uplink_full => grown(flow.took),
                Wants::All if !flow.emptied => u64::MAX,
                // Its ring was empty in this period, so it got all that it wanted.
                Wants::All | Wants::Nothing => flow.took,
            };
            Demand { owner: flow.owner, is_received: false, wanted }
        });
        let receivers = self.receivers.active().map(|flow| {
            // If the uplink lost frames, they may have been for any receiver.
            let wanted = if loses { grown(flow.took) } else { flow.took };
            Demand { owner: flow.owner, is_received: true, wanted: wanted.max(flow.took + flow.refused) }
        });
        let Inflow { flows, demands, tenants, limit, most_bursts, .. } = self;
        flows.clear();
        flows.extend(senders.chain(receivers));
        let time = self.senders.active().chain(self.receivers.active()).map(|flow| flow.took).sum();
        flows.sort_unstable_by_key(Demand::group);
        let groups = || flows.chunk_by(|a, b| a.group().is_some() && a.group() == b.group());
        demands.clear();
        demands.extend(groups().map(|group| (weight_of(group).into(), wanted_by(group))));
        let all = level(demands, time);
        *limit = followed(*limit, all, elapsed);
        if let Some(all) = all {
            let senders = groups().filter(|group| !group[0].is_received);
            let due = |group: &[Demand]| wanted_by(group).min(all.part(weight_of(group)));
            let sent = senders.map(due).sum::<u64>().min(time);
            let arrived: u64 = self.receivers.active().map(|flow| flow.took + flow.refused).sum();
            // A quarter more than it takes, as bursts are not always full.
            let bursts = |nanos: u64| nanos.saturating_mul(5) / (4 * sent).max(1);
            *most_bursts = bursts(time - sent).max(bursts(arrived).min(MOST_WITH_DROPS)).clamp(BURSTS.0, BURSTS.1);
        }
        // Groups are in the order of their tenants.
        let last = flows.last().and_then(|flow| flow.owner.tenant).map_or(0, |(tenant, _)| tenant.index() + 1);
        if tenants.len() < last {
            tenants.resize(last, TenantLimit::default());
        }
        let mut received = groups().filter(|group| group[0].is_received && group[0].group().is_some()).peekable();
        for (index, TenantLimit { limit, gain }) in tenants.iter_mut().enumerate() {
            let is_its = |group: &&[Demand]| group[0].owner.tenant.is_some_and(|(tenant, _)| tenant.index() == index);
            let group = received.next_if(is_its).unwrap_or_default();
            // A tenant that gets all it wants has no limit.
            let weight = if group.is_empty() { 1 } else { weight_of(group) };
            let part = all.map(|all| all.part(weight)).filter(|part| *part < wanted_by(group));
            let level = part.and_then(|part| {
                demands.clear();
                demands.extend(group.iter().map(|flow| (u64::from(flow.owner.weight.max(1)), flow.wanted)));
                level(demands, part)
            });
            *limit = followed(*limit, level, elapsed);
            if let Some(level) = level {
                *gain = (u64::from(weight) << FRACTION) / level.weights;
            }
        }
    }

    /// The limit of a receiver.
    fn limit_of(&self, owner: Owner) -> Option<u64> {
        match owner.tenant {
            Some((tenant, _)) => self.tenants.get(tenant.index())?.limit,
            None => self.limit,
        }
    }
}

impl Demand {
    /// Flows of a tenant in one direction are a group.
    fn group(&self) -> Option<(TenantId, bool)> {
        self.owner.tenant.map(|(tenant, _)| (tenant, self.is_received))
    }
}

/// The weight of a tenant's flows in one direction together, or of a flow without a tenant.
fn weight_of(group: &[Demand]) -> u32 {
    let Owner { weight, tenant } = group[0].owner;
    tenant.map_or(weight, |(_, weight)| weight).max(1)
}

/// What flows want together.
fn wanted_by(group: &[Demand]) -> u64 {
    group.iter().fold(0, |sum, flow| sum.saturating_add(flow.wanted))
}

impl Level {
    /// The part of those who have this weight together.
    fn part(self, weight: u32) -> u64 {
        let part = u128::from(self.time) * u128::from(weight) / u128::from(self.weights);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Divides time among those who want it, given as weights and wanted times; none if everybody gets all they want.
fn level(demands: &mut [(u64, u64)], mut time: u64) -> Option<Level> {
    let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
    demands.sort_unstable_by(|a, b| product(a.1, b.0).cmp(&product(b.1, a.0)));
    let mut weights = demands.iter().map(|(weight, _)| weight).sum::<u64>();
    for &(weight, wanted) in demands.iter() {
        if product(wanted, weights) > product(time, weight) {
            return Some(Level { time, weights });
        }
        (time, weights) = (time - wanted, weights - weight);
    }
    None
}

/// A limit after a period.
fn followed(limit: Option<u64>, level: Option<Level>, elapsed: Nanos) -> Option<u64> {
    let Some(Level { time, weights }) = level else {
        return raised(limit, slowly);
    };
    let rate = (u128::from(time) << FRACTION) / (u128::from(weights) * u128::from(elapsed.0));
    let rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
    // What flows take follows the limit, so a limit that changes at once may swing.
    Some(limit.map_or(rate, |limit| limit - limit / 2 + rate / 2))
}

/// How much a limit is raised after a period in which it was not needed.
fn slowly(limit: u64) -> u64 {
    limit / 32 + 1
}

/// A limit that is raised so much; none if it allows all of the worker's time then.
fn raised(limit: Option<u64>, more: impl FnOnce(u64) -> u64) -> Option<u64> {
    let limit = limit?;
    limit.checked_add(more(limit)).filter(|limit| *limit < 1 << FRACTION)
}

/// A product with a number that has [`FRACTION`] fraction bits.
fn scaled(value: u64, factor: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(factor)) >> FRACTION).unwrap_or(u64::MAX)
}
