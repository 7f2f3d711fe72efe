//! Weighted fair queueing in constant time: of the eligible ports, the one whose next service is due first.
//!
//! Every port i of weight w has a virtual start S, which grows by cost / w with each service. The system's virtual time
//! V is the mean of all members' S, weighted by w: where S would be if all service so far had been shared as a fluid.
//! So w (V - S) is exactly what the fluid server of generalized processor sharing (Parekh and Gallager 1993) owes port
//! i, its *lag*, and the lags of all members sum to zero. The rule is that of WF2Q (Bennett and Zhang 1996) and EEVDF
//! (Stoica and Abdel-Wahab 1995): only ports with S <= V are eligible, and of those the port whose next service is due
//! first (S + L / w) is chosen, L being the most that one service costs.
//!
//! To find it in constant time, ports are grouped as in QFQ (Checconi, Rizzo and Valente, "QFQ: Efficient Packet
//! Scheduling with Tight Guarantees", IEEE/ACM ToN 2013): a group has all weights with the same sigma = 2^k >= L / w,
//! and keeps its ports in slots of rounded S, with a bitmap to find the first. Within a group the order of S is the
//! order of due times, so only the first slot of each group competes. Weights from 1 to 10000 make 15 groups, few
//! enough to compare all; QFQ finds the group with four bitmaps, which require that V never decreases. Here V is the
//! exact mean even when ports join, leave or change their weight. Slots are narrower than QFQ's: delta = sigma / 8
//! instead of sigma.
//!
//! A port whose ring runs empty while it is ahead of the fluid would, in the fluid, still be in service until V reaches
//! its S. Until then it remains a member and in its slot; it is removed when its turn comes. (Removed at once, it would
//! lose its negative lag: ten thousand ports with one frame each would all pass before a heavy one.) Each service
//! leaves at most one such port, so removing them costs constant time per service, too.
//!
//! # Bound
//! Among ports that stay, a service of cost C <= L keeps every lag between
//! -(delta w + C) and (sigma + delta) w + L w / W, W being the sum of weights. As sigma w < 2 L, a port is
//! **at most 1.25 L ahead of the fluid and 3.25 L behind it**, whatever the number of ports and weights.
//! Ahead: a service starts only while the port's rounded S is at most V, so S < V + delta. Behind: let port i wait with
//! D = S + sigma + delta, and let t0 be the last time a port due after D was chosen. Then all ports due by D were
//! ahead of V(t0), and each service they get from then on starts before D - sigma - delta and costs at most
//! sigma w; together they cannot take more than W (D - V(t0)), so V is past D by at most the one service started at t0.
//! (This is the argument of EEVDF's theorem 1 with QFQ's rounding.) A service that costs more than L is not lost: S
//! grows by all of it. A port that becomes active during a service joins after it, and a port that returns within its
//! grace is owed at most L: each adds up to L to the bounds of the ports concerned.

use super::super::list::{Links, List};
use crate::time::{Nanos, SECOND};

/// The largest weight.
pub(super) const MAX_WEIGHT: u32 = 10_000;

/// A unit of virtual time is 2^-16 of a nanosecond at weight 1. The remainder of a division by the weight is carried,
/// so that weights are exact. Virtual time wraps and is compared by difference.
const FRACTION: u32 = 16;

/// Slots of a group: the bits of its bitmap.
const SLOTS: usize = 64;

/// sigma / delta, as a power of two. Starts lie within 3 sigma, less than the 8 sigma that the slots span.
const FINE: u32 = 3;

/// Groups needed for weights from 1 to [`MAX_WEIGHT`].
const GROUPS: usize = (MAX_WEIGHT.ilog2() + 2) as usize;

/// After this long outside the queue a port's start is meaningless: virtual time may have wrapped.
const FORGET: Nanos = Nanos(3600 * SECOND);

/// The ports, and which of them is next.
pub(super) struct Queue {
    /// L, the expected maximum cost of a service, in virtual time at weight 1.
    most: u64,
    /// log2 of the first group's delta.
    shift: u32,
    /// V, rounded down.
    virtual_time: u64,
    /// The sum of w S over all members is exactly `weights * virtual_time + remainder`, and `remainder < weights`.
    remainder: u64,
    /// W, over all members.
    weights: u64,
    /// 2^64 / W, rounded down, so that a service needs no division.
    per_weights: u64,
    /// Groups that have ports.
    busy: u32,
    /// The start of each group's first slot that has ports. Kept apart from the slots, as all are compared together.
    first: [u64; GROUPS],
    groups: Box<[Group; GROUPS]>,
    links: Links,
    ports: Vec<Port>,
    left: Vec<Left>,
}

