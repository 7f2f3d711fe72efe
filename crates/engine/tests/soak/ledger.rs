//! Compares what a backend does, entry by entry, with what it may do.
//!
//! A model of the switch determines the copies of each frame that the backend takes. Each copy is found again: delivered where it
//! may be, complete, once and in order, dropped with a reason, or queued for a guest. The backend's counters must agree with the
//! journal.

use crate::card::{Entry, Frame, What};
use crate::frame::{self, Station};
use crate::limit::Limits;
use fairlane_core::PortId;
use fairlane_core::receive;
use fairlane_core::sched::{SchedulerKind, Share};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use std::collections::{HashMap, HashSet};

/// The uplink's number. Guests' numbers follow.
pub(crate) const UPLINK: usize = 0;

/// How much longer than its bound a wait may be: rounds take time.
const SLACK: Nanos = Nanos::from_millis(5);

/// Checks between two complete counts of all copies.
const ALL: u64 = 64;

/// The account of an attached card.
pub(crate) struct Account {
    pub port: PortId,
    pub station: Station,
    pub share: Share,
    /// Whether it has had early ack since its counters were reset: then some of its frames are not from its ring, and some frames
    /// arrived twice.
    pub early: bool,
    /// Frames taken from its ring, their bytes, and the number of copies they must have.
    taken: u64,
    taken_bytes: u64,
    asked: u64,
    /// Copies of its frames that were delivered.
    passed: u64,
    /// Frames delivered to it, and their bytes.
    put: u64,
    put_bytes: u64,
    /// Frames retransmitted by early ack, as far as counted.
    resent: u64,
    /// The last number received from each sender.
    heard: HashMap<Station, u64>,
    last_taken: Nanos,
    /// When it last received something from another guest.
    fed: Nanos,
    pub tenant: Option<String>,
    limits: Limits,
    /// Its frames and bytes that went to the uplink.
    pub up: (u64, u64),
    is_touched: bool,
}

/// How a card is attached.
#[derive(Clone)]
pub(crate) struct Terms {
    pub share: Share,
    pub tenant: Option<String>,
    pub early: bool,
    pub kind: SchedulerKind,
}

/// Frames and bytes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub taken: u64,
    pub put: u64,
    pub bytes: u64,
    pub resent: u64,
    /// A checksum of all entries in order: two runs with the same checksum were the same.
    pub sum: u64,
}

/// The ledger of a backend.
#[derive(Default)]
pub(crate) struct Ledger {
    accounts: Vec<Option<Account>>,
    places: HashMap<Station, usize>,
    hosts: HashSet<u32>,
    guests: u64,
    pub isolate: bool,
    /// Waits that began before this time are not checked: the scenario changed or stopped something.
    pub excused: Nanos,
    /// Copies of frames of vifs that were removed since, less those that were found, lost in front of these vifs, or queued for
    /// them.
    detached: i64,
    judgements: u64,
    touched: Vec<usize>,
    pub totals: Totals,
}

impl Ledger {
    /// The account of a port.
    pub(crate) fn at(&self, place: usize) -> Option<&Account> {
        self.accounts.get(place)?.as_ref()
    }

    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut Account> {
        self.accounts.get_mut(place)?.as_mut()
    }

    /// Checks no wait that began before this time.
    pub(crate) fn excuse(&mut self, until: Nanos) {
        self.excused = self.excused.max(until);
    }

    /// A card was attached.
    pub(crate) fn open(&mut self, place: usize, port: PortId, station: Station, terms: Terms, now: Nanos) {
        let Terms { share, tenant, early, kind } = terms;
        if self.accounts.len() <= place {
            self.accounts.resize_with(place + 1, || None);
        }
        let heard = self.accounts[place].take().map(|account| account.heard).unwrap_or_default();
        self.accounts[place] = Some(Account {
            port,
            station,
            share,
            early,
            taken: 0,
            taken_bytes: 0,
            asked: 0,
            passed: 0,
            put: 0,
            put_bytes: 0,
            resent: 0,
            heard,
            last_taken: now,
            fed: now,
            tenant,
            limits: Limits::of(&share, kind, now),
            up: (0, 0),
            is_touched: false,
        });
        self.places.insert(station, place);
        self.guests = self.accounts.iter().skip(1).flatten().count() as u64;
    }

    /// A guest's card is about to be detached; checks its counters.
    pub(crate) fn close(&mut self, place: usize, bridge: &Bridge) {
        let account = self.accounts[place].take().expect("it was attached");
        self.detached += account.missing(bridge);
        self.places.remove(&account.station);
        self.guests -= 1;
        for other in self.accounts.iter_mut().flatten() {
            other.heard.remove(&account.station);
        }
    }

