//! The one way for a frame: from the ring of the port whose turn it is, through the switch, into another port.
//!
//! A [`Bridge`] is one link: its switch, its scheduler and its ports. [`Bridge::round`] is the datapath. It reads no clock
//! of its own, holds no frame (what has no room yet stays in its sender's ring), and per frame neither allocates, locks nor
//! calls the system.

mod early;
mod settings;

use crate::bill::Worked;
use crate::clock::Clock;
use crate::early::Offered;
use crate::entry::{PortEntry, Turn};
use crate::forward::{Fabric, PATIENCE, Patience, Sending, UPLINK};
use crate::snapshot::{EarlyState, PortState, VifState};
use fairlane_core::PortId;
use fairlane_core::sched::{After, Budget, Cost, Next, Scheduler};
use fairlane_core::switch::{Config, Switch};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::{BURST, Burst, Poller, Room, Status, Wanted};

/// Scheduler decisions of one round at most; ports are flushed after that many.
const SERVICES: usize = 8;

/// Idle ports that are asked in one round whether frames wait.
const POLLS: usize = 64;

/// What one round did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Frames taken from ports, whatever became of them.
    pub frames: u64,
    /// Whether it left something undone that the next one can do at once. What comes meanwhile, [`Bridge::enable_notifications`] finds.
    pub busy: bool,
    /// When there is something to do without any port's doing: a rate lets a port go on, a bounded wait ends.
    pub next: Nanos,
    /// The time when it was last asked for: after the last frames of guests were carried, before they were published.
    pub end: Nanos,
}

/// One link: a switch, a scheduler, and ports, of which number 0 is the uplink.
pub struct Bridge {
    name: String,
    pub(crate) fabric: Fabric,
    pub(crate) scheduler: Box<dyn Scheduler>,
    /// Guests' ports whose ring was empty, in no order, and the one to ask next.
    idle: Vec<PortId>,
    cursor: usize,
    /// Guests' ports with early ack.
    accelerated: Vec<PortId>,
    /// Guests' ports that others wait for.
    contended: Vec<PortId>,
    /// Ports whose peers' messages are left until later.
    unheard: Vec<PortId>,
    /// Services that found the uplink full, in the order in which the scheduler asked for them.
    held: Vec<Service>,
    /// The same while they are resumed: only its memory is kept.
    resumed: Vec<Service>,
    /// When parts of the link were last worked out.
    marked: Nanos,
    worked: Worked,
}

/// A service that the scheduler asked for, and what it took so far.
#[derive(Clone, Copy)]
struct Service {
    port: PortId,
    /// What may still be taken.
    budget: Budget,
    cost: Cost,
}

