//! A running simulation: events in the order of their times.

mod changes;
mod division;
mod fabric;
mod streams;

use crate::Error;
use crate::card::{Marks, Rings, Shared};
use crate::events::Events;
use crate::flow::{Flow, Tally};
use crate::frame::{Content, Frame, Kind, SHORTEST};
use crate::host::Host;
use crate::outcome::Outcome;
use crate::scenario::{Cpu, Place, Scenario, Source, Work};
use crate::uplink::Line;
use division::Division;
use fairlane_core::PortId;
use fairlane_core::packet::Mac;
use fairlane_core::time::Nanos;
use fairlane_port::{Burst, Poller};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{HashSet, VecDeque};
use std::path::Path;
use tempfile::TempDir;

/// Frames that wait in a guest in front of its card, as Linux has it (`txqueuelen`).
const GUEST_QUEUE: usize = 1000;

/// Rate of a line that has none, in bits a second.
const UNLIMITED: u64 = 1 << 50;

#[derive(Clone, Copy)]
enum What {
    /// Counts begin.
    Settle,
    /// A host's policy changes.
    Change(u32),
    /// A worker runs.
    Host(u32),
    /// A flow's source has something to do.
    Source(u32),
    /// A guest looks at its card.
    Guest(u32),
    /// A frame enters the fabric; by its slot.
    Enter(u32),
    /// A frame comes to the queue in front of a host.
    Reach(u32),
    /// A frame arrives outside.
    Arrive(u32),
    /// A stream may have to send again.
    Timeout(u32),
    /// A host claims parts of tenants' guarantees.
    Claim(u32),
    /// Hosts divide tenants' guarantees by what they have heard.
    Divide,
    /// A second of tenants' guarantees is over.
    Second,
}

/// A guest.
pub(crate) struct Guest {
    pub rings: Shared<Rings>,
    host: usize,
    port: PortId,
    /// When it runs.
    cpu: Cpu,
    /// Frames in front of the card.
    pub queue: VecDeque<Frame>,
    /// Flows that send as much as they may, and whose turn it is.
    greedy: Vec<u32>,
    turn: usize,
    /// When it looks at its card next.
    due: Nanos,
    /// Until when it works on frames.
    busy: Nanos,
}

impl Guest {
    /// It works on frames of these lengths, after what it works on already.
    fn works(&mut self, work: Work, now: Nanos, frames: impl Iterator<Item = u32>) {
        self.busy = self.cpu.has_run(Nanos(work.on(frames) as u64), self.busy.max(now));
    }
}

/// A round of an incast: when it began, and how many of its flows are not done.
#[derive(Clone)]
struct Round {
    start: Nanos,
    left: usize,
}

/// A running simulation.
pub(crate) struct World<'a> {
    pub scenario: &'a Scenario,
    now: Nanos,
    end: Nanos,
    events: Events<What>,
    /// Number of events so far.
    added: u64,
    pub hosts: Vec<Host>,
    pub guests: Vec<Guest>,
    pub flows: Vec<Flow>,
    pub tallies: Vec<Tally>,
    /// The present round of each traffic that is an incast.
    rounds: Vec<Option<Round>>,
    core: Option<Line>,
    ingress: Vec<Line>,
    /// Frames between two events.
    slots: Vec<Option<Frame>>,
    free: Vec<u32>,
    /// Whether frames take different times to the queues in front of hosts.
    is_uneven: bool,
    random: StdRng,
    pub division: Division,
    /// Changes that were refused.
    pub refused: Vec<String>,
    burst: Box<Burst>,
    poller: Poller,
    taken: Vec<Frame>,
    /// Files of early ack, if there is some, which nothing of this host uses.
    _files: Option<TempDir>,
}

/// The address of a place.
fn mac_of(macs: &[Mac], place: Place) -> Mac {
    match place {
        Place::Outside => Mac([0x06, 0, 0, 0, 0, 1]),
        Place::Guest(guest) => macs[guest],
    }
}

/// The address of a guest whose policy pins none.
fn mac_of_guest(guest: usize) -> Mac {
    let [a, b, c, d] = (guest as u32).to_be_bytes();
    Mac([0x02, 0, a, b, c, d])
}

