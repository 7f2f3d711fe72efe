//! A simulated backend: the engine's own bridge and policy changes in virtual time, checked against a ledger.

use crate::card::{self, Backplane, Card, Driver, Entry, Killed, Shared, rings};
use crate::contest::Contest;
use crate::frame::{self, Number, Station};
use crate::ledger::{Ledger, Terms, UPLINK};
use fairlane_core::ack::Mode;
use fairlane_core::packet::Mac;
use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::Clock;
use fairlane_engine::worker::Work;
use fairlane_policy::{Access, Change, Link, Policy, Setting, Shares, Tenant, Uplink, Vif, uplink_queue};
use fairlane_port::paced::Paced;
use fairlane_port::{Burst, Poller, Port};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use tempfile::TempDir;

/// Number of hosts behind the uplink.
pub(crate) const HOSTS: u32 = 8;

/// Frames that the uplink holds while the network accepts none.
const JAM: usize = 300;

/// The time that a reading of the clock takes.
const READING: Nanos = Nanos(50);

/// A descriptor of a port that signals frames.
const KICK: u32 = 1;

/// Most rounds of a backend at one time that move nothing: some of them poll all idle ports.
const IDLE_ROUNDS: u64 = 10_000;

/// Virtual time. It advances while a backend works, and from event to event.
#[derive(Clone, Default)]
pub(crate) struct Virtual(Rc<Cell<Nanos>>);

impl Virtual {
    /// The time, without the cost of a reading.
    pub(crate) fn look(&self) -> Nanos {
        self.0.get()
    }

    pub(crate) fn advance_to(&self, time: Nanos) {
        self.0.set(self.0.get().max(time));
    }
}

impl Clock for Virtual {
    fn now(&self) -> Nanos {
        self.0.set(self.0.get() + READING);
        self.0.get()
    }

    fn worked(&self) -> Nanos {
        self.0.get()
    }
}

/// A machine with a link, guests, and a network behind the uplink.
pub(crate) struct Backend {
    pub policy: Policy,
    work: Option<Work<Virtual>>,
    pub ledger: Ledger,
    clock: Virtual,
    plane: Backplane,
    pub uplink: Shared,
    pub jammed: bool,
    /// Until when it is blocked.
    pub held: Nanos,
    /// When it has something to do without an event.
    pub wake: Nanos,
    pub is_dirty: bool,
    pub contest: Option<Contest>,
    burst: Box<Burst>,
    poller: Poller,
    journal: Vec<Entry>,
    idle_rounds: (Nanos, u64),
    /// Number of frames sent by each host.
    sent: [u64; HOSTS as usize],
    _directory: TempDir,
}

/// The tenants, with their weights. Some guests belong to each of them.
pub(crate) const TENANTS: [(&str, u32); 3] = [("red", 100), ("blue", 200), ("green", 300)];

fn tenant((name, weight): (&str, u32)) -> Tenant {
    Tenant { name: name.to_owned(), shares: Shares::of_weight(weight), min_rate_on: BTreeMap::new() }
}

impl Backend {
    pub(crate) fn new(clock: &Virtual) -> Backend {
        let directory = tempfile::tempdir().expect("there is a place for files");
        let link = Link {
            name: "lan".to_owned(),
            rate: Some(20_000_000),
            rx_rate: None,
            scheduler: SchedulerKind::Fair,
            idle_timeout: Nanos::from_millis(100),
            isolate: false,
            cpu: None,
            uplink: Uplink::Tap { name: "out".to_owned() },
            xen: false,
            rx_pool: fairlane_core::receive::POOL,
        };
        let control = directory.path().join("control.sock");
        let mut backend = Backend {
            policy: Policy {
                control,
                metrics: None,
                metrics_token: None,
                observe: None,
                sockets: Access::default(),
                links: vec![link],
                tenants: TENANTS.map(tenant).to_vec(),
                vifs: Vec::new(),
            },
            work: None,
            ledger: Ledger::default(),
            clock: clock.clone(),
            plane: Backplane::default(),
            uplink: rings(JAM),
            jammed: false,
            held: Nanos(0),
            wake: Nanos::NEVER,
            is_dirty: false,
            contest: None,
            burst: Burst::new(),
            poller: Poller::new().expect("a poller"),
            journal: Vec::new(),
            idle_rounds: (Nanos(0), 0),
            sent: [0; HOSTS as usize],
            _directory: directory,
        };
        backend.start(|_| unreachable!("there are no vifs yet"));
        backend
    }

    pub(crate) fn link(&self) -> &Link {
        &self.policy.links[0]
    }

    pub(crate) fn runs(&self) -> bool {
        self.work.is_some()
    }

    /// When it runs next. Events that arrived while it was blocked are handled when it continues, whenever it would have woken up.
    pub(crate) fn turn(&self) -> Nanos {
        if self.is_dirty { self.held } else { self.wake.max(self.held) }
    }

