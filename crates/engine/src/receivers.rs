//! The receiving side of a bridge: delivers frames from receive queues into guests' rings.

use crate::bill::UnitTime;
use crate::bridge::SERVICES;
use crate::clock::Clock;
use crate::entry::{PortEntry, RxState};
use crate::forward::Fabric;
use crate::rx_queue::RxPool;
use fairlane_core::PortId;
use fairlane_core::inflow::Inflow;
use fairlane_core::sched::{self, After, Bucket, Budget, Cost, Next, Scheduler, SchedulerKind, Share};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_policy::uplink_queue;
use fairlane_port::{Burst, Refusal, Room, Status, trace};

/// How long a port whose queue became empty keeps its place in the receivers' scheduler.
pub(crate) const IDLE_TIMEOUT: Nanos = Nanos::from_millis(100);

/// The rate of what guests receive from the uplink together.
#[derive(Default)]
pub(crate) struct Pace {
    bucket: Option<Bucket>,
    /// Whether queued frames may wait for it, which later ones must not overtake.
    is_behind: bool,
}

impl Pace {
    /// Sets the rate in bits a second; none for no limit. What it allows at once is not allowed again.
    pub(crate) fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        let share = Share { max_rate: rate, burst: uplink_queue(rate), ..Share::default() };
        Bucket::replace(&mut self.bucket, Bucket::of_bytes(&share, now), now);
    }

    /// Whether frames from the uplink may go into a ring at once. If not, they must be queued.
    #[inline]
    pub(crate) fn passes(&mut self, now: Nanos) -> bool {
        let Some(bucket) = &mut self.bucket else { return true };
        self.is_behind |= bucket.room(now) == 0;
        !self.is_behind
    }

    /// Counts bytes from the uplink that a guest received.
    #[inline]
    pub(crate) fn take(&mut self, bytes: u64, now: Nanos) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(bytes, now);
        }
    }

    /// Until when no frame from the uplink may be delivered; none if one may be now.
    fn closed_until(&mut self, now: Nanos) -> Option<Nanos> {
        let bucket = self.bucket.as_mut()?;
        (bucket.room(now) == 0).then(|| bucket.ready_at())
    }
}

/// What the receive queues of a bridge share.
pub(crate) struct Receivers {
    pub pool: RxPool,
    pub pace: Pace,
    /// Chooses among guests with queued frames and room in their ring.
    pub scheduler: Box<dyn Scheduler>,
    /// Guests with queued frames and without room in their ring, in no particular order.
    full: Vec<PortId>,
    /// Whether a frame or a sender began to wait in this round. Its deadline is known only after the next round.
    pub new_waits: bool,
    /// Whether the round ends, as a guest's ring is to be flushed ([`Withheld`](fairlane_port::Withheld)), and whether the next one is
    /// short, as that guest can do nothing before.
    pub flush_due: bool,
    pub stalled: bool,
    /// The worker's time by guest, and which guests may receive from the uplink.
    pub inflow: Inflow,
    pub uplink_work: UplinkWork,
}

/// The worker's time for frames from the uplink. It is measured for several bursts together, and divided among their receivers by
/// the work that such frames usually are.
#[derive(Default)]
pub(crate) struct UplinkWork {
    /// Work since the last measurement, in units of [`work`](crate::bill::work).
    pub units: u64,
    /// Whether frames were dropped since then. Their time says nothing of the others'.
    pub has_drops: bool,
    /// Average time of a unit.
    unit_time: UnitTime,
}

impl UplinkWork {
    /// The usual time of so many units, in nanoseconds.
    pub(crate) fn time_of(&self, units: u64) -> u64 {
        self.unit_time.of(units)
    }

    /// Takes the time for the work since the last measurement, as [`UnitTime::own`] does.
    pub(crate) fn measured(&mut self, nanos: u64, worked: impl FnOnce() -> u64) {
        let (units, has_drops) = (std::mem::take(&mut self.units), std::mem::take(&mut self.has_drops));
        if units > 0 && !has_drops {
            self.unit_time.own(nanos, units, worked);
        }
    }
}

