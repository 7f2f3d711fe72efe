//! The one way for a frame: from the ring of the port whose turn it is, through the switch, into another port.
//!
//! A [`Bridge`] is one link: its switch, its scheduler and its ports. [`Bridge::round`] is the datapath. It reads no clock
//! of its own, holds no frame (what has no room yet stays in its sender's ring), and per frame neither allocates, locks nor
//! calls the system.

use crate::clock::Clock;
use crate::forward::{Fabric, PATIENCE, Patience, Sending, UPLINK, bytes};
use crate::slot::{Attached, Slot, Turn};
use crate::snapshot::{PortState, VifState};
use fairlane_core::PortId;
use fairlane_core::sched::{After, Cost, Grant, Next, Scheduler, Share};
use fairlane_core::stats::Counters;
use fairlane_core::switch::{Config, Pins, Switch, Taken};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::capture::{Captured, Report};
use fairlane_port::{BURST, Burst, Port, Room, Status, Wanted};
use std::fs::File;

/// Scheduler decisions of one round at most; ports are flushed after that many.
const SERVICES: usize = 8;

/// Idle ports that are asked in one round whether frames wait.
const POLLS: usize = 64;

/// What one round did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Frames taken from ports, whatever became of them.
    pub frames: u64,
    /// When there is something to do without any port's doing: a rate lets a port go on, a bounded wait ends.
    pub next: Nanos,
}

