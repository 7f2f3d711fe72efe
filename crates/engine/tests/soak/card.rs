//! A guest's rings as a port. The rings belong to the guest: a backend that ends leaves what it did not publish, and the next one
//! finds it.

use crate::ledger::UPLINK;
use fairlane_core::ack;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{BURST, Batch, Burst, Control, Put, Refusal, Room, Sink, Source, Status, Wanted};
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of a frame.
pub(crate) type Frame = Arc<[u8]>;

/// Most frames that a guest's driver has in flight: more than a turn of the largest weight.
pub(crate) const SLOTS: usize = 1024;

/// State of a guest's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Driver {
    #[default]
    Runs,
    Gone,
    BrokeARule,
}

/// What a guest and its backend share.
#[derive(Default)]
pub(crate) struct Ring {
    pub driver: Driver,
    /// Frames of the guest, of which the first `taken` were taken but not published.
    sent: VecDeque<Frame>,
    taken: usize,
    /// Frames for the guest, and then those that were put but not published.
    received: VecDeque<Frame>,
    put: Vec<Frame>,
    /// Number of frames that it has buffers for.
    pub room: usize,
    /// Bytes that it posts in addition; none if unlimited. And the bytes posted when that was not enough.
    pub posted: Option<u64>,
    short: u64,
    drained: u32,
    /// Whether its backend shall be woken for the next frame, and how.
    asked: bool,
    kick: Option<(Kicks, usize)>,
}

/// The ports with an event that their backend has not handled yet.
type Kicks = Arc<Mutex<Vec<usize>>>;

/// The rings of a guest, shared with its backend.
pub(crate) type Shared = Arc<Mutex<Ring>>;

/// Rings with buffers for this many frames.
pub(crate) fn rings(room: usize) -> Shared {
    Arc::new(Mutex::new(Ring { room, ..Ring::default() }))
}

/// Locks the rings. No holder panics, but a backend that is killed panics elsewhere.
pub(crate) fn lock(ring: &Shared) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ring {
    /// Transmits a frame; false if the ring is full.
    pub(crate) fn send(&mut self, frame: Frame) -> bool {
        let has_room = self.sent.len() < SLOTS;
        if has_room {
            self.sent.push_back(frame);
            if std::mem::take(&mut self.asked) {
                self.kick();
            }
        }
        has_room
    }

    fn kick(&self) {
        if let Some((kicks, place)) = &self.kick {
            kicks.lock().expect("no holder panics").push(*place);
        }
    }

    /// Takes a received frame.
    pub(crate) fn receive(&mut self) -> Option<Frame> {
        let frame = self.received.pop_front()?;
        self.drained = self.drained.wrapping_add(1);
        Some(frame)
    }

    /// Number of sent frames that were not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.sent.len() - self.taken
    }

    /// The driver restarts: the rings are empty.
    pub(crate) fn reset(&mut self, driver: Driver) {
        (self.driver, self.taken) = (driver, 0);
        self.sent.clear();
        self.received.clear();
        self.put.clear();
        self.kick();
    }

    /// The driver runs again.
    pub(crate) fn resume(&mut self) {
        self.driver = Driver::Runs;
        self.kick();
    }

    fn has_room(&self) -> bool {
        self.received.len() + self.put.len() < self.room && self.posted.is_none_or(|posted| posted > self.short)
    }

    fn take_in(&mut self, bytes: u64) -> bool {
        if self.driver != Driver::Runs || self.received.len() + self.put.len() >= self.room {
            return false;
        }
        if let Some(posted) = &mut self.posted {
            if bytes > *posted {
                self.short = *posted;
                return false;
            }
            *posted -= bytes;
        }
        self.short = 0;
        true
    }
}

/// What a backend did at a port.
pub(crate) struct Entry {
    pub at: Nanos,
    /// The port's number.
    pub place: usize,
    pub what: What,
    pub frame: Frame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Took a frame of the guest.
    Took,
    /// Put a frame for the guest.
    Put,
}

/// Shared by the ports of a backend: a journal of its actions, events, and the number of calls until it is killed.
#[derive(Clone)]
pub(crate) struct Backplane {
    journal: Arc<Mutex<Vec<Entry>>>,
    kicks: Kicks,
    fuse: Arc<AtomicI64>,
}

/// The panic payload of a killed backend.
pub(crate) struct Killed;