/// When a port's membership ended, and how far S was ahead of V.
#[derive(Clone, Copy)]
struct Left {
    at: Nanos,
    lead: i64,
}

#[derive(Clone, Copy)]
struct Group {
    /// Slots that have ports.
    full: u64,
    slots: [List; SLOTS],
}

/// Half a cache line.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Port {
    /// S. For a port that is not a member: as far from V as when it left.
    start: u64,
    /// 2^64 / weight, rounded down.
    per_weight: u64,
    weight: u32,
    /// The remainder of the last division by the weight.
    carry: u32,
    group: u8,
    slot: u8,
    member: bool,
    /// In a slot, not in service.
    queued: bool,
    /// Has nothing to send, and remains a member only until V reaches its start.
    leaving: bool,
}

impl Queue {
    /// An empty queue for services that cost up to `most` nanoseconds, which is at least 10,000.
    pub(super) fn new(most: u64) -> Queue {
        let most = most << FRACTION;
        let empty = Group { full: 0, slots: [List::EMPTY; SLOTS] };
        Queue {
            most,
            shift: log2_ceil(most / u64::from(MAX_WEIGHT)) - FINE,
            virtual_time: 0,
            remainder: 0,
            weights: 0,
            per_weights: 0,
            busy: 0,
            first: [0; GROUPS],
            groups: Box::new([empty; GROUPS]),
            links: Links::default(),
            ports: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Adds a port, or changes the weight of one that is not queued. Its lag does not change.
    pub(super) fn configure(&mut self, port: u32, weight: u32, now: Nanos) {
        let weight = weight.clamp(1, MAX_WEIGHT);
        let group = (log2_ceil(self.most / u64::from(weight)) - FINE - self.shift) as u8;
        if self.ports.len() <= port as usize {
            let start = self.virtual_time;
            let (slot, member, queued, leaving) = (0, false, false, false);
            let new = Port { start, per_weight: 0, weight, carry: 0, group, slot, member, queued, leaving };
            self.ports.resize(port as usize + 1, new);
            self.left.resize(port as usize + 1, Left { at: now, lead: 0 });
            self.links.grow(port as usize + 1);
        }
        let Port { weight: old, member, queued, .. } = self.ports[port as usize];
        self.take(port);
        self.detach(port);
        let scaled = |lag: i64| (i128::from(lag) * i128::from(old) / i128::from(weight)) as i64;
        let lag = scaled(self.lag(port));
        self.left[port as usize].lead = scaled(self.left[port as usize].lead);
        let entry = &mut self.ports[port as usize];
        (entry.weight, entry.per_weight, entry.group, entry.carry) = (weight, reciprocal(weight.into()), group, 0);
        entry.start = self.virtual_time.wrapping_sub(lag as u64);
        if member && !queued {
            self.attach(port, lag);
        }
    }

    /// Ends a port's membership at once, and sets its lag to zero.
    pub(super) fn reset(&mut self, port: u32, now: Nanos) {
        self.withdraw(port, now);
        let entry = &mut self.ports[port as usize];
        (entry.start, entry.carry) = (self.virtual_time, 0);
        self.left[port as usize].lead = 0;
    }

    /// Makes a port a member and queues it. A negative lag is kept, but no more than the port left with, as V moves
    /// back when ports with a positive lag join. A positive lag is kept only if the port left less than `grace` ago,
    /// and at most one service of it.
    pub(super) fn join(&mut self, port: u32, now: Nanos, grace: Nanos) {
        let entry = &mut self.ports[port as usize];
        if std::mem::take(&mut entry.leaving) {
            return;
        }
        let Left { at, lead } = self.left[port as usize];
        let away = now.since(at);
        let credit = if away <= grace { (self.most / u64::from(entry.weight)) as i64 } else { 0 };
        let lag = if away <= FORGET { self.lag(port).clamp(-lead, credit) } else { 0 };
        self.attach(port, lag);
        self.link(port);
    }

    /// Ends the membership of a port in service whose ring is empty: at once only if it is not ahead of the fluid.
    pub(super) fn leave(&mut self, port: u32, now: Nanos) {
        if self.lag(port) >= 0 {
            return self.withdraw(port, now);
        }
        self.ports[port as usize].leaving = true;
        self.left[port as usize].at = now;
        self.link(port);
    }

    /// Ends a port's membership at once, queued or in service.
    pub(super) fn withdraw(&mut self, port: u32, now: Nanos) {
        self.take(port);
        self.detach(port);
        self.left[port as usize].at = now;
    }

    /// Dequeues the port to serve next; it remains a member.
    // Not inlined with `link` and `unlink`, a decision takes 50 instructions more.
    #[inline(always)]
    pub(super) fn select(&mut self) -> Option<u32> {
        while self.busy != 0 {
            let index = self.first_due();
            let first = self.first[index];
            let delta = 1u64 << (self.shift + index as u32);
            let port = self.groups[index].slots[slot_of(first, self.shift + index as u32)].head()?;
            let beyond = self.ports[port as usize].start.wrapping_sub(first) as i64;
            self.unlink(port);
            if beyond >= delta as i64 {
                // The port was too far ahead for the slots; by now there is a better one for it.
                self.link(port);
            } else if self.ports[port as usize].leaving {
                self.detach(port);
            } else {
                return Some(port);
            }
        }
        None
    }

    /// Dequeues a port that is served out of turn; it remains a member.
    pub(super) fn take(&mut self, port: u32) {
        if self.ports[port as usize].queued {
            self.unlink(port);
        }
    }

    /// Queues a member again after a service.
    #[inline]
    pub(super) fn put_back(&mut self, port: u32) {
        self.link(port);
    }

    /// Charges a service of a member, in nanoseconds. A service `owed` by a guarantee counts only until the port is one
    /// service ahead: a port is not punished later for guaranteed service (the non-punishment property of Stoica, Zhang
    /// and Ng, "A Hierarchical Fair Service Curve Algorithm", SIGCOMM 1997).
    #[inline]
    pub(super) fn charge(&mut self, port: u32, nanos: u32, owed: bool) {
        let entry = &mut self.ports[port as usize];
        let weight = u64::from(entry.weight);
        let units = (u64::from(nanos) << FRACTION) + u64::from(entry.carry);
        let mut growth = quotient(units, entry.per_weight);
        // If the quotient is one too small, the carry holds the difference: nothing is lost.
        entry.carry = (units - growth * weight) as u32;
        if owed {
            let most_ahead = self.virtual_time.wrapping_add(self.most / weight);
            growth = growth.min((most_ahead.wrapping_sub(entry.start) as i64).max(0) as u64);
        }
        entry.start = entry.start.wrapping_add(growth);
        let sum = self.remainder + growth * weight;
        let moved = quotient(sum, self.per_weights);
        self.virtual_time = self.virtual_time.wrapping_add(moved);
        self.remainder = sum - moved * self.weights;
        if self.remainder >= self.weights {
            self.virtual_time = self.virtual_time.wrapping_add(1);
            self.remainder -= self.weights;
        }
    }

    /// The eligible group whose first slot is due first. As V is the mean of S there is one, unless all ports with S <=
    /// V are in service: then the group that will be eligible first.
    #[inline]
    fn first_due(&self) -> usize {
        // Above all starts, which lie within 2^52 of V.
        const NOT_ELIGIBLE: i64 = 1 << 56;
        let (mut least, mut first) = (i64::MAX, 0);
        let mut busy = self.busy;
        while busy != 0 {
            let index = busy.trailing_zeros();
            busy &= busy - 1;
            let ahead = self.first[index as usize].wrapping_sub(self.virtual_time) as i64;
            let due = ahead + (((1 << FINE) + 1) << (self.shift + index));
            let key = if ahead <= 0 { due } else { NOT_ELIGIBLE + ahead };
            (least, first) = if key < least { (key, index) } else { (least, first) };
        }
        first as usize
    }

    /// V - S: the lag divided by the weight.
    fn lag(&self, port: u32) -> i64 {
        self.virtual_time.wrapping_sub(self.ports[port as usize].start) as i64
    }

    /// Removes a member from the mean. Its start moves with the mean, so its lag stays the same.
    fn detach(&mut self, port: u32) {
        let lag = self.lag(port);
        let entry = &mut self.ports[port as usize];
        if !std::mem::take(&mut entry.member) {
            return;
        }
        entry.leaving = false;
        self.left[port as usize].lead = lag.saturating_neg().max(0);
        self.weights -= u64::from(entry.weight);
        self.per_weights = reciprocal(self.weights);
        if self.weights == 0 {
            self.remainder = 0;
            return;
        }
        let sum = i128::from(self.remainder) + i128::from(lag) * i128::from(entry.weight);
        let weights = i128::from(self.weights);
        self.virtual_time = self.virtual_time.wrapping_add(sum.div_euclid(weights) as u64);
        self.remainder = sum.rem_euclid(weights) as u64;
        entry.start = self.virtual_time.wrapping_sub(lag as u64);
    }

    /// Adds a port to the mean, so that afterwards V - S is `lag`. An only member is the mean.
    fn attach(&mut self, port: u32, lag: i64) {
        let entry = &mut self.ports[port as usize];
        let weight = u64::from(entry.weight);
        entry.member = true;
        if self.weights == 0 {
            entry.start = self.virtual_time;
        } else {
            // The mean moves back by lag w / W, which gives the port the right lag.
            let sum = i128::from(self.remainder) - i128::from(lag) * i128::from(weight);
            let weights = i128::from(self.weights);
            self.virtual_time = self.virtual_time.wrapping_add(sum.div_euclid(weights) as u64);
            self.remainder = sum.rem_euclid(weights) as u64;
            entry.start = self.virtual_time.wrapping_sub(lag as u64);
        }
        self.weights += weight;
        self.per_weights = reciprocal(self.weights);
    }

    #[inline(always)]
    fn link(&mut self, port: u32) {
        let entry = &mut self.ports[port as usize];
        let index = entry.group as usize;
        let shift = self.shift + index as u32;
        let group = &mut self.groups[index];
        let start = entry.start >> shift << shift;
        let first = &mut self.first[index];
        if group.full == 0 {
            *first = start;
            self.busy |= 1 << index;
        }
        let full = group.full.rotate_right(slot_of(*first, shift) as u32);
        let mut slots_after = (start.wrapping_sub(*first) as i64) >> shift;
        if slots_after < 0 {
            // The first slot moves back as far as the last full slot allows.
            let back = slots_after.unsigned_abs().min(u64::from(full.leading_zeros()));
            *first = first.wrapping_sub(back << shift);
            slots_after = 0;
        }
        let slots_after = slots_after.min(SLOTS as i64 - 1) as usize;
        let slot = (slot_of(*first, shift) + slots_after) % SLOTS;
        (entry.slot, entry.queued) = (slot as u8, true);
        group.full |= 1 << slot;
        self.links.push_back(&mut group.slots[slot], port);
    }

    #[inline(always)]
    fn unlink(&mut self, port: u32) {
        let entry = &mut self.ports[port as usize];
        entry.queued = false;
        let index = entry.group as usize;
        let slot = entry.slot as usize;
        let shift = self.shift + index as u32;
        let group = &mut self.groups[index];
        self.links.remove(&mut group.slots[slot], port);
        if group.slots[slot].head().is_some() {
            return;
        }
        group.full &= !(1 << slot);
        if group.full == 0 {
            self.busy &= !(1 << index);
        } else {
            let first = &mut self.first[index];
            let empty = group.full.rotate_right(slot_of(*first, shift) as u32).trailing_zeros();
            *first = first.wrapping_add(u64::from(empty) << shift);
        }
    }
}

/// 2^64 / x, rounded down, for [`quotient`]; `u64::MAX` for 0 and 1.
fn reciprocal(x: u64) -> u64 {
    ((1u128 << 64) / u128::from(x.max(1))).min(u64::MAX.into()) as u64
}

/// `x` divided by the number that `reciprocal` belongs to, or one less; `x` is below 2^63.
#[inline]
fn quotient(x: u64, reciprocal: u64) -> u64 {
    ((u128::from(x) * u128::from(reciprocal)) >> 64) as u64
}

/// The slot of a start.
#[inline]
fn slot_of(start: u64, shift: u32) -> usize {
    (start >> shift) as usize % SLOTS
}

/// The least k with 2^k >= x.
fn log2_ceil(x: u64) -> u32 {
    x.next_power_of_two().ilog2()
}