    /// The backend ended: what it did since the last check is unknown, and its counters restart.
    pub(crate) fn end(&mut self) {
        self.hosts.clear();
        self.detached = 0;
        self.touched.clear();
        self.accounts.iter_mut().flatten().for_each(|account| account.is_touched = false);
    }

    /// A share or the scheduler was changed.
    pub(crate) fn limit(&mut self, place: usize, share: Share, kind: SchedulerKind, now: Nanos) {
        if let Some(account) = self.at_mut(place) {
            let old = std::mem::take(&mut account.limits);
            account.share = share;
            account.limits = Limits::of(&share, kind, now).after(old, now);
        }
    }

    /// The scheduler was replaced by one without memory.
    pub(crate) fn reschedule(&mut self, kind: SchedulerKind, now: Nanos) {
        for account in self.accounts.iter_mut().skip(1).flatten() {
            account.limits = Limits::of(&account.share, kind, now);
        }
    }

    /// A vif got another tenant, in which it has a new place.
    pub(crate) fn join(&mut self, place: usize, tenant: Option<String>, kind: SchedulerKind, now: Nanos) {
        if let Some(account) = self.at_mut(place) {
            account.tenant = tenant;
            account.limits = Limits::of(&account.share, kind, now);
        }
    }

    /// Checks what was done since the last call. Adds the ports that received something to `fed`.
    pub(crate) fn judge(
        &mut self,
        bridge: &Bridge,
        kind: SchedulerKind,
        mut entries: Vec<Entry>,
        fed: &mut Vec<usize>,
    ) -> Vec<Entry> {
        for entry in entries.drain(..) {
            self.totals.sum = (self.totals.sum ^ entry.at.0 ^ (entry.place as u64) << 40 ^ entry.frame.len() as u64)
                .wrapping_mul(0x0100_0000_01b3);
            match entry.what {
                What::Took => self.took(&entry, kind),
                What::Put => {
                    self.put(&entry);
                    fed.push(entry.place);
                }
            }
        }
        self.check(bridge);
        self.judgements += 1;
        if self.judgements.is_multiple_of(ALL) {
            self.check_copies(bridge);
        }
        entries
    }

    fn took(&mut self, Entry { at, place, frame, .. }: &Entry, kind: SchedulerKind) {
        let bytes = frame.len() as u64;
        self.totals.taken += 1;
        self.totals.bytes += bytes;
        let copies = self.copies(*place, frame);
        self.judge_wait(*at, *place, frame);
        self.touch(*place);
        let account = self.accounts[*place].as_mut().expect("only what is attached is served");
        account.taken += 1;
        account.taken_bytes += bytes;
        account.asked += copies;
        account.last_taken = *at;
        account.limits.take(bytes, kind, *at);
    }

    /// Number of copies of a frame, each of which is delivered or dropped; one if no port may receive it.
    fn copies(&mut self, place: usize, frame: &Frame) -> u64 {
        let sender = self.at(place).expect("only what is attached is served").station;
        let all = if place == UPLINK || !self.isolate { self.guests } else { 1 };
        if frame.len() < 14 {
            return 1;
        }
        let source = Station::of(&frame[6..12]);
        match source {
            Some(Station::Host(host)) if place == UPLINK => _ = self.hosts.insert(host),
            source if source == Some(sender) => {}
            _ => return 1,
        }
        match Station::of(&frame[..6]) {
            Some(Station::Host(host)) if self.hosts.contains(&host) => 1,
            Some(guest) if self.places.contains_key(&guest) => 1,
            _ => all.max(1),
        }
    }

    /// Whether a frame waited at the head of its ring no longer than allowed for its destination.
    fn judge_wait(&mut self, at: Nanos, place: usize, frame: &Frame) {
        let Some(number) = frame::read(frame) else { return };
        let Some(account) = self.at(place) else { return };
        let Some(to) = Station::of(&frame[..6]).and_then(|to| self.places.get(&to)) else { return };
        let Some(receiver) = self.at(*to).filter(|_| *to != UPLINK && !account.share.is_limited()) else { return };
        let since = number.sent.max(account.last_taken).max(self.excused);
        if place == UPLINK {
            let waited = at.since(since);
            assert!(waited <= SLACK, "the uplink waited {waited:?} for place {to}");
        } else {
            let waited = at.since(since.max(receiver.fed));
            let most = receive::TIMEOUT + SLACK;
            assert!(waited <= most, "place {place} waited {waited:?} for place {to}, which takes nothing");
        }
    }

