//! The path of a frame: from the ring of the port whose turn it is, through the switch, into another port.
//!
//! A [`Bridge`] is one link: its switch, its scheduler and its ports. [`Bridge::round`] is the datapath. It has no clock of its
//! own, and makes no allocation, lock or system call per frame.

mod drain;
mod early;
mod handover;
mod idle;
mod settings;
mod sleep;
mod tenants;
mod uplink;

use crate::bill::{FRAME, Worked};
use crate::clock::Clock;
use crate::early::Offered;
use crate::entry::{PortEntry, RxState, Turn};
use crate::forward::{Fabric, Sending, UPLINK};
use crate::receivers::Receivers;
use crate::snapshot::{EarlyState, PortState, VifState};
use fairlane_core::PortId;
use fairlane_core::receive;
use fairlane_core::sched::{After, Budget, Cost, Next, Scheduler};
use fairlane_core::switch::{Config, Switch};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::{BURST, Burst, Poller, Room, Status, trace};
pub(crate) use sleep::Asleep;
use sleep::Sleep;
use std::collections::HashMap;
use tenants::Tenants;
use uplink::{FromUplink, UPLINK_BURSTS};

/// Most services in a round. Ports are flushed after these, or once one used up half of its guest's ring. If that guest can do nothing
/// before, as its ring is empty or full, the next round has one service, so that the guest is soon looked at again, and each later one
/// twice as many.
pub(crate) const SERVICES: usize = 8;

/// Work of the uplink's frames that is worth a reading of the clock, if no service follows which reads it.
const MEASURED: u64 = 2 * BURST as u64 * FRAME;

/// What a round did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Frames taken from ports, delivered or dropped.
    pub frames: u64,
    /// Whether the next round can do something at once, or finds out when it can. Frames that arrive meanwhile are found by
    /// [`Bridge::enable_notifications`].
    pub busy: bool,
    /// When there is something to do without an event: a rate allows a port to send again, a bounded wait ends.
    pub next: Nanos,
    /// The last time read: after the last frames of guests were forwarded, before they were published.
    pub end: Nanos,
}

/// A link: a switch, a scheduler, and ports. Port 0 is the uplink.
pub struct Bridge {
    name: String,
    pub(crate) fabric: Fabric,
    pub(crate) scheduler: Box<dyn Scheduler>,
    /// Guests' ports by name.
    names: HashMap<String, PortId>,
    /// How many guests have been here.
    guests: u64,
    /// Numbers of guests' ports below the largest that no port has.
    vacant: usize,
    tenants: Tenants,
    /// Guests' ports whose ring was empty and that are polled, in no particular order (each knows its place), and the next one to
    /// poll.
    idle: Vec<PortId>,
    cursor: usize,
    /// Frames of the last round, and services of the next.
    last_frames: u64,
    services: usize,
    sleep: Sleep,
    /// Guests' ports with early ack.
    accelerated: Vec<PortId>,
    /// Those that had early ack, while another process has its files.
    left: Vec<handover::Left>,
    /// Guests' ports that senders wait for.
    contended: Vec<PortId>,
    /// Ports whose frontends' messages are not handled for a while.
    muted: Vec<PortId>,
    /// Services that found the uplink full, in the scheduler's order.
    held: Vec<Service>,
    /// The same while they are resumed; kept for its memory.
    resumed: Vec<Service>,
    /// When shares of the link were last computed.
    marked: Nanos,
    worked: Worked,
}

/// A service that the scheduler asked for, and its cost so far.
#[derive(Clone, Copy)]
struct Service {
    port: PortId,
    /// What may still be sent.
    budget: Budget,
    cost: Cost,
}

/// What is left in a port's ring after a service.
enum Left {
    Some,
    Nothing,
    Waits(PortId),
}

impl Bridge {
    /// A link without ports.
    pub fn new(name: &str, switch: Config, scheduler: Box<dyn Scheduler>) -> Bridge {
        Bridge {
            name: name.to_owned(),
            fabric: Fabric {
                switch: Switch::new(switch),
                entries: vec![None],
                touched: Vec::new(),
                receivers: Receivers::new(receive::POOL),
            },
            scheduler,
            names: HashMap::new(),
            guests: 0,
            vacant: 0,
            tenants: Tenants::default(),
            idle: Vec::new(),
            cursor: 0,
            last_frames: 0,
            services: SERVICES,
            sleep: Sleep::default(),
            accelerated: Vec::new(),
            left: Vec::new(),
            contended: Vec::new(),
            muted: Vec::new(),
            held: Vec::new(),
            resumed: Vec::new(),
            marked: Nanos(0),
            worked: Worked::default(),
        }
    }

