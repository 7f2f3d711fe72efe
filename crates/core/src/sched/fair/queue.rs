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
//! order of due times, so only the first slot of each group competes. Slots are narrower than QFQ's: delta = sigma / 8
//! instead of sigma; in which order the ports of a slot are served, the bound does not depend on.
//!
//! Weights from 1 to 10000 make 15 groups, few enough to compare all; QFQ finds the group with four bitmaps, which
//! require that V never decreases. Here V is the exact mean even when ports join, leave or change their weight. But
//! groups are rarely compared: the slot that was found first due remains so until it is empty, the first slot of any
//! group moves back, or V reaches the next multiple of the finest delta, as a group becomes eligible only at a multiple
//! of its own. Until then a decision takes the next port from that slot. V is not even computed: how much was served
//! tells whether it got there. The more ports, the longer a choice lasts.
//!
//! A port whose ring runs empty while it is ahead of the fluid would, in the fluid, still be in service until V reaches
//! its S. Until then it remains a member and in its slot; it is removed when its turn comes. (Removed at once, it would
//! lose its negative lag: ten thousand ports with one frame each would all pass before a heavy one.) Each service
//! leaves at most one such port, so removing them costs constant time per service, too.
//!
//! V moves when ports join or leave; S does not, as it is what the port got. EEVDF keeps the lag instead, and moves V so
//! that it fits. But V moves faster while it lacks the port in its mean, and rings run empty thousands of times a second:
//! a port that wanted a little more than its part got all of it, up to a sixth of the worker too much.
//!
//! A port that returns owed something makes V fall, and one that was served alone meanwhile is ahead of it then. So what
//! ports are owed as they return is bounded for all of them together: they start relative to *par*, where V would be if
//! none of those had returned, and are owed L at most. (Each owed L, fifty of them kept another waiting for 240 L.)
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
//! grows by all of it. A port that becomes active during a service joins after it, and those that return within their
//! grace are together owed up to L: each of the two adds up to L to the bounds of the ports concerned.

use super::Vif;
use super::stacks::{NONE, Stacks};
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

/// Groups: weights from 1 to [`MAX_WEIGHT`] need one less.
const GROUPS: usize = 16;

/// Slots of all groups.
const ALL_SLOTS: usize = GROUPS * SLOTS;

/// After this long outside the queue a port's start is meaningless: virtual time may have wrapped.
const FORGET: Nanos = Nanos(3600 * SECOND);

/// The ports, and which of them is next.
pub(super) struct Queue {
    /// The slot to take ports from, which is the first one due as long as `excess` is below `until`.
    chosen: usize,
    until: u64,
    /// The sum of w S over all members is exactly `weights * virtual_time + excess`: each service adds its cost.
    excess: u64,
    /// V, rounded down, when it was last computed.
    virtual_time: u64,
    /// Where V would be if no port had returned that was owed something.
    par: u64,
    /// W, over all members.
    weights: u64,
    /// 2^64 / W, rounded down, so that V needs no division.
    per_weights: u64,
    /// L, the expected maximum cost of a service, in virtual time at weight 1.
    most: u64,
    /// log2 of the first group's delta.
    shift: u32,
    /// Groups that have ports.
    busy: u32,
    ports: Vec<Port>,
    stacks: Stacks,
    /// The ports of each slot of each group: the tops of their stacks.
    slots: Box<[u32; ALL_SLOTS]>,
    groups: [Group; GROUPS],
    /// When each port's membership ended.
    left: Vec<Nanos>,
}

#[derive(Clone, Copy)]
struct Group {
    /// The start of the first slot that has ports.
    first: u64,
    /// Slots that have ports.
    full: u64,
}