impl Default for Backplane {
    fn default() -> Backplane {
        Backplane { journal: Arc::default(), kicks: Arc::default(), fuse: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl Backplane {
    /// Kills the backend at a call from now on.
    pub(crate) fn kill_after(&self, calls: i64) {
        self.fuse.store(calls, Ordering::Relaxed);
    }

    /// The actions since the last call, in order, in exchange for an empty list.
    pub(crate) fn exchange(&self, entries: &mut Vec<Entry>) {
        std::mem::swap(&mut *self.journal.lock().expect("no holder panics"), entries);
    }

    /// The ports with an event since the last call.
    pub(crate) fn kicked(&self) -> Vec<usize> {
        std::mem::take(&mut *self.kicks.lock().expect("no holder panics"))
    }

    fn note(&self, at: Nanos, place: usize, what: What, frame: Frame) {
        self.journal.lock().expect("no holder panics").push(Entry { at, place, what, frame });
    }

    fn call(&self) {
        if self.fuse.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.fuse.store(i64::MAX, Ordering::Relaxed);
            resume_unwind(Box::new(Killed));
        }
    }
}

/// A backend's port at a guest's rings.
pub(crate) struct Card {
    ring: Shared,
    place: usize,
    plane: Backplane,
    /// Frames as they are offered.
    shown: Vec<Frame>,
    now: Nanos,
}

impl Card {
    /// Opens it. What an earlier backend did not publish did not happen.
    pub(crate) fn open(ring: &Shared, place: usize, plane: &Backplane) -> Card {
        let mut rings = lock(ring);
        rings.taken = 0;
        rings.put.clear();
        rings.kick = Some((plane.kicks.clone(), place));
        drop(rings);
        Card { ring: ring.clone(), place, plane: plane.clone(), shown: Vec::new(), now: Nanos(0) }
    }
}

impl Source for Card {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, now: Nanos) -> Batch<'a> {
        self.plane.call();
        self.now = now;
        self.shown.clear();
        let ring = lock(&self.ring);
        if ring.driver == Driver::Runs {
            let mut bytes = 0;
            for frame in ring.sent.iter().skip(ring.taken).take(BURST.min(budget.frames as usize)) {
                if bytes >= budget.bytes {
                    break;
                }
                bytes += frame.len() as u64;
                self.shown.push(frame.clone());
            }
        }
        drop(ring);
        let mut filler = burst.fill();
        for frame in &self.shown {
            filler.push(frame, Offload::default());
        }
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.plane.call();
        lock(&self.ring).taken += frames;
        for frame in self.shown.drain(..frames) {
            self.plane.note(self.now, self.place, What::Took, frame);
        }
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        let ring = lock(&self.ring);
        ring.driver == Driver::Runs && ring.unsent() > 0
    }

    fn more(&mut self, notify: bool) -> bool {
        let ring = &mut *lock(&self.ring);
        ring.asked |= notify;
        ring.unsent() > self.shown.len()
    }
}

impl Sink for Card {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, now: Nanos) -> Put {
        self.plane.call();
        let mut accepted = 0;
        for index in frames {
            if !lock(&self.ring).take_in(batch.bytes(index)) {
                return Put { accepted, refusal: Some(Refusal::Full) };
            }
            let mut bytes = Vec::with_capacity(batch.bytes(index) as usize);
            batch.read(index, &mut bytes);
            let frame: Frame = bytes.into();
            lock(&self.ring).put.push(frame.clone());
            self.plane.note(now, self.place, What::Put, frame);
            accepted += 1;
        }
        Put { accepted, refusal: None }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        if lock(&self.ring).has_room() { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> ack::Ring {
        let ring = lock(&self.ring);
        ack::Ring { waiting: (ring.received.len() + ring.put.len()) as u32, taken: ring.drained }
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        self.plane.call();
        let ring = &mut *lock(&self.ring);
        ring.sent.drain(..std::mem::take(&mut ring.taken));
        ring.received.extend(ring.put.drain(..));
        Nanos::NEVER
    }
}

impl Control for Card {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        lock(&self.ring).asked |= wanted.frames;
        // An uplink does not notify of room, as taps and cards do not: senders ask again at the time that its rate gives.
        let room = wanted.room && self.place != UPLINK && lock(&self.ring).has_room();
        (wanted.frames && self.waiting(Nanos(0))) || room
    }

    fn status(&self) -> Status {
        match lock(&self.ring).driver {
            Driver::Runs => Status::Up,
            Driver::Gone => Status::Waiting,
            Driver::BrokeARule => Status::Disabled("an index runs backward".to_owned()),
        }
    }
}