    /// Forwards frames: at most some bursts from the uplink and one scheduled service, [`SERVICES`] times. `burst` is scratch memory,
    /// `now` the time just read. The clock is read again to measure services: after each one, and before it if the uplink was
    /// served since.
    pub fn round(&mut self, burst: &mut Burst, mut now: Nanos, clock: &impl Clock) -> Round {
        let mut round = Round { frames: 0, busy: true, next: Nanos::NEVER, end: now };
        self.tick(now, clock);
        self.fabric.receivers.new_waits = false;
        let queued = self.fabric.deliver_queued(burst, &mut now, clock);
        if !self.contended.is_empty() {
            round.next = round.next.min(self.release_senders(burst, &mut now, clock));
        }
        if !self.accelerated.is_empty() {
            round.next = round.next.min(self.run_early_timeouts(burst, now));
        }
        self.poll_idle(now);
        self.mark(now);
        if !self.muted.is_empty() {
            round.next = round.next.min(self.unmute(now));
        }
        self.resume(burst, &mut round, &mut now, clock);
        let mut uplink = FromUplink { waits: true, bursts: 0, queued };
        let services = self.services;
        self.services = SERVICES.min(2 * services);
        for _ in 0..services {
            let frames = self.serve_uplink(burst, &mut uplink, &mut now, clock);
            round.frames += frames;
            match self.scheduler.next(now) {
                Next::Serve(port, _) if self.uplink_is_before(port, &uplink) => self.scheduler.defer(port, now),
                Next::Serve(port, budget) => {
                    if frames > 0 {
                        // Otherwise the uplink's service would count as this port's.
                        now = self.measure_uplink(now, clock);
                    }
                    let service = Service { port, budget, cost: Cost::default() };
                    self.carry_out(service, burst, &mut round, &mut now, clock);
                }
                idle if !uplink.waits => {
                    if let Next::WaitUntil(time) = idle {
                        round.next = round.next.min(time);
                    }
                    round.busy = uplink.queued.busy;
                    self.fabric.receivers.inflow.none_sends();
                    break;
                }
                Next::WaitUntil(_) | Next::Idle => self.fabric.receivers.inflow.none_sends(),
            }
            if self.fabric.receivers.flush_due || uplink.bursts >= UPLINK_BURSTS * services {
                break;
            }
        }
        round.frames += uplink.queued.frames;
        round.next = round.next.min(uplink.queued.next);
        self.fabric.receivers.flush_due = false;
        if std::mem::take(&mut self.fabric.receivers.stalled) {
            self.services = 1;
        }
        if self.fabric.receivers.uplink_work.units >= MEASURED {
            now = self.measure_uplink(now, clock);
        }
        round.next = round.next.min(self.flush(now));
        if !self.accelerated.is_empty() {
            round.next = round.next.min(self.check_early_rings(now));
        }
        if !self.held.is_empty() {
            round.next = round.next.min(self.uplink_room(now));
        }
        round.busy |= self.fabric.receivers.new_waits;
        self.end_period(&round, now, clock);
        self.last_frames = round.frames;
        Round { end: now, ..round }
    }

    /// Resumes services that found the uplink full, once it has room. A port that sent nothing yet returns to its place in the
    /// scheduler, so that the scheduler alone decides who gets the uplink.
    fn resume(&mut self, burst: &mut Burst, round: &mut Round, now: &mut Nanos, clock: &impl Clock) {
        if self.held.is_empty() {
            return;
        }
        if self.uplink_room(*now) > *now {
            return;
        }
        std::mem::swap(&mut self.held, &mut self.resumed);
        for index in (0..self.resumed.len()).rev() {
            let Service { port, cost, .. } = self.resumed[index];
            let has_sent = cost.frames > 0;
            if let Some(entry) = self.fabric.entry(port) {
                entry.turn = Turn::Active;
                entry.in_vain += if has_sent { 0 } else { cost.nanos };
            }
            if !has_sent {
                self.scheduler.defer(port, *now);
            }
        }
        for index in 0..self.resumed.len() {
            let service = self.resumed[index];
            if service.cost.frames > 0 {
                self.carry_out(service, burst, round, now, clock);
            }
        }
        self.resumed.clear();
    }