impl<'a> World<'a> {
    /// The start of a scenario.
    ///
    /// # Errors
    /// Its policies cannot be opened, or the system has no more descriptors.
    pub(crate) fn new(scenario: &'a Scenario) -> Result<World<'a>, Error> {
        let files = scenario.has_early_ack().then(tempfile::tempdir).transpose()?;
        let mut hosts = Vec::new();
        let mut guests = Vec::new();
        let mut macs = Vec::new();
        for (index, host) in scenario.hosts.iter().enumerate() {
            let mut host = host.clone();
            // Without early ack, a path that cannot be.
            let directory = files.as_ref().map_or(Path::new("/dev/null"), TempDir::path);
            host.policy.control = directory.join(index.to_string());
            let first = guests.len();
            let marks = Marks::new(host.policy.vifs.len());
            for (port, vif) in host.policy.vifs.iter_mut().filter(|vif| vif.link == host.link.name).enumerate() {
                // Frames of the simulation are no IP packets. A pinned address saves the switch's memory for learned ones.
                vif.addresses.clear();
                vif.mac.get_or_insert_with(|| mac_of_guest(first + port));
                macs.extend(vif.mac);
                let plan = &scenario.guests[first + port];
                guests.push(Guest {
                    rings: Shared::new(Rings::new(plan.ring, marks.clone(), port)),
                    host: index,
                    port: PortId(port as u32 + 1),
                    cpu: plan.cpu.clone(),
                    queue: VecDeque::new(),
                    greedy: Vec::new(),
                    turn: 0,
                    due: Nanos::NEVER,
                    busy: Nanos(0),
                });
            }
            let rings: Vec<_> = guests[first..].iter().map(|guest| guest.rings.clone()).collect();
            hosts.push(Host::open(&host, &rings, &marks, first as u32)?);
        }
        let intervals = (scenario.end().0 / scenario.interval.0.max(1)) as usize + 1;
        let fabric = &scenario.fabric;
        let mut world = World {
            scenario,
            now: Nanos(0),
            end: scenario.end(),
            events: Events::new(),
            added: 0,
            ingress: scenario.hosts.iter().map(|host| Line::new(host.card, fabric.buffer)).collect(),
            hosts,
            guests,
            flows: Vec::new(),
            tallies: scenario.traffic.iter().map(|_| Tally::new(intervals)).collect(),
            rounds: vec![None; scenario.traffic.len()],
            core: fabric.capacity.map(|rate| Line::new(rate.min(UNLIMITED), fabric.buffer)),
            slots: Vec::new(),
            free: Vec::new(),
            is_uneven: scenario.traffic.iter().any(|traffic| traffic.rtt.0 > 0),
            random: StdRng::seed_from_u64(scenario.seed),
            division: Division::new(scenario),
            refused: Vec::new(),
            burst: Burst::new(),
            poller: Poller::new()?,
            taken: Vec::new(),
            _files: files,
        };
        for (index, traffic) in scenario.traffic.iter().enumerate() {
            for (from, to) in &traffic.flows {
                let macs = (mac_of(&macs, *from), mac_of(&macs, *to));
                let mut flow = Flow::new(world.flows.len() as u32, index, traffic, (*from, *to), macs);
                flow.spread(traffic, &mut world.random);
                world.flows.push(flow);
            }
        }
        world.announce();
        world.begin();
        Ok(world)
    }

    /// Lets every switch know the addresses beyond its uplink that its guests exchange frames with, as ARP does.
    fn announce(&mut self) {
        let mut known = HashSet::new();
        for id in 0..self.flows.len() {
            let Flow { from, to, macs, .. } = self.flows[id];
            for (here, there, macs) in [(from, to, (macs.1, macs.0)), (to, from, macs)] {
                let Place::Guest(guest) = here else { continue };
                let host = self.guests[guest].host;
                let is_here = matches!(there, Place::Guest(other) if self.guests[other].host == host);
                if !is_here && known.insert((host, macs.0)) {
                    let content = Content { kind: Kind::Hello, flow: id as u32, number: 0, answers: 0, sent: Nanos(0) };
                    let traffic = self.flows[id].traffic;
                    self.tallies[traffic].made += 1;
                    self.reach(Frame::new(macs, content, SHORTEST), guest, Nanos(0));
                }
            }
        }
    }

    fn begin(&mut self) {
        for host in 0..self.hosts.len() {
            self.at(Nanos(0), What::Host(host as u32));
        }
        for flow in 0..self.flows.len() {
            let due = self.flows[flow].due();
            self.at(due, What::Source(flow as u32));
        }
        self.at(self.scenario.settle, What::Settle);
        self.begin_to_change();
        self.begin_to_divide();
    }

    /// Runs it to its end.
    pub(crate) fn run(mut self) -> Outcome {
        let mut baseline = None;
        while let Some((time, what)) = self.events.take() {
            self.now = time;
            match what {
                What::Settle => baseline = Some(Outcome::baseline(&mut self)),
                What::Change(number) => self.change(&self.scenario.changes[number as usize]),
                What::Host(host) => self.host(host as usize),
                What::Source(flow) => self.source(flow),
                What::Guest(guest) => self.guest(guest as usize),
                What::Enter(slot) => {
                    let frame = self.take(slot);
                    self.enter(frame);
                }
                What::Reach(slot) => {
                    let frame = self.take(slot);
                    if let Place::Guest(guest) = self.heading(&frame) {
                        self.reach(frame, guest, time);
                    }
                }
                What::Arrive(slot) => {
                    let frame = self.take(slot);
                    self.deliver(frame, Place::Outside);
                }
                What::Timeout(flow) => self.timeout(flow),
                What::Claim(host) => self.claim(host as usize),
                What::Divide => self.divide(),
                What::Second => self.end_second(),
            }
        }
        Outcome::of(self, baseline.unwrap_or_default())
    }

    fn at(&mut self, time: Nanos, what: What) {
        if time <= self.end {
            self.added += 1;
            self.events.add(time, what);
        }
    }

    /// Number of events.
    pub(crate) fn events(&self) -> u64 {
        self.added
    }

    /// Number of frames between two events.
    pub(crate) fn in_flight(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64
    }

    fn keep(&mut self, frame: Frame) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(frame);
                slot
            }
            None => {
                self.slots.push(Some(frame));
                self.slots.len() as u32 - 1
            }
        }
    }

    fn take(&mut self, slot: u32) -> Frame {
        self.free.push(slot);
        self.slots[slot as usize].take().expect("a slot is taken once")
    }

    /// Where a frame goes.
    fn heading(&self, frame: &Frame) -> Place {
        let content = frame.content();
        let flow = &self.flows[content.flow as usize];
        if content.kind.is_back() { flow.from } else { flow.to }
    }

    /// A worker runs one round.
    fn host(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if host.wake != self.now {
            return;
        }
        host.run(&mut self.burst, &self.poller);
        let (wake, done) = (host.wake, host.now());
        let told = std::mem::take(&mut *host.told.lock());
        let left = std::mem::take(&mut host.wire.lock().left);
        self.at(wake, What::Host(index as u32));
        for guest in &told {
            self.notify(*guest as usize, done);
        }
        for (at, frame) in &left {
            self.leave(index, frame, *at);
        }
        // Their memory is used again.
        *self.hosts[index].told.lock() = cleared(told);
        self.hosts[index].wire.lock().left = cleared(left);
    }

    /// A guest's card has something for it. A guest that works looks again when it is done (NAPI), without being told.
    fn notify(&mut self, guest: usize, now: Nanos) {
        let Guest { cpu, busy, .. } = &self.guests[guest];
        let due = cpu.runs_at(if *busy > now { *busy } else { now + self.scenario.guests[guest].wake });
        if due < self.guests[guest].due {
            self.guests[guest].due = due;
            self.at(due, What::Guest(guest as u32));
        }
    }

    /// A guest takes what it received, and sends.
    fn guest(&mut self, index: usize) {
        let guest = &mut self.guests[index];
        if guest.due != self.now {
            return;
        }
        guest.due = Nanos::NEVER;
        let (host, port) = (guest.host, guest.port);
        let mut frames = std::mem::take(&mut self.taken);
        if guest.rings.lock().receive(&mut frames) {
            self.kick(host, port);
        }
        let work = self.scenario.guests[index].rx_work;
        self.guests[index].works(work, self.now, frames.iter().map(|frame| frame.len));
        for frame in frames.drain(..) {
            self.deliver(frame, Place::Guest(index));
        }
        self.taken = frames;
        self.refill(index);
    }

    fn kick(&mut self, host: usize, port: PortId) {
        if let Some(wake) = self.hosts[host].kick(port, self.now) {
            self.at(wake, What::Host(host as u32));
        }
    }

    /// Fills a guest's ring, if the guest runs.
    fn refill(&mut self, index: usize) {
        let runs = self.guests[index].cpu.runs_at(self.now);
        if runs > self.now {
            return self.notify(index, runs);
        }
        let guest = &mut self.guests[index];
        if guest.busy > self.now && !guest.greedy.is_empty() {
            return self.notify(index, self.now);
        }
        let (host, port, rings) = (guest.host, guest.port, guest.rings.clone());
        let work = self.scenario.guests[index].work;
        let mut free = rings.lock().free();
        while free > 0 {
            let Some(frame) = self.guests[index].queue.pop_front().or_else(|| self.pull_of(index)) else { break };
            self.guests[index].works(work, self.now, [frame.len].into_iter());
            if rings.lock().send(frame) {
                self.kick(host, port);
            }
            free -= 1;
        }
        let guest = &self.guests[index];
        rings.lock().wants_slots = free == 0 && !(guest.queue.is_empty() && guest.greedy.is_empty());
    }

    /// A frame of one of the guest's flows that send as much as they may, in turn.
    fn pull_of(&mut self, index: usize) -> Option<Frame> {
        for _ in 0..self.guests[index].greedy.len() {
            let guest = &mut self.guests[index];
            guest.turn = (guest.turn + 1) % guest.greedy.len();
            let flow = guest.greedy[guest.turn];
            if let Some(frame) = self.pull(flow) {
                return Some(frame);
            }
        }
        None
    }

    fn pull(&mut self, id: u32) -> Option<Frame> {
        let flow = &mut self.flows[id as usize];
        let index = flow.traffic;
        let frame = flow.pull(&self.scenario.traffic[index], id, self.now)?;
        self.made(index, frame.content().kind != Kind::Open);
        self.arm(id);
        Some(frame)
    }

    fn made(&mut self, traffic: usize, is_data: bool) {
        let tally = &mut self.tallies[traffic];
        tally.made += 1;
        tally.settled.0 += u64::from(is_data && self.now >= self.scenario.settle);
    }

    /// A flow's source has something to do.
    fn source(&mut self, id: u32) {
        let index = self.flows[id as usize].traffic;
        let from = self.flows[id as usize].from;
        if let Place::Guest(guest) = from {
            let runs = self.guests[guest].cpu.runs_at(self.now);
            if runs > self.now {
                return self.at(runs, What::Source(id));
            }
        }
        let scenario = self.scenario;
        let traffic = &scenario.traffic[index];
        match traffic.source {
            Source::Flood | Source::Stream { .. } => self.enlist(id, from),
            Source::Transfer { bytes, anew, .. } => {
                self.begin_transfer(id, bytes, anew);
                self.enlist(id, from);
            }
            Source::Incast { bytes, interval, .. } => {
                self.start_round(id, index, (bytes, interval));
                self.enlist(id, from);
                // A round that began while the guest waited for its CPU is begun late.
                let due = self.flows[id as usize].due();
                if due < traffic.time.1 {
                    self.at(due.max(self.now), What::Source(id));
                }
            }
            _ => {
                while self.free_at(from) <= self.now
                    && let Some(frame) = self.flows[id as usize].make(traffic, id, self.now, &mut self.random)
                {
                    self.made(index, true);
                    self.transmit(frame, from);
                }
                let due = self.flows[id as usize].due().max(self.free_at(from));
                if due < traffic.time.1 {
                    self.at(due, What::Source(id));
                }
            }
        }
    }

    /// When a place is done with its work on frames.
    fn free_at(&self, place: Place) -> Nanos {
        match place {
            Place::Outside => self.now,
            Place::Guest(guest) => self.guests[guest].busy,
        }
    }

    /// A flow sends as much as it may from now on.
    fn enlist(&mut self, id: u32, from: Place) {
        if let Place::Guest(guest) = from
            && !self.guests[guest].greedy.contains(&id)
        {
            self.guests[guest].greedy.push(id);
        }
        self.pump(id);
    }

    /// Sends what a flow may send now.
    fn pump(&mut self, id: u32) {
        match self.flows[id as usize].from {
            Place::Guest(guest) => self.refill(guest),
            Place::Outside => {
                while let Some(frame) = self.pull(id) {
                    self.enter(frame);
                }
            }
        }
    }

    /// A place sends a frame.
    fn transmit(&mut self, frame: Frame, from: Place) {
        let Place::Guest(index) = from else { return self.enter(frame) };
        let work = self.scenario.guests[index].work;
        let guest = &mut self.guests[index];
        let mut rings = guest.rings.lock();
        if guest.queue.is_empty() && rings.free() > 0 {
            let is_asked = rings.send(frame);
            drop(rings);
            guest.works(work, self.now, [frame.len].into_iter());
            if is_asked {
                let (host, port) = (guest.host, guest.port);
                self.kick(host, port);
            }
        } else if guest.queue.len() < GUEST_QUEUE {
            rings.wants_slots = true;
            drop(rings);
            guest.queue.push_back(frame);
        } else {
            drop(rings);
            let traffic = self.flows[frame.content().flow as usize].traffic;
            self.tallies[traffic].refused_by_guest += 1;
        }
    }

    /// Counts a frame that arrived where it was sent to.
    fn count(&mut self, frame: &Frame, at: Nanos) {
        let content = frame.content();
        let flow = &mut self.flows[content.flow as usize];
        let tally = &mut self.tallies[flow.traffic];
        tally.arrived += 1;
        if !matches!(content.kind, Kind::Data | Kind::Last) {
            return;
        }
        if let Some(interval) = tally.intervals.get_mut((at.0 / self.scenario.interval.0.max(1)) as usize) {
            *interval += u64::from(frame.len);
        }
        if at >= self.scenario.settle {
            tally.settled.1 += 1;
            flow.arrived_bytes += u64::from(frame.len);
            // A wait longer than the histogram's range is not possible: it grows.
            let _ = tally.waits.record(at.since(content.sent).0);
        }
    }

    /// A frame arrives at a place.
    fn deliver(&mut self, frame: Frame, place: Place) {
        let content = frame.content();
        let flow = &self.flows[content.flow as usize];
        let (from, to, index) = (flow.from, flow.to, flow.traffic);
        // A copy that was flooded.
        let is_here = place == if content.kind.is_back() { from } else { to };
        match content.kind {
            Kind::Hello => self.tallies[index].arrived += 1,
            _ if !is_here => {}
            _ if flow.stream.is_some() => self.segment(&frame),
            Kind::Answer => {
                self.tallies[index].arrived += 1;
                self.answered(content, index);
            }
            _ => {
                let is_request = matches!(self.scenario.traffic[index].source, Source::Requests { .. });
                let answer = is_request.then(|| flow.answer(content, frame.len));
                self.count(&frame, self.now);
                if let Some(answer) = answer {
                    self.made(index, false);
                    self.transmit(answer, to);
                }
            }
        }
    }

    /// A request is answered.
    fn answered(&mut self, content: Content, index: usize) {
        let trip = self.now.since(content.sent);
        let tally = &mut self.tallies[index];
        if content.sent >= self.scenario.settle {
            let _ = tally.trips.record(trip.0);
        }
        if self.scenario.traffic[index].flows.len() == 1 {
            tally.answered.push((content.answers, trip));
        }
    }
}

/// An empty list with the memory of this one.
fn cleared<T>(mut list: Vec<T>) -> Vec<T> {
    list.clear();
    list
}
