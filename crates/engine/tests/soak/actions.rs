//! Carries out the scenario's actions.

use crate::backend::{TENANTS, name_of};
use crate::card::{self, Driver};
use crate::contest::Contest;
use crate::frame::{SHORTEST, Station};
use crate::guest::Mood;
use crate::scenario::Action;
use crate::world::{Event, World, comes_with_early_ack};
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::sched::SchedulerKind;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_policy::{Card, Link, Policy};

impl World {
    /// Carries out an action at a backend, if a suitable guest exists.
    pub(crate) fn perform(&mut self, at: usize, action: Action) {
        let now = self.clock.look();
        if !self.backends[at].runs() && !matches!(action, Action::Chat) {
            return;
        }
        match action {
            Action::Chat => self.chat(at),
            Action::Come => self.come(at),
            Action::Down | Action::Jam => {
                let backend = &mut self.backends[at];
                if backend.jammed || card::lock(&backend.uplink).driver != Driver::Runs {
                    return;
                }
                backend.ledger.excuse(now);
                if action == Action::Down {
                    card::lock(&backend.uplink).reset(Driver::Gone);
                } else {
                    backend.jammed = true;
                }
                backend.is_dirty = true;
                let pause = self.random.below(4 * SECOND);
                self.later(Nanos(pause), Event::Restore(at));
            }
            Action::Kill => {
                let calls = 1 + self.random.below(400) as i64;
                self.backends[at].kill_after(calls);
            }
            Action::Upgrade => {
                self.backends[at].end();
                self.start(at);
            }
            Action::Hold => {
                let until = now + Nanos(self.random.below(3 * SECOND));
                self.backends[at].held = until;
                self.backends[at].ledger.excuse(until);
            }
            Action::SetLink => self.set_link(at),
            Action::Reschedule => self.reschedule(at),
            Action::Contest => self.contest(at),
            Action::Transfer => self.transfer(at),
            _ => {
                let Some(place) = self.pick(at) else { return };
                self.perform_at(at, place, action);
            }
        }
        self.count(name(action));
    }

    /// Carries out an action of a guest.
    fn perform_at(&mut self, at: usize, place: usize, action: Action) {
        let now = self.clock.look();
        match action {
            Action::Leave => {
                let vifs = self.backends[at].policy.vifs.iter().filter(|vif| vif.name != name_of(place));
                let newer = Policy { vifs: vifs.cloned().collect(), ..self.backends[at].policy.clone() };
                self.advance(at, newer, &[]);
                self.transfers.give_up(place);
                self.born(place, at);
            }
            Action::Stall => {
                let until = Nanos(self.random.below(4 * SECOND));
                self.moody(place, Mood::Stalled, until);
                self.besiege(at, place);
            }
            Action::Slow => {
                let every = Nanos::from_millis(1 + self.random.below(300));
                self.moody(place, Mood::Slow { every }, Nanos(3 * SECOND));
                self.later(every, Event::Turn(place));
                self.besiege(at, place);
            }
            Action::Drip => {
                let every = Nanos::from_millis(1 + self.random.below(200));
                let bytes = 1 + self.random.below(700);
                card::lock(&self.guests[place].ring).posted = Some(0);
                self.moody(place, Mood::Dripping { every, bytes }, Nanos(3 * SECOND));
                self.later(every, Event::Turn(place));
                self.besiege(at, place);
            }
            Action::Forge => {
                let other = 1 + self.random.below(self.guests.len() as u64 - 1) as usize;
                let (victim, host) = (self.guests[other].station, self.host());
                for from in [victim.mac(), host.mac(), Mac([2, 9, 9, 9, 9, 9])] {
                    if from != self.guests[place].station.mac() {
                        self.guests[place].send_as(from, host.mac(), 100, now);
                    }
                }
                card::lock(&self.guests[place].ring).send(vec![7; 1 + self.random.below(13) as usize].into());
                self.backends[at].is_dirty = true;
            }
            Action::Break | Action::Disconnect => {
                let driver = if action == Action::Break { Driver::BrokeARule } else { Driver::Gone };
                card::lock(&self.guests[place].ring).reset(driver);
                self.backends[at].is_dirty = true;
                let away = self.random.below(3 * SECOND);
                self.later(Nanos(away), Event::Reconnect(place));
            }
            Action::SetVif => {
                // During a contest, half of them are about one of its guests: that one uses what it is granted.
                let contest = self.backends[at].contest.as_ref().filter(|_| self.random.chance(0.5));
                let place = contest.and_then(|contest| contest.members.last()).map_or(place, |member| member.place);
                self.set_vif(at, place);
            }
            Action::Reopen => {
                let mut newer = self.backends[at].policy.clone();
                let vif = newer.vifs.iter_mut().find(|vif| vif.name == name_of(place)).expect("it is here");
                let Card::VhostUser { connect, .. } = &mut vif.card else { unreachable!("all are") };
                *connect = !*connect;
                self.advance(at, newer, &[place]);
            }
            Action::Migrate => self.migrate(at, place),
            _ => unreachable!("{action:?} is no action of a guest's"),
        }
    }