/// Half a cache line, with all that a decision needs to know of a port.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Port {
    /// S, rounded down. For a port that is not a member: as when it left.
    start: u64,
    /// 2^64 / weight, rounded down.
    per_weight: u64,
    /// Where it is in its slot's stack; [`NONE`] if it is in none, as in service.
    place: u32,
    weight: u16,
    /// w S less `weight * start`: the remainder of the last division by the weight.
    carry: u16,
    /// The number of its group, and of its slot there while it is in one.
    slot: u16,
    member: bool,
    /// Has nothing to send, and remains a member only until V reaches its start.
    leaving: bool,
    /// In the last slot of its group, and its start lies beyond.
    beyond: bool,
    vif: Vif,
}

impl Port {
    const NEW: Port = Port {
        start: 0,
        per_weight: u64::MAX,
        place: NONE,
        weight: 1,
        carry: 0,
        slot: 0,
        member: false,
        leaving: false,
        beyond: false,
        vif: Vif::UNKNOWN,
    };

    #[inline(always)]
    fn group(&self) -> usize {
        self.slot as usize / SLOTS % GROUPS
    }

    /// Adds a service to S. Returns its cost in virtual time at weight 1.
    #[inline(always)]
    fn charge(&mut self, nanos: u32) -> u64 {
        let cost = u64::from(nanos) << FRACTION;
        let units = cost + u64::from(self.carry);
        let growth = quotient(units, self.per_weight);
        // If the quotient is one too small, the carry holds the difference: nothing is lost.
        self.carry = (units - growth * u64::from(self.weight)) as u16;
        self.start = self.start.wrapping_add(growth);
        cost
    }
}

impl Queue {
    /// An empty queue for services that cost up to `most` nanoseconds, which is at least 10,000.
    pub(super) fn new(most: u64) -> Queue {
        let most = most << FRACTION;
        Queue {
            chosen: 0,
            until: 0,
            excess: 0,
            virtual_time: 0,
            par: 0,
            weights: 0,
            per_weights: 0,
            most,
            shift: log2_ceil(most / u64::from(MAX_WEIGHT)) - FINE,
            busy: 0,
            ports: Vec::new(),
            stacks: Stacks::new(),
            slots: Box::new([NONE; ALL_SLOTS]),
            groups: [Group { first: 0, full: 0 }; GROUPS],
            left: Vec::new(),
        }
    }

    /// What the scheduler knows of a port.
    #[inline(always)]
    pub(super) fn vif(&self, port: u32) -> Option<Vif> {
        self.ports.get(port as usize).map(|port| port.vif)
    }

    /// The same, to be changed.
    #[inline(always)]
    pub(super) fn vif_mut(&mut self, port: u32) -> Option<&mut Vif> {
        self.ports.get_mut(port as usize).map(|port| &mut port.vif)
    }

    /// Adds a port, or changes a port's weight. What the fluid owes it does not change, so neither does V.
    pub(super) fn configure(&mut self, port: u32, weight: u32, now: Nanos) {
        let weight = weight.clamp(1, MAX_WEIGHT);
        let group = log2_ceil(self.most / u64::from(weight)) - FINE - self.shift;
        let ports = port as usize + 1;
        if self.ports.len() < ports {
            let start = self.virtual_time;
            self.ports.resize(ports, Port { start, ..Port::NEW });
            self.left.resize(ports, now);
            self.stacks.grow(ports, GROUPS * SLOTS);
        }
        let Port { weight: old, member, leaving, place, .. } = self.ports[port as usize];
        let lag = (i128::from(self.lag(port)) * i128::from(old) / i128::from(weight)) as i64;
        let start = self.virtual_time.wrapping_sub(lag as u64);
        self.take(port);
        self.detach(port);
        let entry = &mut self.ports[port as usize];
        (entry.weight, entry.per_weight, entry.carry) = (weight as u16, reciprocal(weight.into()), 0);
        entry.slot = (group as usize * SLOTS) as u16;
        entry.start = start;
        if member {
            self.attach(port);
            self.ports[port as usize].leaving = leaving;
            if place != NONE {
                self.link(port);
            }
        }
    }

    /// Ends a port's membership at once, and sets its lag to zero.
    pub(super) fn reset(&mut self, port: u32, now: Nanos) {
        self.withdraw(port, now);
        self.settle();
        let entry = &mut self.ports[port as usize];
        (entry.start, entry.carry) = (self.virtual_time, 0);
    }