/// One link: a switch, a scheduler, and ports, of which number 0 is the uplink.
pub struct Bridge {
    name: String,
    pub(crate) fabric: Fabric,
    pub(crate) scheduler: Box<dyn Scheduler>,
    /// Guests' ports whose ring was empty, in no order, and the one to ask next.
    idle: Vec<PortId>,
    cursor: usize,
    /// Ports that others wait for.
    contended: Vec<PortId>,
    /// When parts of the link were last worked out.
    marked: Nanos,
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
                slots: vec![None],
                touched: Vec::new(),
                patience: Patience::default(),
            },
            scheduler,
            idle: Vec::new(),
            cursor: 0,
            contended: Vec::new(),
            marked: Nanos(0),
        }
    }

    /// Moves frames: at most one burst from the uplink and one scheduled service, [`SERVICES`] times. `burst` is scratch.
    pub fn round(&mut self, burst: &mut Burst, clock: &impl Clock) -> Round {
        let mut now = clock.now();
        let mut round = Round { frames: 0, next: self.release(now) };
        self.look_for_frames(now);
        self.mark(now);
        let mut uplink = true;
        for _ in 0..SERVICES {
            if uplink {
                let frames = self.serve_uplink(burst, now);
                uplink = frames > 0;
                round.frames += frames;
                if uplink {
                    now = clock.now();
                }
            }
            match self.scheduler.next(now) {
                Next::Serve(port, grant) => {
                    let (mut cost, left) = self.serve(burst, port, grant, now);
                    let end = clock.now();
                    cost.nanos = end.since(now).0;
                    round.frames += cost.frames;
                    self.settle(port, cost, left, end);
                    now = end;
                }
                Next::WaitUntil(time) if !uplink => {
                    round.next = round.next.min(time);
                    break;
                }
                Next::Idle if !uplink => break,
                Next::WaitUntil(_) | Next::Idle => {}
            }
        }
        self.flush(now);
        round
    }

    /// Frames from the uplink are not scheduled: whoever sends them decides.
    fn serve_uplink(&mut self, burst: &mut Burst, now: Nanos) -> u64 {
        match &self.fabric.slots[UPLINK.index()] {
            Some(slot) if !matches!(slot.turn, Turn::Parked(_)) => {}
            _ => return 0,
        }
        let (cost, left) = self.serve(burst, UPLINK, Grant { bytes: u64::MAX, frames: BURST as u32 }, now);
        if let Left::Waits(on) = left {
            self.park(UPLINK, on);
        }
        cost.frames
    }

    /// Takes frames from a port, up to the grant, and gives them to whom they are for.
    fn serve(&mut self, burst: &mut Burst, from: PortId, mut grant: Grant, now: Nanos) -> (Cost, Left) {
        let mut cost = Cost::default();
        let Some(mut sender) = self.fabric.slots[from.index()].take() else { return (cost, Left::Nothing) };
        let left = loop {
            let batch = sender.port.offer(burst, grant, now);
            if batch.is_empty() {
                break Left::Nothing;
            }
            let drops = &mut sender.counters.drops;
            let mut sending = Sending { from, batch, now, done: 0, drops, uplink_bytes: 0 };
            let blocked = self.fabric.pass(&mut sending);
            let Sending { done, uplink_bytes, .. } = sending;
            let bytes = bytes(&batch, 0..done);
            sender.port.consume(done);
            cost.bytes += bytes;
            cost.uplink_bytes += uplink_bytes;
            cost.frames += done as u64;
            if let Some(on) = blocked {
                break Left::Waits(on);
            }
            grant.bytes = grant.bytes.saturating_sub(bytes);
            grant.frames = grant.frames.saturating_sub(done as u32);
            if grant.bytes == 0 || grant.frames == 0 {
                break if sender.port.waiting(now) { Left::Some } else { Left::Nothing };
            }
        };
        if cost.frames > 0 {
            sender.counters.sent_frames += cost.frames;
            sender.counters.sent_bytes += cost.bytes;
            sender.uplink_bytes += cost.uplink_bytes;
            sender.touch(from, &mut self.fabric.touched);
            if from != UPLINK {
                sender.waiting.record(now.since(sender.since));
            }
        }
        self.fabric.slots[from.index()] = Some(sender);
        (cost, left)
    }

    /// Tells the scheduler what a service took, and where the port stands now.
    fn settle(&mut self, port: PortId, cost: Cost, left: Left, now: Nanos) {
        let after = match left {
            Left::Some => After::Backlogged,
            Left::Nothing => After::Empty,
            Left::Waits(_) => After::Blocked,
        };
        self.scheduler.charge(port, cost, after, now);
        let Some(slot) = self.fabric.slot(port) else { return };
        if cost.frames > 0 {
            slot.since = now;
        }
        match left {
            Left::Some => {}
            Left::Nothing => {
                slot.turn = Turn::Idle;
                self.idle.push(port);
            }
            Left::Waits(on) => self.park(port, on),
        }
    }

    /// Leaves a port waiting for room in another.
    fn park(&mut self, port: PortId, on: PortId) {
        if let Some(slot) = self.fabric.slot(port) {
            slot.turn = Turn::Parked(on);
        }
        if let Some(slot) = self.fabric.slot(on) {
            if slot.waiters.is_empty() {
                self.contended.push(on);
            }
            slot.waiters.push(port);
        }
    }

    /// Lets go on who waited for room that is there now, or has waited long enough. Returns when to ask again.
    fn release(&mut self, now: Nanos) -> Nanos {
        let mut next = Nanos::NEVER;
        let mut index = 0;
        while let Some(&on) = self.contended.get(index) {
            let opening = self.opening(on, now);
            if opening > now {
                next = next.min(opening);
                index += 1;
            } else {
                self.contended.swap_remove(index);
                self.wake(on, now);
            }
        }
        next
    }

    /// When those who wait for a port should try again: at once if it has room or is gone.
    fn opening(&mut self, on: PortId, now: Nanos) -> Nanos {
        let Some(slot) = self.fabric.slot(on) else { return now };
        let room = match slot.port.room(now) {
            Room::Now => {
                slot.refusing = None;
                return now;
            }
            Room::At(time) => time,
            Room::Unknown if slot.port.status() != Status::Up => return now,
            Room::Unknown => Nanos::NEVER,
        };
        if on == UPLINK {
            return room;
        }
        let stalled = slot.refusing.map_or(Nanos::NEVER, |since| since + PATIENCE);
        let impatient = if slot.waiters.contains(&UPLINK) { self.fabric.patience.deadline() } else { Nanos::NEVER };
        room.min(stalled).min(impatient)
    }

    /// Activates all who wait for a port.
    fn wake(&mut self, on: PortId, now: Nanos) {
        let Some(slot) = self.fabric.slot(on) else { return };
        let mut waiters = std::mem::take(&mut slot.waiters);
        for port in waiters.drain(..) {
            if let Some(waiter) = self.fabric.slot(port) {
                waiter.turn = if port == UPLINK { Turn::Idle } else { Turn::Active };
            }
            if port == UPLINK {
                self.fabric.patience.end(now);
            } else {
                self.scheduler.activate(port, now);
            }
        }
        if let Some(slot) = self.fabric.slot(on) {
            slot.waiters = waiters;
        }
    }

    /// Asks some of the idle ports whether frames came.
    fn look_for_frames(&mut self, now: Nanos) {
        for _ in 0..POLLS.min(self.idle.len()) {
            if self.cursor >= self.idle.len() {
                self.cursor = 0;
            }
            let Some(&port) = self.idle.get(self.cursor) else { break };
            let Some(slot) = self.fabric.slot(port) else { continue };
            if slot.port.waiting(now) {
                slot.turn = Turn::Active;
                slot.since = now;
                self.idle.swap_remove(self.cursor);
                self.scheduler.activate(port, now);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Publishes what the round did, once a port.
    fn flush(&mut self, now: Nanos) {
        let Fabric { slots, touched, .. } = &mut self.fabric;
        for port in touched.drain(..) {
            if let Some(slot) = &mut slots[port.index()] {
                slot.touched = false;
                slot.port.flush(now);
            }
        }
    }

    /// Works out who got which part of the link, once a second.
    fn mark(&mut self, now: Nanos) {
        if now.since(self.marked).0 < SECOND {
            return;
        }
        self.marked = now;
        let uplink = self.fabric.slot(UPLINK).is_some();
        let counts = |slot: &Slot| if uplink { slot.uplink_bytes } else { slot.counters.sent_bytes };
        let vifs = self.fabric.slots.iter_mut().skip(1).flatten();
        let total: u64 = vifs.map(|slot| counts(slot) - slot.marked).sum();
        for slot in self.fabric.slots.iter_mut().skip(1).flatten() {
            slot.part = if total > 0 { (counts(slot) - slot.marked) as f64 / total as f64 } else { 0.0 };
            slot.marked = counts(slot);
        }
    }

    /// State of the uplink and of all vifs.
    pub fn snapshot(&mut self, now: Nanos) -> (Option<PortState>, Vec<VifState>) {
        self.mark(now);
        let state = |slot: &Slot| PortState::new(slot.port.status(), &slot.counters);
        let slots = &self.fabric.slots;
        let name = |port: PortId| slots[port.index()].as_ref().map(|slot| slot.name.clone());
        let vifs = slots.iter().skip(1).flatten().map(|slot| VifState {
            name: slot.name.clone(),
            link: self.name.clone(),
            weight: slot.share.weight,
            min_rate: slot.share.min_rate,
            max_rate: slot.share.max_rate,
            burst: slot.share.burst,
            share: slot.part,
            waits_for: if let Turn::Parked(on) = slot.turn { name(on) } else { None },
            waiting: slot.waiting.clone(),
            port: state(slot),
        });
        (slots[UPLINK.index()].as_deref().map(state), vifs.collect())
    }

    /// Asks every port to wake the worker for what it waits for. True if something is there already.
    pub fn arm(&mut self) -> bool {
        let mut ready = false;
        for slot in self.fabric.slots.iter_mut().flatten() {
            let wanted = Wanted { frames: slot.turn == Turn::Idle, room: !slot.waiters.is_empty() };
            ready |= slot.port.arm(wanted);
        }
        ready
    }

    /// Tells every port that the worker looks by itself again.
    pub fn disarm(&mut self) {
        for slot in self.fabric.slots.iter_mut().flatten() {
            slot.port.disarm();
        }
    }

    /// When a port will do something by itself.
    pub fn next_event(&self) -> Nanos {
        self.fabric.slots.iter().flatten().map(|slot| slot.port.next_event()).min().unwrap_or(Nanos::NEVER)
    }

    /// Attaches the uplink, in place of the one that was there.
    pub fn set_uplink(&mut self, port: Box<dyn Port>) {
        let share = Share { weight: 1, min_rate: 0, max_rate: None, burst: 0 };
        self.fabric.switch.attach_uplink(UPLINK);
        self.fabric.slots[UPLINK.index()] = Some(Box::new(Slot::new("uplink".to_owned(), port, share)));
    }

    /// Attaches a guest's port under the lowest free number.
    ///
    /// # Errors
    /// Its MAC address is pinned to another port; then nothing changed.
    pub fn add(
        &mut self,
        name: &str,
        port: Box<dyn Port>,
        share: Share,
        pins: Pins,
        now: Nanos,
    ) -> Result<PortId, Taken> {
        let guests = &self.fabric.slots[1..];
        let index = guests.iter().position(Option::is_none).unwrap_or(guests.len()) + 1;
        let id = PortId(index as u32);
        self.fabric.switch.attach(id, pins)?;
        if index == self.fabric.slots.len() {
            self.fabric.slots.push(None);
        }
        self.fabric.slots[index] = Some(Box::new(Slot::new(name.to_owned(), port, share)));
        self.scheduler.configure(id, share, now);
        self.idle.push(id);
        Ok(id)
    }

    /// Takes a guest's port off and closes it. What waits in its ring stays there; whoever waited for it goes on.
    /// None if it is not there.
    pub fn remove(&mut self, port: PortId, now: Nanos) -> Option<()> {
        if port == UPLINK {
            return None;
        }
        self.wake(port, now);
        let slot = self.fabric.slots.get_mut(port.index())?.take()?;
        if let Turn::Parked(on) = slot.turn
            && let Some(on) = self.fabric.slot(on)
        {
            on.waiters.retain(|waiter| *waiter != port);
        }
        self.idle.retain(|idle| *idle != port);
        self.contended.retain(|on| *on != port);
        self.fabric.touched.retain(|touched| *touched != port);
        self.fabric.switch.detach(port);
        self.scheduler.remove(port);
        Some(())
    }

    /// The number of a guest's port, by name.
    pub fn find(&self, name: &str) -> Option<PortId> {
        let named = |slot: &Option<Box<Slot>>| slot.as_ref().is_some_and(|slot| slot.name == name);
        let index = self.fabric.slots[1..].iter().position(named)?;
        Some(PortId(index as u32 + 1))
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of all ports.
    pub fn ports(&self) -> Vec<PortId> {
        let slots = self.fabric.slots.iter().enumerate();
        slots.filter(|(_, slot)| slot.is_some()).map(|(index, _)| PortId(index as u32)).collect()
    }

    /// What passed through a port.
    pub fn counters(&self, port: PortId) -> Option<Counters> {
        Some(self.fabric.slots.get(port.index())?.as_ref()?.counters)
    }

    /// A port, to talk to about other things than frames.
    pub fn port(&mut self, port: PortId) -> Option<&mut dyn Port> {
        Some(&mut *self.fabric.slot(port)?.port)
    }

    /// Starts to write a port's frames into an empty file, of each at most `snap` bytes. False if that is done already.
    pub fn start_capture(&mut self, port: PortId, file: File, snap: u32) -> bool {
        let Some(slot) = self.fabric.slots.get_mut(port.index()) else { return false };
        let Some(mut taken) = slot.take() else { return false };
        let started = matches!(taken.port, Attached::Plain(_));
        taken.port = match taken.port {
            Attached::Plain(port) => Attached::Captured(Box::new(Captured::start(port, file, snap))),
            captured => captured,
        };
        *slot = Some(taken);
        started
    }

    /// Ends a capture; none if there was none.
    pub fn stop_capture(&mut self, port: PortId) -> Option<Report> {
        let slot = self.fabric.slots.get_mut(port.index())?;
        let mut taken = slot.take()?;
        let (port, report) = match taken.port {
            Attached::Captured(captured) => {
                let (port, report) = captured.stop();
                (port, Some(report))
            }
            Attached::Plain(port) => (port, None),
        };
        taken.port = Attached::Plain(port);
        *slot = Some(taken);
        report
    }

    /// Changes what a port is granted, from the next decision on.
    pub fn set_share(&mut self, port: PortId, share: Share, now: Nanos) {
        if let Some(slot) = self.fabric.slot(port) {
            slot.share = share;
            self.scheduler.configure(port, share, now);
        }
    }

    /// Changes the source addresses a port may use, from the next frame on.
    ///
    /// # Errors
    /// The MAC address is pinned to another port; then nothing changed.
    pub fn set_pins(&mut self, port: PortId, pins: Pins) -> Result<(), Taken> {
        let known = port != UPLINK && self.fabric.slot(port).is_some();
        if known { self.fabric.switch.attach(port, pins) } else { Ok(()) }
    }

    /// Changes whether guests reach the uplink only, from the next frame on.
    pub fn set_isolate(&mut self, isolate: bool) {
        self.fabric.switch.isolate(isolate);
    }

    /// Changes the rate of the uplink, if it has one.
    pub fn set_rate(&mut self, rate: Option<u64>, now: Nanos) {
        if let Some(slot) = self.fabric.slot(UPLINK) {
            slot.port.set_rate(rate, now);
        }
    }

    /// Replaces the scheduler. Ports keep their frames, their shares and what they wait for.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>, now: Nanos) {
        self.scheduler = scheduler;
        for (index, slot) in self.fabric.slots.iter().enumerate().skip(1) {
            let Some(slot) = slot else { continue };
            let port = PortId(index as u32);
            self.scheduler.configure(port, slot.share, now);
            if slot.turn == Turn::Active {
                self.scheduler.activate(port, now);
            }
        }
    }
}