    /// Carries out a service and charges the scheduler, unless the service has to wait for the uplink.
    fn carry_out(
        &mut self,
        mut service: Service,
        burst: &mut Burst,
        round: &mut Round,
        now: &mut Nanos,
        clock: &impl Clock,
    ) {
        let (port, before) = (service.port, service.cost.frames);
        let left = self.serve(&mut service, burst, *now);
        let mut end = clock.now();
        let frames = service.cost.frames - before;
        let (nanos, mut in_vain) = (end.since(*now).0, 0);
        if let Some(entry) = self.fabric.entry(port) {
            let served = end;
            service.cost.nanos += entry.unit_time.own(nanos, frames * FRAME, || {
                let worked = self.worked.take(served, clock);
                // Reading the CPU time is charged to the port as well.
                end = clock.now();
                worked
            });
            service.cost.nanos += end.since(served).0;
            if !matches!(left, Left::Waits(UPLINK)) {
                service.cost.nanos += entry.messages.charge() + std::mem::take(&mut entry.uncharged);
                in_vain = std::mem::take(&mut entry.in_vain);
            }
        }
        *now = end;
        round.frames += frames;
        if frames > 0
            && let Some(entry) = self.fabric.entry(port)
        {
            entry.since = end;
        }
        if let Left::Waits(UPLINK) = left {
            self.fabric.receivers.inflow.uplink_full();
            self.held.push(service);
            if let Some(entry) = self.fabric.entry(port) {
                entry.turn = Turn::Parked(UPLINK);
                entry.is_for_uplink = entry.early.is_none();
            }
            return;
        }
        let after = match left {
            Left::Some => After::Backlogged,
            Left::Nothing => After::Empty,
            Left::Waits(_) => After::Blocked,
        };
        let cost = Cost { nanos: service.cost.nanos + in_vain, ..service.cost };
        self.scheduler.charge(port, cost, after, end);
        // Not what was done in vain: receivers' limits are computed from the time of one period, and that is of an earlier one.
        self.report_sent(port, service.cost.nanos, after);
        match left {
            Left::Some => {}
            Left::Nothing => self.set_idle(port),
            Left::Waits(on) => self.park(port, on, end),
        }
    }

    /// Forwards a port's frames, up to the budget.
    fn serve(&mut self, service: &mut Service, burst: &mut Burst, now: Nanos) -> Left {
        if self.finds_uplink_full(service.port) {
            return Left::Waits(UPLINK);
        }
        let Service { port: from, budget, cost } = service;
        let Some(mut sender) = self.fabric.entries[from.index()].take() else { return Left::Nothing };
        let before = *cost;
        // Frames of the uplink are for many guests, so it never waits for one.
        let mut may_wait = *from != UPLINK && !std::mem::take(&mut sender.may_not_wait);
        let ticket = sender.ticket.filter(|ticket| ticket.released);
        let taken = ticket.map_or(0, |ticket| self.fabric.received_bytes(ticket.on));
        let left = loop {
            let Offered { batch, suppressed } = match &mut sender.early {
                Some(early) => early.offer(&sender.name, &mut *sender.port, burst, *budget, now),
                None => Offered { batch: sender.port.offer(burst, *budget, now), suppressed: 0 },
            };
            if batch.is_empty() {
                break Left::Nothing;
            }
            let (judged_by_ip, drops) = (sender.judged_by_ip, &mut sender.counters.drops);
            let mut sending = Sending {
                from: *from,
                name: &sender.name,
                weight: sender.share.weight,
                batch,
                judged_by_ip,
                now,
                may_wait,
                turn_at: ticket.map(|ticket| ticket.on),
                suppressed,
                done: 0,
                drops,
                uplink_bytes: 0,
            };
            let blocked = self.fabric.forward(&mut sending);
            let Sending { done, uplink_bytes, .. } = sending;
            let (bytes, segments) = (batch.bytes_of(0..done), batch.segments_of(0..done));
            match &mut sender.early {
                Some(early) => early.consume(&mut *sender.port, done),
                None if done > 0 => sender.port.consume(done),
                None => {}
            }
            cost.bytes += bytes;
            cost.uplink_bytes += uplink_bytes;
            cost.frames += done as u64;
            cost.segments += segments;
            budget.bytes = budget.bytes.saturating_sub(bytes);
            budget.frames = budget.frames.saturating_sub(done as u32);
            let spent = budget.bytes == 0 || budget.frames == 0;
            match blocked.filter(|_| !spent) {
                Some(on) if on == UPLINK || self.fabric.has_only_frames_for((*from, on), &mut sender, burst, now) => {
                    break Left::Waits(on);
                }
                Some(_) => {
                    may_wait = false;
                    continue;
                }
                None => {}
            }
            if !sender.has_frames(now) {
                break Left::Nothing;
            }
            if spent {
                break Left::Some;
            }
        };
        if let Some(ticket) = ticket {
            let bytes = self.fabric.received_bytes(ticket.on) - taken;
            sender.ticket = Some(ticket.used(bytes, sender.share.weight));
        }
        if cost.frames > before.frames {
            let (frames, bytes) = (cost.frames - before.frames, cost.bytes - before.bytes);
            sender.counters.sent_frames += frames;
            sender.counters.sent_bytes += bytes;
            sender.uplink_bytes += cost.uplink_bytes - before.uplink_bytes;
            sender.touch(*from, &mut self.fabric.touched);
            sender.taken += frames;
            if sender.withholds_sent() {
                self.fabric.receivers.end_round(matches!(left, Left::Nothing));
            }
            let waited = if *from == UPLINK { Nanos(0) } else { now.since(sender.since) };
            if *from != UPLINK {
                sender.waiting.record(waited);
            }
            trace::take(&sender.name, frames, bytes, waited);
        }
        self.fabric.entries[from.index()] = Some(sender);
        left
    }