    fn moody(&mut self, place: usize, mood: Mood, how_long: Nanos) {
        self.guests[place].mood = mood;
        self.guests[place].until = self.clock.look() + how_long;
        self.later(how_long, Event::Turn(place));
    }

    /// Other guests send more to a guest than it has room for, and after that to others.
    fn besiege(&mut self, at: usize, victim: usize) {
        let now = self.clock.look();
        let to = self.guests[victim].station.mac();
        for _ in 0..3 {
            let Some(place) = self.pick(at) else { continue };
            let host = self.host();
            let len = SHORTEST + self.random.below(1400) as usize;
            for _ in 0..20 + self.random.below(60) {
                self.guests[place].send(to, len, now);
            }
            (0..4).for_each(|_| _ = self.guests[place].send(host.mac(), len, now));
        }
        for _ in 0..self.random.below(60) {
            self.backends[at].host_sends(0, to, 400);
        }
        if let Some(other) = self.pick(at) {
            let other = self.guests[other].station.mac();
            self.backends[at].host_sends(1, other, 400);
        }
        self.backends[at].is_dirty = true;
    }

    fn chat(&mut self, at: usize) {
        let now = self.clock.look();
        let Some(place) = self.pick(at) else { return };
        let frames = 1 + self.random.below(6);
        for _ in 0..frames {
            let to = match self.random.below(100) {
                0..60 => self.host().mac(),
                60..95 => {
                    let other = 1 + self.random.below(self.guests.len() as u64 - 1) as usize;
                    if other == place { self.host().mac() } else { self.guests[other].station.mac() }
                }
                95..98 => Mac::BROADCAST,
                _ => Station::Host(999).mac(),
            };
            let len = SHORTEST + self.random.below(1455) as usize;
            self.guests[place].send(to, len, now);
        }
        if let Some(to) = self.pick(at) {
            let Station::Host(host) = self.host() else { unreachable!("it is a host") };
            let to = self.guests[to].station.mac();
            self.backends[at].host_sends(host, to, SHORTEST + self.random.below(1455) as usize);
        }
        self.backends[at].is_dirty = true;
    }

    fn come(&mut self, at: usize) {
        let Some(place) = (1..self.guests.len()).find(|place| !self.guests[*place].is_here) else { return };
        self.born(place, at);
        let mut newer = self.backends[at].policy.clone();
        newer.vifs.push(self.vif(place));
        self.advance(at, newer, &[place]);
    }

    fn set_vif(&mut self, at: usize, place: usize) {
        let mbit = 1 + self.random.below(8);
        let weight = [10, 30, 100, 300][self.random.below(4) as usize];
        let tenants = TENANTS.map(|(name, _)| name);
        let (key, value) = match self.random.below(20) {
            0 | 1 => ("weight", weight.to_string()),
            2 => ("min_rate", format!("{mbit}00kbit/s")),
            3 => ("min_rate", "none".to_owned()),
            4 => ("max_rate", format!("{mbit}Mbit/s")),
            5 => ("max_rate", "none".to_owned()),
            6 => ("burst", format!("{}KiB", 2 + self.random.below(100))),
            7 => ("rx_weight", weight.to_string()),
            8 => ("rx_min_rate", format!("{mbit}00kbit/s")),
            9 => ("rx_max_rate", format!("{mbit}Mbit/s")),
            10 => ("rx_max_rate", "none".to_owned()),
            11 => ("rx_queue", format!("{}KiB", 2 << self.random.below(12))),
            12 => ("rx_timeout", format!("{}ms", 1 << self.random.below(10))),
            13 => ("max_frames", (100 << self.random.below(6)).to_string()),
            14 => ("max_frames", "none".to_owned()),
            15 => ("rx_max_frames", (100 << self.random.below(6)).to_string()),
            16 => ("rx_max_frames", "none".to_owned()),
            17 | 18 => ("tenant", (*tenants.get(self.random.below(6) as usize).unwrap_or(&"none")).to_owned()),
            _ => ("early_ack", ["false", "true", "always"][self.random.below(3) as usize].to_owned()),
        };
        self.backends[at].set(&name_of(place), key, &value);
    }