    /// Makes a port a member and queues it where it left, unless V has passed that since: what it was owed is kept only if it left
    /// less than `grace` ago, and of what all those are owed that returned at most one service.
    pub(super) fn join(&mut self, port: u32, now: Nanos, grace: Nanos) {
        if !std::mem::take(&mut self.ports[port as usize].leaving) {
            let away = now.since(self.left[port as usize]);
            let owed = self.owed();
            let most = if away <= grace { self.most.saturating_sub(owed) } else { 0 };
            let entry = &mut self.ports[port as usize];
            let least = self.par.wrapping_sub(quotient(most, entry.per_weight));
            if (least.wrapping_sub(entry.start) as i64) > 0 || away > FORGET {
                entry.start = least;
            }
            self.attach(port);
            self.link(port);
        }
    }

    /// What those that returned are still owed, in virtual time at weight 1: as much as V is behind par.
    fn owed(&mut self) -> u64 {
        self.settle();
        self.weights.saturating_mul(self.par.wrapping_sub(self.virtual_time))
    }

    /// Ends the membership of a port in service whose ring is empty: at once only if it is not ahead of the fluid.
    pub(super) fn leave(&mut self, port: u32, now: Nanos) {
        if self.lag(port) >= 0 {
            return self.withdraw(port, now);
        }
        self.ports[port as usize].leaving = true;
        self.left[port as usize] = now;
        self.link(port);
    }

    /// Ends a port's membership at once, queued or in service.
    pub(super) fn withdraw(&mut self, port: u32, now: Nanos) {
        self.take(port);
        self.detach(port);
        self.left[port as usize] = now;
    }

    /// Dequeues the port to serve next, if that takes no more than a look at the chosen slot.
    #[inline(always)]
    pub(super) fn select_at_once(&mut self) -> Option<(u32, &mut Vif)> {
        if self.excess >= self.until {
            return None;
        }
        let top = &mut self.slots[self.chosen % ALL_SLOTS];
        let port = self.stacks.peek(*top)?;
        let entry = self.ports.get_mut(port as usize)?;
        if entry.vif != Vif::ORDINARY || entry.beyond {
            return None;
        }
        *top -= 1;
        entry.place = NONE;
        Some((port, &mut entry.vif))
    }

    /// Dequeues the port to serve next; it remains a member.
    pub(super) fn select(&mut self) -> Option<u32> {
        loop {
            if self.excess >= self.until && !self.choose() {
                return None;
            }
            let top = &mut self.slots[self.chosen % ALL_SLOTS];
            let port = self.stacks.pop(top);
            if *top == NONE {
                self.emptied(self.chosen);
            }
            let entry = &mut self.ports[port as usize];
            entry.place = NONE;
            if std::mem::take(&mut entry.beyond) {
                // The port was too far ahead for the slots; by now there is a better one for it.
                self.link(port);
            } else if entry.leaving {
                self.detach(port);
            } else {
                return Some(port);
            }
        }
    }

    /// Dequeues a port that is served out of turn; it remains a member.
    pub(super) fn take(&mut self, port: u32) {
        let entry = &mut self.ports[port as usize];
        let (slot, place) = (entry.slot as usize, std::mem::replace(&mut entry.place, NONE));
        if place == NONE {
            return;
        }
        entry.beyond = false;
        let top = &mut self.slots[slot];
        if let Some(moved) = self.stacks.remove(top, place) {
            self.ports[moved as usize].place = place;
        }
        if self.slots[slot] == NONE {
            self.emptied(slot);
        }
    }

    /// Queues a member again after a service.
    pub(super) fn put_back(&mut self, port: u32) {
        self.link(port);
    }