    /// Whether a port's next frame is one that the uplink refused, and the uplink has refused others since it had room last.
    #[inline]
    fn finds_uplink_full(&mut self, port: PortId) -> bool {
        let is_full = self.fabric.entries[UPLINK.index()].as_ref().is_some_and(|uplink| uplink.refused);
        let Some(entry) = self.fabric.entry(port) else { return false };
        entry.is_for_uplink &= is_full;
        entry.is_for_uplink
    }

    /// Makes a port wait for room in a guest's ring.
    fn park(&mut self, port: PortId, on: PortId, now: Nanos) {
        let Some(entry) = self.fabric.entry(port) else { return };
        entry.turn = Turn::Parked(on);
        let ticket = entry.ticket;
        self.sleep.changed(port, entry);
        self.fabric.receivers.new_waits = true;
        if let Some(guest) = self.fabric.entry(on) {
            guest.waiters.add(port, ticket, now);
            if !self.contended.contains(&on) {
                self.contended.push(on);
            }
        }
    }

    /// Lets senders that wait for a guest send again: the one whose turn it is if the guest has room, and every one that may have
    /// frames for others, was overtaken by queued frames, or waited as long as a queued frame may. Returns when there is more to do
    /// without an event.
    fn release_senders(&mut self, burst: &mut Burst, now: &mut Nanos, clock: &impl Clock) -> Nanos {
        let Bridge { fabric, contended, scheduler, .. } = self;
        let mut next = Nanos::NEVER;
        contended.retain(|&on| {
            let Some(guest) = fabric.entry(on) else { return false };
            let (rx_state, room, up) = (guest.rx_state, guest.port.room(*now), guest.port.status() == Status::Up);
            let mut waiters = std::mem::take(&mut guest.waiters);
            let (timeout, fed) = (guest.receive.timeout, guest.last_received);
            waiters.release(|port, since, is_looked_at| {
                let until = since.max(fed) + timeout;
                next = next.min(until);
                let passed =
                    rx_state != RxState::Idle && !fabric.entry(on).is_some_and(|guest| guest.queue.is_of(port));
                let expired = until <= *now;
                let mut has_others = || fabric.may_have_others_than_for(port, on, burst, now, clock);
                let leaves = passed || expired || !up || (is_looked_at && has_others());
                if leaves && let Some(sender) = fabric.entry(port) {
                    (sender.turn, sender.may_not_wait) = (Turn::Active, expired);
                    sender.is_served();
                    scheduler.activate(port, *now);
                }
                leaves
            });
            match room {
                Room::Now if rx_state == RxState::Idle => {
                    if let Some((port, ticket)) = waiters.call(on)
                        && let Some(sender) = fabric.entry(port)
                    {
                        (sender.turn, sender.ticket) = (Turn::Active, Some(ticket));
                        sender.is_served();
                        scheduler.activate(port, *now);
                    }
                }
                Room::At(time) => next = next.min(time),
                Room::Now | Room::Unknown => {}
            }
            let stays = !waiters.is_empty();
            if let Some(guest) = fabric.entry(on) {
                guest.waiters = waiters;
            }
            stays
        });
        next
    }

    /// When the uplink has room for the senders that it refused; now if there is no uplink.
    fn uplink_room(&mut self, now: Nanos) -> Nanos {
        let Some(entry) = self.fabric.entry(UPLINK) else { return now };
        match entry.port.room(now) {
            Room::Now => {
                entry.refused = false;
                now
            }
            Room::At(time) => time,
            Room::Unknown if entry.port.status() != Status::Up => now,
            Room::Unknown => Nanos::NEVER,
        }
    }

