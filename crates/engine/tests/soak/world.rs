//! All backends, guests and hosts, event by event in virtual time.

use crate::backend::{Backend, HOSTS, TENANTS, Virtual, name_of};
use crate::card::{self, Driver, Frame, Shared};
use crate::frame::Station;
use crate::guest::{Guest, Mood};
use crate::ledger::{Totals, UPLINK};
use crate::memory::Held;
use crate::scenario::{self, Action};
use crate::transfer::{self, Transfers};
use fairlane_core::ack::Mode;
use fairlane_core::receive;
use fairlane_core::sched::SchedulerKind;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_policy::{Card, Policy, Shares, Vif};
use fairlane_port::random::Random;
use std::collections::{BTreeMap, VecDeque};

/// Half of a round trip behind the uplink.
const OUTSIDE: Nanos = Nanos::from_millis(1);

/// How often hosts announce their addresses: more often than a switch forgets them.
const ANNOUNCE: Nanos = Nanos(100 * SECOND);

/// Number of actions that a failure reports.
const REMEMBERED: usize = 20;

pub(crate) enum Event {
    Action(usize),
    /// A guest runs.
    Turn(usize),
    /// A transfer's timer, by its port.
    Flow(u16),
    /// Frames return to a guest's backend.
    Arrive(usize, Vec<Frame>),
    Announce,
    Start(usize),
    Restore(usize),
    Contest(usize),
    Reconnect(usize),
    /// What disturbs a transfer to a guest in its present life.
    Strike(Station, usize, Action),
    Look,
}

pub(crate) struct World {
    pub clock: Virtual,
    pub random: Random,
    pub backends: Vec<Backend>,
    /// By port number; none at the uplink's.
    pub guests: Vec<Guest>,
    pub transfers: Transfers,
    events: BTreeMap<(Nanos, u64), Event>,
    tie: u64,
    pub steps: u64,
    /// Number of guests so far.
    lives: u32,
    pub actions: VecDeque<(Nanos, usize, Action)>,
    pub done: BTreeMap<&'static str, u64>,
    /// Resources without guests, at the start and last.
    empty: Option<Held>,
    pub held: Option<Held>,
}

impl World {
    /// Two backends with guests.
    pub(crate) fn new(seed: u64, vifs: usize) -> World {
        let clock = Virtual::default();
        clock.advance_to(Nanos(SECOND));
        let mut world = World {
            random: Random::new(seed),
            backends: vec![Backend::new(&clock), Backend::new(&clock)],
            guests: (0..=vifs).map(|place| Guest::new(0, place % 2)).collect(),
            clock,
            transfers: Transfers::default(),
            events: BTreeMap::new(),
            tie: 0,
            steps: 0,
            lives: 0,
            actions: VecDeque::new(),
            done: BTreeMap::new(),
            empty: None,
            held: None,
        };
        // Once, so that all tables have their final size.
        world.fill();
        world.empty();
        world
    }

    /// Advances the time, with all events in it.
    pub(crate) fn run(&mut self, span: Nanos) {
        let end = self.clock.look() + span;
        self.fill();
        for backend in 0..self.backends.len() {
            // At least one event, however short the time.
            self.perform(backend, Action::Contest);
            self.later(Nanos(0), Event::Action(backend));
        }
        self.later(ANNOUNCE, Event::Announce);
        self.later(Nanos(SECOND), Event::Look);
        while self.clock.look() < end {
            self.step();
        }
        self.empty();
    }

    pub(crate) fn later(&mut self, after: Nanos, event: Event) {
        self.tie += 1;
        self.events.insert((self.clock.look() + after, self.tie), event);
    }