    /// Opens everything that the policy names, with the guests' rings.
    pub(crate) fn start(&mut self, mut guest: impl FnMut(usize) -> (Shared, Station)) {
        card::lock(&self.uplink).reset(Driver::Runs);
        let now = self.clock.look();
        let uplink = Card::open(&self.uplink, UPLINK, &self.plane);
        let link = self.link().clone();
        let uplink = Paced::new(uplink, link.rate.unwrap_or(0), uplink_queue(link.rate), true);
        let plane = self.plane.clone();
        let open = |vif: &Vif| {
            let place = place_of(&vif.name);
            Ok(Box::new(Card::open(&guest(place).0, place, &plane)) as Box<dyn Port>)
        };
        let bridge = Bridge::open(&self.policy, &link, Some(Box::new(uplink)), open, &self.clock);
        let work =
            Work::new(vec![bridge.expect("a policy is opened")], self.clock.clone()).expect("there are descriptors");
        let share = Share::of_weight(1);
        let kind = link.scheduler;
        let nobody = Station::Host(u32::MAX);
        self.ledger.open(
            UPLINK,
            fairlane_engine::UPLINK,
            nobody,
            Terms { share, tenant: None, early: false, kind },
            now,
        );
        for vif in &self.policy.vifs {
            let place = place_of(&vif.name);
            let port = work.bridges[0].find(&vif.name).expect("it was opened");
            let file = self.early_file(&vif.name);
            let early = vif.early_ack != Mode::Off || file.exists();
            let terms = Terms { share: vif.shares.tx, tenant: vif.tenant.clone(), early, kind };
            self.ledger.open(place, port, guest(place).1, terms, now);
        }
        self.ledger.excuse(now);
        self.work = Some(work);
        self.announce();
    }

    fn early_file(&self, vif: &str) -> PathBuf {
        let mut path = self.policy.control.clone().into_os_string();
        path.push(".early-ack");
        PathBuf::from(path).join(vif)
    }

    /// Ends it between two rounds.
    pub(crate) fn end(&mut self) {
        self.work = None;
        let mut journal = Vec::new();
        self.plane.exchange(&mut journal);
        self.ledger.end();
        self.wake = Nanos::NEVER;
        self.plane.kill_after(i64::MAX);
    }

    /// Kills it at a call of a port from now on.
    pub(crate) fn kill_after(&mut self, calls: i64) {
        self.plane.kill_after(calls);
    }

    /// Every host announces its address.
    pub(crate) fn announce(&mut self) {
        for host in 0..HOSTS {
            self.host_sends(host, Mac::BROADCAST, 60);
        }
    }

    /// A host sends a frame to the uplink.
    pub(crate) fn host_sends(&mut self, host: u32, to: Mac, len: usize) {
        let sender = Station::Host(host);
        let sent = &mut self.sent[host as usize];
        *sent += 1;
        let number = Number { sender, number: *sent, sent: self.clock.look() };
        self.arrives(frame::write(to, sender.mac(), number, len));
    }

    /// A frame arrives at the uplink. It is lost if the uplink is down or full.
    pub(crate) fn arrives(&mut self, frame: card::Frame) {
        let mut uplink = card::lock(&self.uplink);
        if uplink.driver == Driver::Runs {
            uplink.send(frame);
        }
        self.is_dirty = true;
    }

    /// Applies a newer policy. `cards` has the rings of new vifs, by name.
    pub(crate) fn advance(&mut self, newer: Policy, cards: &[(String, Shared, Station)]) {
        let now = self.clock.look();
        let changes = self.policy.changes(&newer).expect("it changes nothing that is fixed");
        let work = self.work.as_mut().expect("it runs");
        let kind = newer.links[0].scheduler;
        let mut reschedules = false;
        for change in &changes {
            match change {
                Change::RemoveVif { vif } => self.ledger.close(place_of(vif), &work.bridges[0]),
                Change::Share { vif, share, .. } => self.ledger.limit(place_of(vif), *share, kind, now),
                Change::Rate { .. } | Change::Scheduler { .. } | Change::IdleTimeout { .. } => reschedules = true,
                Change::Isolate { isolate, .. } => self.ledger.isolate = *isolate,
                Change::EarlyAck { vif, mode } if *mode != Mode::Off => {
                    self.ledger.at_mut(place_of(vif)).expect("it is attached").early = true;
                }
                Change::Member { vif, tenant } => {
                    let tenant = tenant.as_ref().map(|tenant| tenant.name.clone());
                    self.ledger.join(place_of(vif), tenant, kind, now);
                }
                Change::EarlyAck { .. }
                | Change::AntiSpoofing { .. }
                | Change::RxPool { .. }
                | Change::RxRate { .. }
                | Change::Tenant { .. }
                | Change::AddVif(_) => {}
                Change::AddLink(_) | Change::RemoveLink { .. } => unreachable!("the scenario has one link"),
            }
            if !matches!(change, Change::RemoveVif { .. } | Change::AddVif(_) | Change::EarlyAck { .. }) {
                self.ledger.excuse(now);
            }
        }
        if reschedules {
            self.ledger.reschedule(kind, now);
        }
        let opened: HashMap<String, Box<dyn Port>> = cards
            .iter()
            .map(|(name, ring, _)| {
                let card = Card::open(ring, place_of(name), &self.plane);
                (name.clone(), Box::new(card) as Box<dyn Port>)
            })
            .collect();
        let refused = work.apply(changes, &newer, opened);
        assert!(refused.is_empty(), "a policy is applied: {refused:?}");
        self.policy = newer;
        for (name, _, station) in cards {
            let vif = self.policy.vifs.iter().find(|vif| vif.name == *name).expect("it was added");
            let early = vif.early_ack != Mode::Off || self.early_file(name).exists();
            let terms = Terms { share: vif.shares.tx, tenant: vif.tenant.clone(), early, kind };
            let port = self.work.as_ref().expect("it runs").bridges[0].find(name).expect("it was added");
            self.ledger.open(place_of(name), port, *station, terms, now);
        }
        self.is_dirty = true;
    }