    /// Charges an ordinary port in service, in nanoseconds, and queues it again. Returns whether the port was one.
    #[inline(always)]
    pub(super) fn charge_at_once(&mut self, port: u32, nanos: u32) -> bool {
        let Some(entry) = self.ports.get_mut(port as usize).filter(|entry| entry.vif == Vif::ORDINARY_IN_SERVICE)
        else {
            return false;
        };
        entry.vif = Vif::ORDINARY;
        self.excess += entry.charge(nanos);
        let index = entry.group();
        let shift = self.shift + index as u32;
        let group = &mut self.groups[index];
        if group.full != 0
            && let Some(slot) = group.slot_within(entry.start, shift)
            && let number = index * SLOTS + slot
            && let Some(place) = self.stacks.push_at_once(&mut self.slots[number], port)
        {
            group.full |= 1 << slot;
            entry.slot = number as u16;
            entry.place = place;
        } else {
            self.link(port);
        }
        true
    }

    /// Charges a service of a member, in nanoseconds.
    pub(super) fn charge(&mut self, port: u32, nanos: u32) {
        self.excess += self.ports[port as usize].charge(nanos);
    }

    /// Charges a service that a guarantee owed: it counts only until the port is one service ahead, as a port is not
    /// punished later for guaranteed service (the non-punishment property of Stoica, Zhang and Ng, "A Hierarchical Fair
    /// Service Curve Algorithm", SIGCOMM 1997).
    pub(super) fn charge_owed(&mut self, port: u32, nanos: u32) {
        self.settle();
        let (Port { start, carry, .. }, excess) = (self.ports[port as usize], self.excess);
        self.charge(port, nanos);
        let entry = &mut self.ports[port as usize];
        let weight = u64::from(entry.weight);
        let most_ahead = self.virtual_time.wrapping_add(self.most / weight);
        let most = (most_ahead.wrapping_sub(start) as i64).max(0) as u64;
        if entry.start.wrapping_sub(start) > most {
            (entry.start, entry.carry) = (start.wrapping_add(most), carry);
            self.excess = excess + most * weight;
        }
    }

    /// Computes V. What remains in `excess` is less than W.
    fn settle(&mut self) {
        let before = self.excess;
        let moved = quotient(before, self.per_weights);
        self.virtual_time = self.virtual_time.wrapping_add(moved);
        self.excess -= moved * self.weights;
        if self.excess >= self.weights && self.weights > 0 {
            self.virtual_time = self.virtual_time.wrapping_add(1);
            self.excess -= self.weights;
        }
        self.until = self.until.saturating_sub(before - self.excess);
        if self.virtual_time.wrapping_sub(self.par) as i64 > 0 {
            self.par = self.virtual_time;
        }
    }