    fn put(&mut self, Entry { at, place, frame, .. }: &Entry) {
        self.totals.put += 1;
        let source = Station::of(&frame[6..12]).expect("only stations send");
        // A removed guest has none: the frame was queued before.
        let from = match source {
            Station::Host(_) => Some(UPLINK),
            guest => self.places.get(&guest).copied(),
        };
        let to = Station::of(&frame[..6]);
        let known = to.and_then(|to| match to {
            Station::Host(host) => self.hosts.contains(&host).then_some(UPLINK),
            guest => self.places.get(&guest).copied(),
        });
        assert!(
            known.is_none_or(|known| known == *place),
            "a frame from {source:?} to {to:?} was put in at place {place}"
        );
        assert!(from != Some(*place), "a frame of {source:?} came back to it");
        assert!(
            !self.isolate || from == Some(UPLINK) || *place == UPLINK || *at <= self.excused + receive::TIMEOUT,
            "{source:?} is isolated, and reached place {place}"
        );
        let bytes = frame.len() as u64;
        if let Some(number) = frame::read(frame) {
            assert!(number.sender == source, "{number:?} was passed on as a frame of {source:?}");
            let account = self.accounts[*place].as_mut().expect("only what is attached is given frames");
            let last = account.heard.insert(source, number.number);
            assert!(last.is_none_or(|last| last < number.number), "place {place} got {number:?} behind {last:?}");
        }
        self.touch(*place);
        from.into_iter().for_each(|from| self.touch(from));
        let account = self.accounts[*place].as_mut().expect("only what is attached is given frames");
        account.put += 1;
        account.put_bytes += bytes;
        account.fed = *at;
        match from {
            Some(from) => self.accounts[from].as_mut().expect("who sends is attached").passed += 1,
            None => self.detached -= 1,
        }
        let Some(from) = from else { return };
        let account = self.accounts[from].as_mut().expect("who sends is attached");
        if *place == UPLINK {
            account.up.0 += 1;
            account.up.1 += bytes;
        }
    }

    fn touch(&mut self, place: usize) {
        let account = self.accounts[place].as_mut().expect("only what is attached is served");
        if !std::mem::replace(&mut account.is_touched, true) {
            self.touched.push(place);
        }
    }

    /// Whether the backend's counters agree with its actions.
    fn check(&mut self, bridge: &Bridge) {
        let mut resent = 0;
        for place in self.touched.iter().filter(|place| **place != UPLINK) {
            let account = self.accounts[*place].as_mut().expect("it was touched");
            let counters = bridge.counters(account.port).expect("what is attached is counted");
            let again = account.put.checked_sub(counters.received_frames);
            let again = again.unwrap_or_else(|| panic!("place {place} got {} frames, not {counters:?}", account.put));
            assert!(account.early || again == 0, "place {place} got {} frames, not {counters:?}", account.put);
            assert!(account.early || account.put_bytes == counters.received_bytes, "place {place}: {counters:?}");
            resent += again - std::mem::replace(&mut account.resent, again);
        }
        if let Some(uplink) = self.accounts[UPLINK].as_mut() {
            uplink.passed -= resent;
        }
        self.totals.resent += resent;
        for place in self.touched.drain(..) {
            let account = self.accounts[place].as_mut().expect("it was touched");
            account.is_touched = false;
            let counters = bridge.counters(account.port).expect("what is attached is counted");
            let early = counters.sent_frames.checked_sub(account.taken);
            let early =
                early.unwrap_or_else(|| panic!("place {place} sent {} frames, not {counters:?}", account.taken));
            assert!(account.early || early == 0, "place {place} sent {} frames, not {counters:?}", account.taken);
            assert!(account.early || account.taken_bytes == counters.sent_bytes, "place {place}: {counters:?}");
        }
    }

    /// Whether every copy is found.
    pub(crate) fn check_copies(&self, bridge: &Bridge) {
        let missing: i64 = self.accounts.iter().flatten().map(|account| account.missing(bridge)).sum();
        assert!(missing + self.detached == 0, "{} copies are not found", missing + self.detached);
    }

    /// Frames and bytes of all cards that went to the uplink.
    pub(crate) fn uplink(&self) -> (u64, u64) {
        self.at(UPLINK).map_or((0, 0), |uplink| (uplink.put, uplink.put_bytes))
    }

    /// Frees memory that is not needed.
    pub(crate) fn shrink(&mut self) {
        if let Some(uplink) = self.at_mut(UPLINK) {
            uplink.heard = HashMap::new();
        }
        self.places.shrink_to_fit();
        self.touched = Vec::new();
    }
}

impl Account {
    /// Copies of its frames, less those that were delivered or dropped, lost in front of its own ring, or wait there.
    fn missing(&self, bridge: &Bridge) -> i64 {
        let counters = bridge.counters(self.port).expect("what is attached is counted");
        let asked = self.asked + (counters.sent_frames - self.taken);
        let found = self.passed + counters.drops.total() + counters.receive_drops.total();
        asked as i64 - found as i64 - bridge.queued(self.port) as i64
    }
}