/// What is left of a port's frames after a service.
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
                patience: Patience::default(),
            },
            scheduler,
            idle: Vec::new(),
            cursor: 0,
            accelerated: Vec::new(),
            contended: Vec::new(),
            unheard: Vec::new(),
            held: Vec::new(),
            resumed: Vec::new(),
            marked: Nanos(0),
            worked: Worked::default(),
        }
    }

    /// Moves frames: at most one burst from the uplink and one scheduled service, [`SERVICES`] times. `burst` is scratch,
    /// `now` the time as the caller has just read it. The clock is read again for what a service cost: after each, and before it
    /// where the uplink was served since.
    pub fn round(&mut self, burst: &mut Burst, mut now: Nanos, clock: &impl Clock) -> Round {
        let mut round = Round { frames: 0, busy: true, next: Nanos::NEVER, end: now };
        self.worked.refresh(now, clock);
        self.release(now);
        if !self.accelerated.is_empty() {
            round.next = round.next.min(self.tend_early(burst, now));
        }
        self.look_for_frames(now);
        self.mark(now);
        if !self.unheard.is_empty() {
            round.next = round.next.min(self.hear_again(now));
        }
        self.resume(burst, &mut round, &mut now, clock);
        let mut uplink = true;
        for _ in 0..SERVICES {
            if uplink {
                let frames = self.serve_uplink(burst, now);
                uplink = frames > 0;
                round.frames += frames;
            }
            match self.scheduler.next(now) {
                Next::Serve(port, budget) => {
                    if uplink {
                        // The uplink's time is not this port's.
                        now = clock.now();
                    }
                    let service = Service { port, budget, cost: Cost::default() };
                    self.attend(service, burst, &mut round, &mut now, clock);
                }
                idle if !uplink => {
                    if let Next::WaitUntil(time) = idle {
                        round.next = round.next.min(time);
                    }
                    round.busy = false;
                    break;
                }
                Next::WaitUntil(_) | Next::Idle => {}
            }
        }
        round.next = round.next.min(self.flush(now));
        if !self.accelerated.is_empty() {
            round.next = round.next.min(self.watch_early(now));
        }
        if !round.busy {
            round.next = round.next.min(self.next_opening(now));
        }
        Round { end: now, ..round }
    }

    /// Frames from the uplink are not scheduled: whoever sends them decides.
    fn serve_uplink(&mut self, burst: &mut Burst, now: Nanos) -> u64 {
        let Some(entry) = self.fabric.entry(UPLINK) else { return 0 };
        if matches!(entry.turn, Turn::Parked(_)) || !entry.has_frames(now) {
            return 0;
        }
        let budget = Budget { bytes: u64::MAX, frames: BURST as u32 };
        let mut service = Service { port: UPLINK, budget, cost: Cost::default() };
        if let Left::Waits(on) = self.serve(&mut service, burst, now) {
            self.park(UPLINK, on);
        }
        service.cost.frames
    }

    /// Goes on with services that found the uplink full, once it has room. Who was not served at all goes back to its place
    /// in the scheduler, so that the order in which the uplink is given away is the scheduler's alone.
    fn resume(&mut self, burst: &mut Burst, round: &mut Round, now: &mut Nanos, clock: &impl Clock) {
        if self.held.is_empty() {
            return;
        }
        if self.opening(UPLINK, *now) > *now {
            return;
        }
        std::mem::swap(&mut self.held, &mut self.resumed);
        for index in (0..self.resumed.len()).rev() {
            let Service { port, cost, .. } = self.resumed[index];
            if let Some(entry) = self.fabric.entry(port) {
                entry.turn = Turn::Active;
            }
            if cost.frames == 0 {
                self.scheduler.defer(port, *now);
            }
        }
        for index in 0..self.resumed.len() {
            let service = self.resumed[index];
            if service.cost.frames > 0 {
                self.attend(service, burst, round, now, clock);
            }
        }
        self.resumed.clear();
    }

    /// Carries a service out, and tells the scheduler unless it is held.
    fn attend(
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
        let nanos = end.since(*now).0;
        if let Some(entry) = self.fabric.entry(port) {
            let served = end;
            service.cost.nanos += entry.frame_time.own(nanos, frames, || {
                let worked = self.worked.take(served, clock);
                // To ask is at its expense.
                end = clock.now();
                worked
            });
            service.cost.nanos += end.since(served).0;
            if !matches!(left, Left::Waits(UPLINK)) {
                service.cost.nanos += entry.messages.charge();
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
            self.held.push(service);
            if let Some(entry) = self.fabric.entry(port) {
                entry.turn = Turn::Parked(UPLINK);
            }
            return;
        }
        let after = match left {
            Left::Some => After::Backlogged,
            Left::Nothing => After::Empty,
            Left::Waits(_) => After::Blocked,
        };
        self.scheduler.charge(port, service.cost, after, end);
        match left {
            Left::Some => {}
            Left::Nothing => self.rest(port),
            Left::Waits(on) => self.park(port, on),
        }
    }

    /// Takes frames from a port, up to the budget, and gives them to whom they are for.
    fn serve(&mut self, service: &mut Service, burst: &mut Burst, now: Nanos) -> Left {
        let Service { port: from, budget, cost } = service;
        let Some(mut sender) = self.fabric.entries[from.index()].take() else { return Left::Nothing };
        let before = *cost;
        let mut ticket = sender.ticket.filter(|ticket| ticket.called);
        let taken = ticket.map_or(0, |ticket| self.fabric.received_bytes(ticket.on));
        let left = loop {
            let Offered { batch, suppressed } = match &mut sender.early {
                Some(early) => early.offer(&mut *sender.port, burst, *budget, now),
                None => Offered { batch: sender.port.offer(burst, *budget, now), suppressed: 0 },
            };
            if batch.is_empty() {
                break Left::Nothing;
            }
            let (judged_by_ip, drops) = (sender.judged_by_ip, &mut sender.counters.drops);
            let mut sending = Sending {
                from: *from,
                batch,
                judged_by_ip,
                now,
                ticket: ticket.as_mut(),
                suppressed,
                done: 0,
                drops,
                uplink_bytes: 0,
            };
            let blocked = self.fabric.pass(&mut sending);
            let Sending { done, uplink_bytes, .. } = sending;
            let bytes = batch.bytes_of(0..done);
            match &mut sender.early {
                Some(early) => early.consume(&mut *sender.port, done),
                None => sender.port.consume(done),
            }
            cost.bytes += bytes;
            cost.uplink_bytes += uplink_bytes;
            cost.frames += done as u64;
            budget.bytes = budget.bytes.saturating_sub(bytes);
            budget.frames = budget.frames.saturating_sub(done as u32);
            let spent = budget.bytes == 0 || budget.frames == 0;
            if let Some(on) = blocked.filter(|_| !spent) {
                break Left::Waits(on);
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
            sender.counters.sent_frames += cost.frames - before.frames;
            sender.counters.sent_bytes += cost.bytes - before.bytes;
            sender.uplink_bytes += cost.uplink_bytes - before.uplink_bytes;
            sender.touch(*from, &mut self.fabric.touched);
            if *from != UPLINK {
                sender.waiting.record(now.since(sender.since));
            }
        }
        self.fabric.entries[from.index()] = Some(sender);
        left
    }

    /// Leaves a port alone until it is asked again whether frames came.
    fn rest(&mut self, port: PortId) {
        if let Some(entry) = self.fabric.entry(port) {
            entry.turn = Turn::Idle;
            self.idle.push(port);
        }
    }

    /// Leaves a port waiting for room in another.
    fn park(&mut self, port: PortId, on: PortId) {
        let Some(entry) = self.fabric.entry(port) else { return };
        entry.turn = Turn::Parked(on);
        let ticket = entry.ticket.filter(|ticket| ticket.on == on);
        if let Some(entry) = self.fabric.entry(on) {
            entry.waiters.add(port, ticket);
            if !self.contended.contains(&on) {
                self.contended.push(on);
            }
        }
    }

    /// Calls who waits for room that is there now, or has waited long enough, one a port.
    fn release(&mut self, now: Nanos) {
        let mut index = 0;
        while let Some(&on) = self.contended.get(index) {
            if self.opening(on, now) > now || self.call(on, now) {
                index += 1;
            } else {
                self.contended.swap_remove(index);
            }
        }
    }

    /// When those who wait should try again. Asked at a round's end, as some may have begun to wait in it.
    fn next_opening(&mut self, now: Nanos) -> Nanos {
        let mut next = if self.held.is_empty() { Nanos::NEVER } else { self.opening(UPLINK, now) };
        for index in 0..self.contended.len() {
            next = next.min(self.opening(self.contended[index], now));
        }
        next
    }

    /// When those who wait for a port should try again: at once if it has room or is gone.
    ///
    /// That a guest has more room is no progress yet: it may not be enough for any frame that waits.
    fn opening(&mut self, on: PortId, now: Nanos) -> Nanos {
        let Some(entry) = self.fabric.entry(on) else { return now };
        let room = match entry.port.room(now) {
            Room::Now => {
                if on == UPLINK {
                    entry.refusing = None;
                }
                return now;
            }
            Room::At(time) => time,
            Room::Unknown if entry.port.status() != Status::Up => return now,
            Room::Unknown => Nanos::NEVER,
        };
        if on == UPLINK {
            return room;
        }
        if entry.refusing.is_none() && !entry.waiters.is_empty() {
            // Who was called took the last room, and nobody has asked for any since.
            entry.refusing = Some(now);
        }
        let stalled = entry.refusing.map_or(Nanos::NEVER, |since| since + PATIENCE);
        let impatient = if entry.waiters.contains(UPLINK) { self.fabric.patience.deadline() } else { Nanos::NEVER };
        room.min(stalled).min(impatient)
    }

    /// Has the uplink go on if it waits for a port, and of the guests that do the one whose turn it is. False if there is
    /// none.
    fn call(&mut self, on: PortId, now: Nanos) -> bool {
        let Some(entry) = self.fabric.entry(on) else { return false };
        let uplink_waits = entry.waiters.remove(UPLINK);
        let waited = entry.refusing.map_or(Nanos(0), |since| now.since(since));
        let called = entry.waiters.call(on, waited);
        if uplink_waits && let Some(uplink) = self.fabric.entry(UPLINK) {
            uplink.turn = Turn::Idle;
            self.fabric.patience.end(now);
        }
        let Some((port, ticket)) = called else { return false };
        if let Some(entry) = self.fabric.entry(port) {
            (entry.turn, entry.ticket) = (Turn::Active, Some(ticket));
            self.scheduler.activate(port, now);
        }
        true
    }

    /// Asks some of the idle ports whether frames came.
    fn look_for_frames(&mut self, now: Nanos) {
        for _ in 0..POLLS.min(self.idle.len()) {
            if self.cursor >= self.idle.len() {
                self.cursor = 0;
            }
            let Some(&port) = self.idle.get(self.cursor) else { break };
            let Some(entry) = self.fabric.entry(port) else { continue };
            if entry.has_frames(now) {
                entry.turn = Turn::Active;
                entry.since = now;
                self.idle.swap_remove(self.cursor);
                self.scheduler.activate(port, now);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Publishes what the round did, once a port. Answers when ports that hold a notification back want to be asked again.
    fn flush(&mut self, now: Nanos) -> Nanos {
        let Fabric { entries, touched, .. } = &mut self.fabric;
        let mut next = Nanos::NEVER;
        touched.retain(|port| {
            let Some(entry) = &mut entries[port.index()] else { return false };
            let again = entry.port.flush(now);
            next = next.min(again);
            entry.touched = again != Nanos::NEVER;
            entry.touched
        });
        next
    }

    /// Works out who got which part of the link, once a second.
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
            entry.part = if total > 0 { (counts(entry) - entry.marked) as f64 / total as f64 } else { 0.0 };
            entry.marked = counts(entry);
        }
    }

    /// State of the uplink and of all vifs.
    pub fn snapshot(&mut self, now: Nanos) -> (Option<PortState>, Vec<VifState>) {
        self.mark(now);
        let state = |entry: &PortEntry| PortState::new(entry.port.status(), &entry.counters, entry.port.lost());
        let entries = &self.fabric.entries;
        let name = |port: PortId| entries[port.index()].as_ref().map(|entry| entry.name.clone());
        let vifs =
            entries.iter().skip(1).flatten().map(|entry| (entry, entry.granted())).map(|(entry, share)| VifState {
                name: entry.name.clone(),
                link: self.name.clone(),
                weight: share.weight,
                min_rate: share.min_rate,
                max_rate: share.max_rate,
                burst: share.burst,
                share: entry.part,
                waits_for: if let Turn::Parked(on) = entry.turn { name(on) } else { None },
                waiting: entry.waiting.clone(),
                early_ack: entry.early.as_ref().map(|early| EarlyState::new(early.seen(now))),
                port: state(entry),
            });
        (entries[UPLINK.index()].as_deref().map(state), vifs.collect())
    }

    /// Handles a ready descriptor of a port. What a message of its peer takes is the port's: it is charged with the next service, and
    /// who sends too many is heard later. `now` is later then by as much, so that it is nobody else's time.
    pub fn event(&mut self, port: PortId, number: u32, poller: &Poller, now: &mut Nanos, clock: &impl Clock) {
        let Some(entry) = self.fabric.entry(port) else { return };
        if !entry.port.is_message(number) {
            return entry.port.event(number, poller, *now);
        }
        self.worked.take(*now, clock);
        entry.port.event(number, poller, *now);
        *now = clock.now();
        entry.messages.count(self.worked.take(*now, clock), *now);
        if entry.messages.again() > *now && !self.unheard.contains(&port) {
            entry.port.hear(false);
            self.unheard.push(port);
        }
        self.heed_limit(port, *now);
    }

    /// Hears messages again that were left until now. Answers when the next are.
    fn hear_again(&mut self, now: Nanos) -> Nanos {
        let Bridge { fabric, unheard, .. } = self;
        let mut next = Nanos::NEVER;
        unheard.retain(|port| {
            let Some(entry) = fabric.entry(*port) else { return false };
            let again = entry.messages.again();
            if again <= now {
                entry.port.hear(true);
                return false;
            }
            next = next.min(again);
            true
        });
        next
    }

    /// Asks every port to wake the worker for what it waits for. True if something is there already.
    pub fn enable_notifications(&mut self) -> bool {
        let mut ready = false;
        for (index, entry) in self.fabric.entries.iter_mut().enumerate() {
            let Some(entry) = entry else { continue };
            let awaited = !entry.waiters.is_empty() || (index == UPLINK.index() && !self.held.is_empty());
            let idle = entry.turn == Turn::Idle;
            ready |= entry.port.enable_notifications(Wanted { frames: idle, room: awaited })
                || (idle && entry.sends_for_guest());
        }
        ready
    }

    /// Tells every port that the worker looks by itself again.
    pub fn disable_notifications(&mut self) {
        for entry in self.fabric.entries.iter_mut().flatten() {
            entry.port.disable_notifications();
        }
    }

    /// When a port will do something by itself.
    pub fn next_event(&self) -> Nanos {
        self.fabric.entries.iter().flatten().map(|entry| entry.port.next_event()).min().unwrap_or(Nanos::NEVER)
    }
}