    /// Publishes what the round did, once per port. Returns when ports that delay a notification are to be flushed again.
    fn flush(&mut self, now: Nanos) -> Nanos {
        let Bridge { fabric: Fabric { entries, touched, .. }, sleep, .. } = self;
        let mut next = Nanos::NEVER;
        touched.retain(|port| {
            let Some(entry) = &mut entries[port.index()] else { return false };
            let again = entry.port.flush(now);
            entry.taken = 0;
            sleep.watch_time(*port, entry);
            next = next.min(again);
            entry.touched = again != Nanos::NEVER;
            entry.touched
        });
        next
    }

    /// Computes each vif's share of the link, once a second.
    fn mark(&mut self, now: Nanos) {
        if now.since(self.marked).0 < SECOND {
            return;
        }
        self.marked = now;
        let uplink = self.fabric.entry(UPLINK).is_some();
        let counts = |entry: &PortEntry| if uplink { entry.uplink_bytes } else { entry.counters.sent_bytes };
        let vifs = self.fabric.entries.iter_mut().skip(1).flatten();
        let total: u64 = vifs.map(|entry| counts(entry) - entry.marked).sum();
        for entry in self.fabric.entries.iter_mut().skip(1).flatten() {
            entry.measured_share = if total > 0 { (counts(entry) - entry.marked) as f64 / total as f64 } else { 0.0 };
            entry.marked = counts(entry);
        }
    }

    /// The state of the uplink and of all vifs.
    pub fn snapshot(&mut self, now: Nanos) -> (Option<PortState>, Vec<VifState>) {
        self.mark(now);
        let state = |entry: &PortEntry| PortState::new(entry.port.status(), &entry.counters, entry.port.lost());
        let entries = &self.fabric.entries;
        let name = |port: PortId| entries[port.index()].as_ref().map(|entry| entry.name.clone());
        let vifs =
            entries.iter().skip(1).flatten().map(|entry| (entry, entry.effective_share())).map(|(entry, share)| {
                VifState {
                    name: entry.name.clone(),
                    link: self.name.clone(),
                    tenant: entry.tenant.and_then(|tenant| Some(self.tenants.get(tenant)?.name.clone())),
                    // Known to the policy alone.
                    added: false,
                    weight: share.weight,
                    min_rate: share.min_rate,
                    max_rate: share.max_rate,
                    burst: share.burst,
                    max_frames: share.max_frames,
                    frame_burst: share.frame_burst,
                    share: entry.measured_share,
                    waits_for: if let Turn::Parked(on) = entry.turn { name(on) } else { None },
                    waiting: entry.waiting.clone(),
                    unserved: if entry.turn == Turn::Idle { 0 } else { now.since(entry.since).0 },
                    receive: entry.receive_state(),
                    early_ack: entry.early.as_ref().map(|early| EarlyState::new(early.seen(now))),
                    capture: None,
                    port: state(entry),
                }
            });
        (entries[UPLINK.index()].as_deref().map(state), vifs.collect())
    }

    /// Handles a ready descriptor of a port. The time for a frontend's message is charged to its port with the next service; a
    /// frontend that sends too many is not listened to for a while. Advances `now` by that time, so that it is charged to no other
    /// port.
    pub fn event(&mut self, port: PortId, number: u32, poller: &Poller, now: &mut Nanos, clock: &impl Clock) {
        if port != UPLINK {
            self.look_again(port);
        }
        let Some(entry) = self.fabric.entry(port) else { return };
        if !entry.port.is_message(number) {
            entry.port.event(number, poller, *now);
            if port != UPLINK && entry.turn == Turn::Idle {
                self.poll(port, *now);
            }
            return;
        }
        self.worked.take(*now, clock);
        entry.port.event(number, poller, *now);
        *now = clock.now();
        entry.messages.count(self.worked.take(*now, clock), *now);
        if entry.messages.again() > *now && !self.muted.contains(&port) {
            entry.port.set_messages_enabled(false);
            self.muted.push(port);
        }
        self.apply_limit(port, *now);
    }

    /// Handles messages again that were put off until now. Returns when the next are.
    fn unmute(&mut self, now: Nanos) -> Nanos {
        let Bridge { fabric, muted, .. } = self;
        let mut next = Nanos::NEVER;
        muted.retain(|port| {
            let Some(entry) = fabric.entry(*port) else { return false };
            let again = entry.messages.again();
            if again <= now {
                entry.port.set_messages_enabled(true);
                return false;
            }
            next = next.min(again);
            true
        });
        next
    }
}