    fn set_link(&mut self, at: usize) {
        let (key, value) = match self.random.below(8) {
            0 | 1 => ("rate", format!("{}Mbit/s", [5, 10, 20, 50][self.random.below(4) as usize])),
            2 => ("isolate", ["true", "false"][self.random.below(2) as usize].to_owned()),
            3 => ("rx_pool", format!("{}KiB", 64 << self.random.below(12))),
            4 => ("rx_rate", format!("{}Mbit/s", [5, 10, 20, 50][self.random.below(4) as usize])),
            5 => ("rx_rate", "none".to_owned()),
            6 => {
                let (tenant, _) = TENANTS[self.random.below(TENANTS.len() as u64) as usize];
                return self.backends[at].set(tenant, "weight", &(100 << self.random.below(3)).to_string());
            }
            _ => ("idle_timeout", format!("{}ms", 1 + self.random.below(1000))),
        };
        self.backends[at].set("lan", key, &value);
    }

    /// Another scheduler, by a newer file, as only one of them supports guarantees.
    fn reschedule(&mut self, at: usize) {
        let kind = ["fair", "fair", "wrr", "netback"][self.random.below(4) as usize];
        let mut newer = self.backends[at].policy.clone();
        if kind != "fair" {
            newer.vifs.iter_mut().for_each(|vif| (vif.shares.tx.min_rate, vif.tenant) = (0, None));
            newer.vifs.iter_mut().filter(|_| kind == "netback").for_each(|vif| vif.shares.tx.max_frames = None);
        }
        let setting = fairlane_policy::Setting::parse("scheduler", kind).expect("it is one");
        newer.apply("lan", setting).expect("nothing is against it");
        self.backends[at].advance(newer, &[]);
    }

    fn migrate(&mut self, at: usize, place: usize) {
        let to = 1 - at;
        if !self.backends[to].runs() {
            return;
        }
        let name = name_of(place);
        let flows = self.backends[at].export(&name);
        let mut there = self.backends[at].policy.clone();
        let index = there.vifs.iter().position(|vif| vif.name == name).expect("it is here");
        let mut vif = there.vifs.remove(index);
        self.advance(at, there, &[]);
        if flows.is_some() && vif.early_ack == Mode::Off {
            // It was draining and is not any more.
            vif.early_ack = Mode::Auto;
        }
        (vif.shares.tx.min_rate, vif.shares.rx.min_rate) = (0, 0);
        match self.backends[to].link().scheduler {
            SchedulerKind::Fair => {}
            SchedulerKind::Wrr { .. } => vif.tenant = None,
            SchedulerKind::Netback { .. } => (vif.tenant, vif.shares.tx.max_frames) = (None, None),
        }
        let mut here = self.backends[to].policy.clone();
        here.vifs.push(vif);
        self.guests[place].at = to;
        self.advance(to, here, &[place]);
        if let Some(flows) = flows {
            self.backends[to].import(&name, &flows);
        }
    }

    /// A transfer to a guest that started with early ack, whatever its state.
    fn transfer(&mut self, at: usize) {
        let is_meant = |place: &usize| {
            let guest = &self.guests[*place];
            comes_with_early_ack(*place) && guest.is_here && guest.at == at
        };
        let places: Vec<usize> = (1..self.guests.len()).filter(is_meant).collect();
        if places.is_empty() {
            return;
        }
        let place = places[self.random.below(places.len() as u64) as usize];
        let (guest, host, now) = (self.guests[place].station, self.host(), self.clock.look());
        let port = self.transfers.begin(place, guest, host, &mut self.random, now);
        self.later(Nanos(0), Event::Flow(port));
        if self.random.chance(0.1) {
            let action =
                [Action::Kill, Action::Upgrade, Action::Reopen, Action::Migrate][self.random.below(4) as usize];
            let after = self.random.below(2 * SECOND);
            self.later(Nanos(after), Event::Strike(guest, place, action));
        }
    }