    /// Changes one key as `ctl set` does. Nothing happens if the policy's rules refuse it.
    pub(crate) fn set(&mut self, target: &str, key: &str, value: &str) {
        let mut newer = self.policy.clone();
        let setting = Setting::parse(key, value).expect("it is a setting");
        if newer.apply(target, setting).is_ok() {
            self.advance(newer, &[]);
        }
    }

    /// Exports the flows of a vif. None if it has no early ack.
    pub(crate) fn export(&mut self, vif: &str) -> Option<Vec<u8>> {
        let bridge = &mut self.work.as_mut()?.bridges[0];
        let port = bridge.find(vif)?;
        bridge.export_flows(port)
    }

    /// Imports them.
    pub(crate) fn import(&mut self, vif: &str, flows: &[u8]) {
        let now = self.clock.look();
        let bridge = &mut self.work.as_mut().expect("it runs").bridges[0];
        let port = bridge.find(vif).expect("it was added");
        let imported = bridge.import_flows(port, flows, now).expect("it has early ack");
        imported.expect("an export is read");
    }

    /// Runs rounds until there is nothing to do now. Adds the ports that received something to `fed`. Returns false if it was
    /// killed.
    pub(crate) fn settle(&mut self, fed: &mut Vec<usize>) -> bool {
        self.is_dirty = false;
        let Some(mut work) = self.work.take() else { return true };
        let kind = self.link().scheduler;
        let bridge = &mut work.bridges[0];
        for place in self.plane.kicked() {
            if let Some(port) = bridge.find(&name_of(place)) {
                bridge.event(port, KICK, &self.poller, &mut self.clock.now(), &self.clock);
            }
        }
        let mut quiet = 0;
        loop {
            let now = self.clock.now();
            let round = catch_unwind(AssertUnwindSafe(|| bridge.round(&mut self.burst, now, &self.clock)));
            let round = match round {
                Ok(round) => round,
                Err(killed) if killed.is::<Killed>() => {
                    drop(work);
                    self.end();
                    return false;
                }
                Err(panic) => resume_unwind(panic),
            };
            let mut journal = std::mem::take(&mut self.journal);
            self.plane.exchange(&mut journal);
            let moved = !journal.is_empty();
            if moved || round.frames > 0 {
                self.journal = self.ledger.judge(bridge, kind, journal, fed);
                self.idle_rounds = (now, 0);
                quiet = 0;
            } else {
                self.journal = journal;
                self.idle_rounds.1 += 1;
                let (since, rounds) = self.idle_rounds;
                assert!(
                    rounds < IDLE_ROUNDS || now.since(since) > Nanos::from_millis(1),
                    "it turns, and moves nothing"
                );
                quiet += 1;
            }
            // A worker that does not linger sleeps after a round that moved frames, too.
            if round.busy || (quiet > 1 && quiet % 16 != 0) {
                continue;
            }
            let ready = bridge.enable_notifications();
            bridge.disable_notifications();
            if !ready {
                self.wake = round.next.min(bridge.next_event());
                break;
            }
        }
        self.work = Some(work);
        true
    }

    /// Checks that what is visible from outside adds up.
    pub(crate) fn look(&mut self) {
        let Some(work) = &mut self.work else { return };
        self.ledger.check_copies(&work.bridges[0]);
        let (_, vifs) = work.bridges[0].snapshot(self.clock.look());
        let shares: f64 = vifs.iter().map(|vif| vif.share).sum();
        // Less if a vif of the last second was removed.
        assert!(shares < 1.0 + 1e-6, "parts of the link come to {shares}");
        let policy = &self.policy;
        assert!(vifs.len() == policy.vifs.len(), "{} vifs are shown of {}", vifs.len(), policy.vifs.len());
    }

    /// Frees memory that is not needed.
    pub(crate) fn shrink(&mut self) {
        self.journal = Vec::new();
        let mut journal = Vec::new();
        self.plane.exchange(&mut journal);
        self.ledger.shrink();
        card::lock(&self.uplink).reset(Driver::Runs);
        self.policy.vifs.shrink_to_fit();
    }
}

/// The port number of a vif, by its name.
pub(crate) fn place_of(vif: &str) -> usize {
    vif[1..].parse().expect("vifs are named by their places")
}

/// The name of the vif with a port number.
pub(crate) fn name_of(place: usize) -> String {
    format!("v{place}")
}