    /// Chooses the slot to take ports from; false if there is none.
    fn choose(&mut self) -> bool {
        if self.busy == 0 {
            return false;
        }
        self.settle();
        let index = self.first_due();
        self.chosen = index * SLOTS + slot_of(self.groups[index].first, self.shift + index as u32);
        let delta = 1 << (self.shift + self.busy.trailing_zeros());
        let ahead = delta - self.virtual_time % delta;
        // Far below 2^64, as costs are added before they are compared.
        self.until = ahead.saturating_mul(self.weights).min(1 << 60);
        true
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
            let ahead = self.groups[index as usize].first.wrapping_sub(self.virtual_time) as i64;
            let due = ahead + (((1 << FINE) + 1) << (self.shift + index));
            let key = if ahead <= 0 { due } else { NOT_ELIGIBLE + ahead };
            (least, first) = if key < least { (key, index) } else { (least, first) };
        }
        first as usize
    }

    /// V - S: the lag divided by the weight.
    fn lag(&mut self, port: u32) -> i64 {
        self.settle();
        self.virtual_time.wrapping_sub(self.ports[port as usize].start) as i64
    }

    /// Removes a member from the mean.
    fn detach(&mut self, port: u32) {
        self.settle();
        let entry = &mut self.ports[port as usize];
        if std::mem::take(&mut entry.member) {
            entry.leaving = false;
            let before = self.virtual_time;
            self.add_to_mean(port, -1);
            let fell = before.wrapping_sub(self.virtual_time) as i64;
            self.par = self.par.wrapping_sub(fell.max(0) as u64);
        }
    }

    /// Adds a port to the mean.
    fn attach(&mut self, port: u32) {
        self.settle();
        self.ports[port as usize].member = true;
        self.add_to_mean(port, 1);
    }

    /// Adds a port's start to the mean once or -1 times, which moves V. Without members V stays.
    fn add_to_mean(&mut self, port: u32, times: i64) {
        let Port { start, weight, carry, .. } = self.ports[port as usize];
        let ahead = start.wrapping_sub(self.virtual_time) as i64;
        let units = i128::from(times) * (i128::from(ahead) * i128::from(weight) + i128::from(carry));
        self.weights = self.weights.wrapping_add_signed(times * i64::from(weight));
        self.per_weights = reciprocal(self.weights);
        self.until = 0;
        if self.weights == 0 {
            self.excess = 0;
            return;
        }
        let (sum, weights) = (i128::from(self.excess) + units, self.weights as i64);
        let (moved, excess) = match i64::try_from(sum) {
            Ok(sum) => (sum.div_euclid(weights) as u64, sum.rem_euclid(weights) as u64),
            Err(_) => (sum.div_euclid(weights.into()) as u64, sum.rem_euclid(weights.into()) as u64),
        };
        self.virtual_time = self.virtual_time.wrapping_add(moved);
        self.excess = excess;
    }

    /// Puts a port into the slot of its start.
    #[inline(never)]
    fn link(&mut self, port: u32) {
        let entry = &mut self.ports[port as usize];
        let index = entry.group();
        let shift = self.shift + index as u32;
        let group = &mut self.groups[index];
        if group.full == 0 {
            group.first = entry.start >> shift << shift;
            self.busy |= 1 << index;
            self.until = 0;
        }
        let slot = group.slot_within(entry.start, shift).unwrap_or_else(|| {
            self.until = 0;
            let (slot, beyond) = group.make_room(entry.start, shift);
            entry.beyond = beyond;
            slot
        });
        group.full |= 1 << slot;
        let slot = index * SLOTS + slot;
        entry.slot = slot as u16;
        entry.place = self.stacks.push(&mut self.slots[slot], port);
    }

    /// Notes that a slot has no more ports.
    fn emptied(&mut self, slot: usize) {
        self.until = 0;
        let index = slot / SLOTS;
        let shift = self.shift + index as u32;
        let group = &mut self.groups[index];
        group.full &= !(1 << (slot % SLOTS));
        if group.full == 0 {
            self.busy &= !(1 << index);
        } else {
            let empty = group.full.rotate_right(slot_of(group.first, shift) as u32).trailing_zeros();
            group.first = group.first.wrapping_add(u64::from(empty) << shift);
        }
    }
}

impl Group {
    /// The slot of a start, unless it lies before the first slot or beyond the last.
    #[inline(always)]
    fn slot_within(&self, start: u64, shift: u32) -> Option<usize> {
        (start.wrapping_sub(self.first) >> shift < SLOTS as u64).then(|| slot_of(start, shift))
    }

    /// Finds the slot of a start before the first slot or beyond the last. Returns it, and whether the start lies
    /// beyond.
    fn make_room(&mut self, start: u64, shift: u32) -> (usize, bool) {
        let start = start >> shift << shift;
        let first = slot_of(self.first, shift);
        let slots_after = (start.wrapping_sub(self.first) as i64) >> shift;
        if slots_after >= 0 {
            return ((first + SLOTS - 1) % SLOTS, true);
        }
        // The first slot moves back as far as the last full slot allows.
        let full = self.full.rotate_right(first as u32);
        let back = slots_after.unsigned_abs().min(u64::from(full.leading_zeros()));
        self.first = self.first.wrapping_sub(back << shift);
        (slot_of(self.first, shift), false)
    }
}

/// 2^64 / x, rounded down or one less, for [`quotient`]; `u64::MAX` for 0.
fn reciprocal(x: u64) -> u64 {
    u64::MAX / x.max(1)
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