    /// An action that meets a transfer, which a random one rarely does.
    pub(crate) fn strike(&mut self, station: Station, place: usize, action: Action) {
        let at = self.guests[place].at;
        if self.guests[place].station != station || !self.is_calm(place) || !self.backends[at].runs() {
            return;
        }
        match action {
            Action::Reopen | Action::Migrate => self.perform_at(at, place, action),
            _ => self.perform(at, action),
        }
        self.count("transfers struck");
    }

    /// At times, the first guest of a contest is guaranteed much more than its weight gives it, and the last limited to less. The
    /// guarantees of earlier guests are removed: all together must fit the link.
    fn set_terms(&mut self, at: usize, members: &[(usize, usize, Station)]) {
        let mut newer = self.backends[at].policy.clone();
        let Link { rate, scheduler, .. } = newer.links[0];
        let Some(rate) = rate else { return };
        newer.vifs.iter_mut().for_each(|vif| vif.shares.tx.min_rate = 0);
        let is_owed = scheduler == SchedulerKind::Fair && self.random.chance(0.5);
        let is_bounded = members.len() > 1 && self.random.chance(0.5);
        for (index, (place, ..)) in members.iter().enumerate() {
            let vif = newer.vifs.iter_mut().find(|vif| vif.name == name_of(*place)).expect("it is here");
            (vif.shares.tx.max_rate, vif.shares.tx.max_frames) = (None, None);
            match index {
                0 if is_owed => {
                    (vif.shares.tx.weight, vif.shares.tx.min_rate, vif.tenant) = (10, rate / 3, None);
                }
                last if is_bounded && last + 1 == members.len() => vif.shares.tx.max_rate = Some(rate / 10),
                _ => {}
            }
        }
        self.backends[at].advance(newer, &[]);
    }

    fn contest(&mut self, at: usize) {
        if self.backends[at].contest.is_some() {
            return;
        }
        let now = self.clock.look();
        let mut members: Vec<(usize, usize, Station)> = Vec::new();
        for _ in 0..2 + self.random.below(4) {
            let Some(place) = self.pick(at) else { continue };
            // Older frames in its ring may be for a guest that posts few buffers.
            let is_fit = card::lock(&self.guests[place].ring).unsent() == 0;
            if is_fit && members.iter().all(|(other, ..)| *other != place) {
                let len = [SHORTEST, 400, 1514][self.random.below(3) as usize];
                members.push((place, len, self.host()));
            }
        }
        if members.is_empty() {
            return;
        }
        self.set_terms(at, &members);
        // The first second is not checked: guests that were served before finish their turn in it.
        self.backends[at].ledger.excuse(now);
        let end = now + Nanos((2 + self.random.below(4)) * SECOND);
        let contest = Contest::new(members, end, &self.backends[at].ledger, now);
        self.backends[at].contest = Some(contest);
        self.backends[at].is_dirty = true;
        self.later(Nanos(SECOND), Event::Contest(at));
    }
}

fn name(action: Action) -> &'static str {
    match action {
        Action::Chat => "chats",
        Action::Come => "comes",
        Action::Leave => "leaves",
        Action::Stall => "stalls",
        Action::Slow => "slow",
        Action::Drip => "drips",
        Action::Forge => "forged",
        Action::Break => "broken rings",
        Action::Disconnect => "disconnects",
        Action::SetVif => "vifs set",
        Action::SetLink => "links set",
        Action::Reschedule => "schedulers",
        Action::Reopen => "reopened",
        Action::Down => "uplinks down",
        Action::Jam => "uplinks jammed",
        Action::Kill => "fuses lit",
        Action::Upgrade => "upgrades",
        Action::Hold => "held",
        Action::Migrate => "migrations",
        Action::Transfer => "transfers",
        Action::Contest => "contests",
    }
}