impl Receivers {
    /// For a link without guests.
    pub(crate) fn new(pool: u64) -> Receivers {
        // Guests receive from each other as well, so the uplink's rate is no limit.
        let scheduler = sched::build(SchedulerKind::Fair, None, IDLE_TIMEOUT);
        Receivers {
            pool: RxPool::new(pool),
            pace: Pace::default(),
            scheduler,
            full: Vec::new(),
            new_waits: false,
            flush_due: false,
            stalled: false,
            inflow: Inflow::new(),
            uplink_work: UplinkWork::default(),
        }
    }

    /// Reports that frames are queued for a guest.
    pub(crate) fn queued(&mut self, port: PortId, entry: &mut PortEntry, now: Nanos) {
        if entry.rx_state == RxState::Idle {
            entry.rx_state = RxState::Ready;
            self.scheduler.activate(port, now);
            self.new_waits = true;
        }
    }

    /// Reports that a guest with queued frames has no room in its ring.
    pub(crate) fn wait_for_room(&mut self, port: PortId, entry: &mut PortEntry) {
        entry.rx_state = RxState::Full;
        self.full.push(port);
        self.new_waits = true;
    }

    /// Guests with queued frames and without room in their ring.
    pub(crate) fn full(&self) -> &[PortId] {
        &self.full
    }

    /// Reports that a guest's ring is to be flushed, and whether it is empty or full.
    pub(crate) fn end_round(&mut self, stalled: bool) {
        self.flush_due = true;
        self.stalled |= stalled;
    }

    /// Removes a port.
    pub(crate) fn remove(&mut self, port: PortId) {
        self.scheduler.remove(port);
        self.inflow.remove(port);
        self.full.retain(|other| *other != port);
    }
}

/// What a round delivered from queues.
pub(crate) struct Delivered {
    pub frames: u64,
    /// Whether more can be delivered at once.
    pub busy: bool,
    /// When there is more to do at the latest.
    pub next: Nanos,
}

impl Fabric {
    /// Delivers queued frames, in at most [`SERVICES`] services. Advances `now` by the time this took.
    pub(crate) fn deliver_queued(&mut self, burst: &mut Burst, now: &mut Nanos, clock: &impl Clock) -> Delivered {
        if !self.receivers.pool.is_used() && self.receivers.full.is_empty() {
            self.receivers.pace.is_behind = false;
            return Delivered { frames: 0, busy: false, next: Nanos::NEVER };
        }
        let mut delivered = Delivered { frames: 0, busy: true, next: self.check_full_rings(*now) };
        for _ in 0..SERVICES {
            if delivered.busy {
                self.deliver_next(&mut delivered, burst, now, clock);
            }
        }
        delivered
    }

    /// Delivers queued frames in one service. Advances `now` by the time this took.
    pub(crate) fn deliver_next(
        &mut self,
        delivered: &mut Delivered,
        burst: &mut Burst,
        now: &mut Nanos,
        clock: &impl Clock,
    ) {
        match self.receivers.scheduler.next(*now) {
            Next::Serve(port, budget) => {
                if let Some(open) = self.waits_for_pace(port, *now) {
                    // Its place is kept, so that the scheduler alone decides who gets the rate.
                    self.receivers.scheduler.defer(port, *now);
                    delivered.next = delivered.next.min(open);
                    delivered.busy = false;
                    return;
                }
                let (mut cost, after) = self.deliver_queued_to(port, budget, burst, *now);
                let end = clock.now();
                cost.nanos = end.since(*now).0;
                *now = end;
                delivered.frames += cost.frames;
                if let Some(entry) = self.entries[port.index()].as_deref() {
                    self.receivers.inflow.received(port, entry.rx_owner, cost.nanos);
                }
                self.receivers.pace.take(cost.uplink_bytes, end);
                self.receivers.scheduler.charge(port, cost, after, end);
            }
            idle => {
                if let Next::WaitUntil(time) = idle {
                    delivered.next = delivered.next.min(time);
                }
                delivered.busy = false;
                self.receivers.pace.is_behind = false;
            }
        }
    }

    /// When the link's rate allows the next frame that is queued for a guest, if it does not now.
    fn waits_for_pace(&mut self, port: PortId, now: Nanos) -> Option<Nanos> {
        let open = self.receivers.pace.closed_until(now)?;
        let next = self.entries[port.index()].as_deref()?.queue.front()?;
        next.is_from_uplink().then_some(open)
    }