    fn step(&mut self) {
        self.steps += 1;
        let next = self.events.first_key_value().map_or(Nanos::NEVER, |((time, _), _)| *time);
        let wake = self.backends.iter().map(Backend::turn).min();
        self.clock.advance_to(next.min(wake.expect("there are two")));
        let now = self.clock.look();
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let event = entry.remove();
            self.happens(event);
        }
        self.settle();
    }

    /// Every backend that runs does all there is to do now.
    pub(crate) fn settle(&mut self) {
        for at in 0..self.backends.len() {
            loop {
                let now = self.clock.look();
                let backend = &mut self.backends[at];
                if now < backend.held || !(backend.is_dirty || backend.wake <= now) {
                    break;
                }
                let mut fed = Vec::new();
                if !backend.settle(&mut fed) {
                    self.count("killed");
                    let outage = Nanos(self.random.below(2 * SECOND));
                    self.later(outage, Event::Start(at));
                }
                fed.sort_unstable();
                fed.dedup();
                for place in fed {
                    self.drain(at, place);
                }
                self.top_up(at);
            }
        }
    }

    /// Receives what was put at a port, if its guest runs.
    pub(crate) fn drain(&mut self, at: usize, place: usize) {
        if place == UPLINK {
            while !self.backends[at].jammed
                && let Some(frame) = { card::lock(&self.backends[at].uplink).receive() }
            {
                self.leaves(&frame);
            }
            // This makes room.
            self.backends[at].is_dirty = true;
            return;
        }
        let often = match self.guests[place].mood {
            Mood::Stalled => 0,
            Mood::Slow { .. } => 0,
            Mood::Calm | Mood::Dripping { .. } => usize::MAX,
        };
        self.take(place, often);
    }

    /// A guest receives frames.
    pub(crate) fn take(&mut self, place: usize, most: usize) {
        let now = self.clock.look();
        for _ in 0..most {
            let Some(frame) = ({ card::lock(&self.guests[place].ring).receive() }) else { break };
            self.backends[self.guests[place].at].is_dirty = true;
            let transfer = transfer::port(&frame, true).and_then(|port| self.transfers.under_way.get_mut(&port));
            if let Some(transfer) = transfer.filter(|transfer| transfer.place == place) {
                for answer in transfer.at_guest(&frame, now) {
                    card::lock(&self.guests[place].ring).send(answer);
                }
            }
        }
    }

    /// A frame leaves through an uplink.
    fn leaves(&mut self, frame: &Frame) {
        let now = self.clock.look();
        let Some(port) = transfer::port(frame, false) else { return };
        let Some(transfer) = self.transfers.under_way.get_mut(&port) else { return };
        let place = transfer.place;
        let frames = transfer.at_sender(frame, now);
        self.send_inward(place, frames);
    }

    fn send_inward(&mut self, place: usize, mut frames: Vec<Frame>) {
        // The network loses one in a hundred.
        frames.retain(|_| !self.random.chance(0.01));
        if !frames.is_empty() {
            self.later(Nanos(2 * OUTSIDE.0), Event::Arrive(place, frames));
        }
    }

    fn happens(&mut self, event: Event) {
        let now = self.clock.look();
        match event {
            Event::Action(at) => {
                let (action, pause) = scenario::next(&mut self.random);
                if self.actions.len() == REMEMBERED {
                    self.actions.pop_front();
                }
                if action != Action::Chat {
                    self.actions.push_back((now, at, action));
                }
                self.perform(at, action);
                self.later(pause, Event::Action(at));
            }
            Event::Turn(place) => self.turn(place),
            Event::Flow(port) => self.flow(port),
            Event::Arrive(place, frames) => {
                let at = self.guests[place].at;
                frames.into_iter().for_each(|frame| self.backends[at].arrives(frame));
            }
            Event::Announce => {
                self.backends.iter_mut().for_each(Backend::announce);
                self.later(ANNOUNCE, Event::Announce);
            }
            Event::Start(at) => self.start(at),
            Event::Restore(at) => self.restore(at),
            Event::Contest(at) => self.judge_contest(at),
            Event::Reconnect(place) => {
                let guest = &self.guests[place];
                card::lock(&guest.ring).resume();
                self.backends[guest.at].is_dirty = true;
            }
            Event::Strike(guest, place, action) => self.strike(guest, place, action),
            Event::Look => {
                self.backends.iter_mut().for_each(Backend::look);
                self.later(Nanos(10 * SECOND), Event::Look);
            }
        }
    }

    /// The uplink works again.
    fn restore(&mut self, at: usize) {
        let backend = &mut self.backends[at];
        card::lock(&backend.uplink).resume();
        backend.jammed = false;
        backend.ledger.excuse(self.clock.look());
        backend.is_dirty = true;
        self.drain(at, UPLINK);
    }

    pub(crate) fn start(&mut self, at: usize) {
        let guests = &self.guests;
        if !self.backends[at].runs() {
            self.backends[at].start(|place| (guests[place].ring.clone(), guests[place].station));
        }
    }

    /// What an unusual guest does.
    fn turn(&mut self, place: usize) {
        let now = self.clock.look();
        let guest = &mut self.guests[place];
        if now >= guest.until {
            guest.mood = Mood::Calm;
            card::lock(&guest.ring).posted = None;
            self.backends[guest.at].is_dirty = true;
            return self.take(place, usize::MAX);
        }
        match guest.mood {
            Mood::Slow { every } => {
                self.take(place, 1);
                self.later(every, Event::Turn(place));
            }
            Mood::Dripping { every, bytes } => {
                if let Some(posted) = &mut card::lock(&guest.ring).posted {
                    *posted += bytes;
                }
                self.backends[guest.at].is_dirty = true;
                self.later(every, Event::Turn(place));
            }
            Mood::Calm | Mood::Stalled => {}
        }
    }

    fn flow(&mut self, port: u16) {
        let now = self.clock.look();
        let Some(transfer) = self.transfers.under_way.get_mut(&port) else { return };
        let place = transfer.place;
        let guest = &self.guests[place];
        let runs = guest.runs();
        let backend = &self.backends[guest.at];
        let uplink = card::lock(&backend.uplink).driver == Driver::Runs && !backend.jammed;
        let is_free = runs && guest.mood == Mood::Calm && uplink && backend.runs() && backend.held <= now;
        let Some(next) = transfer.standing(runs, is_free, now) else { return self.transfers.end(port) };
        let frames = transfer.sender_turn(now);
        if runs {
            for answer in transfer.guest_turn(now) {
                card::lock(&guest.ring).send(answer);
                self.backends[guest.at].is_dirty = true;
            }
        }
        self.send_inward(place, frames);
        self.later(next.since(now), Event::Flow(port));
    }

    fn top_up(&mut self, at: usize) {
        let now = self.clock.look();
        if card::lock(&self.backends[at].uplink).driver != Driver::Runs {
            // Everything they send is dropped at once.
            return;
        }
        let Some(contest) = self.backends[at].contest.take() else { return };
        for member in &contest.members {
            let guest = &mut self.guests[member.place];
            if guest.at != at || !guest.is_idle() || card::lock(&guest.ring).unsent() >= card::SLOTS / 2 {
                continue;
            }
            while card::lock(&guest.ring).unsent() < card::SLOTS && guest.send(member.to.mac(), member.len, now) {}
            self.backends[at].is_dirty = true;
        }
        self.backends[at].contest = Some(contest);
    }

    /// Starts to count a contest again, or ends it.
    fn judge_contest(&mut self, at: usize) {
        let now = self.clock.look();
        let guests = &self.guests;
        let backend = &mut self.backends[at];
        let Some(mut contest) = backend.contest.take() else { return };
        if contest.members.iter().any(|member| guests[member.place].at != at || !guests[member.place].is_idle()) {
            return;
        }
        if !backend.runs() || backend.jammed || card::lock(&backend.uplink).driver != Driver::Runs {
            backend.ledger.excuse(now);
        }
        let link = backend.policy.links[0].clone();
        if contest.judge(&backend.ledger, &link, now) {
            self.count("contests judged");
        }
        if now < contest.end {
            self.backends[at].contest = Some(contest);
            self.later(Nanos(SECOND), Event::Contest(at));
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// A guest in a new life.
    pub(crate) fn born(&mut self, place: usize, at: usize) {
        self.lives += 1;
        self.guests[place] = Guest::new(self.lives, at);
    }

    /// A guest's vif in a policy.
    pub(crate) fn vif(&mut self, place: usize) -> Vif {
        let early_ack = match comes_with_early_ack(place) {
            true if self.random.chance(0.5) => Mode::Always,
            true => Mode::Auto,
            false => Mode::Off,
        };
        let weight = [10, 30, 100, 300][self.random.below(4) as usize];
        let knows_tenants = self.backends[self.guests[place].at].link().scheduler == SchedulerKind::Fair;
        let tenant = TENANTS.get(self.random.below(6) as usize).filter(|_| knows_tenants);
        let socket = format!("/soak/{place}").into();
        Vif {
            name: name_of(place),
            link: "lan".to_owned(),
            card: Card::VhostUser { socket, connect: false, access: Default::default(), packed: false },
            queues: 1,
            shares: Shares::of_weight(weight),
            rx_queue: receive::QUEUE,
            rx_timeout: receive::TIMEOUT,
            tenant: tenant.map(|(name, _)| (*name).to_owned()),
            mac: Some(self.guests[place].station.mac()),
            addresses: Vec::new(),
            early_ack,
        }
    }

    /// Changes the policy of a backend, with these guests of new vifs.
    pub(crate) fn advance(&mut self, at: usize, newer: Policy, new: &[usize]) {
        let cards: Vec<(String, Shared, Station)> = new
            .iter()
            .map(|place| (name_of(*place), self.guests[*place].ring.clone(), self.guests[*place].station))
            .collect();
        self.backends[at].advance(newer, &cards);
        new.iter().for_each(|place| self.guests[*place].is_here = true);
    }

    /// All guests start.
    fn fill(&mut self) {
        for at in 0..self.backends.len() {
            let mut newer = self.backends[at].policy.clone();
            let places: Vec<usize> = (1..self.guests.len()).filter(|place| place % 2 == at).collect();
            for place in &places {
                self.born(*place, at);
                newer.vifs.push(self.vif(*place));
            }
            self.advance(at, newer, &places);
        }
        self.settle();
    }

    /// All guests stop, and nothing of them remains.
    fn empty(&mut self) {
        self.events.clear();
        let (begun, moved) = (self.transfers.under_way.len() as u64, &mut self.transfers);
        moved.given_up += begun;
        moved.under_way.clear();
        for at in 0..self.backends.len() {
            self.start(at);
            let backend = &mut self.backends[at];
            (backend.held, backend.contest) = (Nanos(0), None);
            backend.kill_after(i64::MAX);
            self.restore(at);
            self.settle();
            let newer = Policy { vifs: Vec::new(), ..self.backends[at].policy.clone() };
            self.advance(at, newer, &[]);
            self.settle();
            self.backends[at].shrink();
        }
        for guest in &mut self.guests {
            *guest = Guest::new(0, guest.at);
        }
        self.events = BTreeMap::new();
        self.actions.shrink_to_fit();
        let held = Held::now();
        match &self.empty {
            Some(before) => held.is_flat(before),
            None => self.empty = Some(held),
        }
        self.held = Some(held);
    }

    /// What all backends did.
    pub(crate) fn totals(&self) -> Totals {
        self.backends.iter().fold(Totals::default(), |all, backend| {
            let one = backend.ledger.totals;
            Totals {
                taken: all.taken + one.taken,
                put: all.put + one.put,
                bytes: all.bytes + one.bytes,
                resent: all.resent + one.resent,
                sum: all.sum.rotate_left(7) ^ one.sum,
            }
        })
    }

    pub(crate) fn host(&mut self) -> Station {
        Station::Host(self.random.below(HOSTS.into()) as u32)
    }

    /// Whether nothing disturbs a guest.
    pub(crate) fn is_calm(&self, place: usize) -> bool {
        let guest = &self.guests[place];
        let contest = self.backends[guest.at].contest.as_ref();
        guest.is_idle() && !contest.is_some_and(|c| c.members.iter().any(|member| member.place == place))
    }

    /// A guest of a backend that nothing disturbs, if one is found.
    pub(crate) fn pick(&mut self, at: usize) -> Option<usize> {
        (0..8).find_map(|_| {
            let place = 1 + self.random.below(self.guests.len() as u64 - 1) as usize;
            (self.guests[place].at == at && self.is_calm(place)).then_some(place)
        })
    }
}

/// Whether a guest starts with early ack: some of each backend, which have every other port number.
pub(crate) fn comes_with_early_ack(place: usize) -> bool {
    place > 1 && (place / 2).is_multiple_of(8)
}