    /// Delivers queued frames into one guest's ring.
    fn deliver_queued_to(&mut self, port: PortId, mut budget: Budget, burst: &mut Burst, now: Nanos) -> (Cost, After) {
        let Fabric { entries, touched, receivers, .. } = self;
        let mut cost = Cost::default();
        let Some(entry) = entries[port.index()].as_deref_mut() else { return (cost, After::Empty) };
        entry.expire(receivers, now);
        while budget.frames > 0 && budget.bytes > 0 && !entry.queue.is_empty() {
            let judged = entry.queue.judge(&mut receivers.pool, now);
            entry.counters.marked_frames += judged.marked;
            if judged.dropped > 0 {
                entry.lose(judged.dropped, DropReason::RxCongested);
            }
            let batch = entry.queue.offer(burst, budget);
            let put = entry.port.put(&batch, 0..batch.len(), now);
            if put.accepted > 0
                && let Some(early) = &mut entry.early
            {
                early.delivered(&batch, 0..put.accepted, now);
            }
            for _ in 0..put.accepted {
                let Some(frame) = entry.queue.pop(&mut receivers.pool) else { break };
                let bytes = u64::from(frame.len);
                cost.frames += 1;
                cost.bytes += bytes;
                cost.segments += frame.offload.segments(bytes);
                cost.uplink_bytes += if frame.is_from_uplink() { bytes } else { 0 };
                budget.bytes = budget.bytes.saturating_sub(bytes);
                let waited = now.since(frame.since);
                entry.rx_waiting.record(waited);
                trace::put(&entry.name, 1, bytes, waited);
            }
            budget.frames -= put.accepted as u32;
            if put.accepted > 0 {
                entry.last_received = now;
                entry.touch(port, touched);
            }
            match put.refusal {
                Some(Refusal::Never(reason)) => {
                    entry.queue.pop(&mut receivers.pool);
                    entry.lose(1, reason);
                }
                Some(Refusal::Full) => break,
                None => {}
            }
        }
        entry.counters.received_frames += cost.frames;
        entry.counters.received_bytes += cost.bytes;
        if entry.port.withheld().received {
            receivers.end_round(!entry.queue.is_empty());
        }
        let after = if entry.queue.is_empty() {
            entry.rx_state = RxState::Idle;
            After::Empty
        } else if budget.frames > 0 && budget.bytes > 0 {
            receivers.wait_for_room(port, entry);
            After::Blocked
        } else {
            After::Backlogged
        };
        (cost, after)
    }

    /// Finds full rings that have room again, and drops frames that waited too long. Returns when to look again without an event.
    fn check_full_rings(&mut self, now: Nanos) -> Nanos {
        let Fabric { entries, receivers, .. } = self;
        let mut next = Nanos::NEVER;
        let mut full = std::mem::take(&mut receivers.full);
        full.retain(|port| {
            let Some(entry) = entries[port.index()].as_deref_mut() else { return false };
            if entry.port.status() != Status::Up {
                entry.drop_queue(receivers, DropReason::ReceiverDown);
            }
            entry.expire(receivers, now);
            if entry.queue.is_empty() {
                entry.rx_state = RxState::Idle;
                return false;
            }
            match entry.port.room(now) {
                Room::Now => {
                    entry.rx_state = RxState::Ready;
                    receivers.scheduler.activate(*port, now);
                    return false;
                }
                Room::At(time) => next = next.min(time),
                Room::Unknown => {}
            }
            next = next.min(entry.expiry());
            true
        });
        receivers.full = full;
        next
    }
}

impl PortEntry {
    /// When its oldest queued frame expires.
    fn expiry(&self) -> Nanos {
        self.queue.front().map_or(Nanos::NEVER, |frame| frame.since + self.receive.timeout)
    }

    /// Drops queued frames that have expired.
    fn expire(&mut self, receivers: &mut Receivers, now: Nanos) {
        while self.expiry() <= now {
            self.queue.pop(&mut receivers.pool);
            self.lose(1, DropReason::RxQueueTimeout);
        }
    }

    /// Drops all queued frames.
    pub(crate) fn drop_queue(&mut self, receivers: &mut Receivers, reason: DropReason) {
        while self.queue.pop(&mut receivers.pool).is_some() {
            self.lose(1, reason);
        }
    }
}
