//! A guest's card: its rings, and the port of a backend at them.

use crate::clock::Virtual;
use crate::frame::{self, Frame};
use crate::scenario::Costs;
use fairlane_core::ack;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use fairlane_port::{Batch, Burst, Control, Put, Refusal, Room, Sink, Source, Status, Wanted, Withheld};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by a guest and its backend. A port must be `Send`, hence the lock, which nobody ever waits for.
pub(crate) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared(self.0.clone())
    }
}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        Shared(Arc::new(Mutex::new(value)))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which guests of a host have sent frames that were not taken. A backend polls many idle ports, so this is small and in one place.
pub(crate) struct Marks(Vec<AtomicU64>);

impl Marks {
    /// No marks for so many guests.
    pub(crate) fn new(guests: usize) -> Arc<Marks> {
        Arc::new(Marks((0..guests.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()))
    }

    fn is_set(&self, place: usize) -> bool {
        self.0[place / 64].load(Relaxed) & 1 << (place % 64) != 0
    }

    fn set(&self, place: usize, mark: bool) {
        let (word, bit) = (&self.0[place / 64], 1 << (place % 64));
        let before = word.load(Relaxed);
        word.store(if mark { before | bit } else { before & !bit }, Relaxed);
    }
}

/// The rings of a guest's card.
pub(crate) struct Rings {
    marks: Arc<Marks>,
    /// Its place among its host's guests.
    place: usize,
    /// Frames of the guest, of which the first `taken` were taken but not published.
    sent: VecDeque<Frame>,
    taken: usize,
    /// Frames for the guest, of which the last `untold` are not published, and how often it took some.
    received: VecDeque<Frame>,
    untold: usize,
    receives: u32,
    /// Number of slots in each ring.
    slots: usize,
    /// Whether the backend is to be woken for the next frame, or for room.
    asked: Wanted,
    /// Whether the guest wants to be told of free slots.
    pub wants_slots: bool,
    /// Whether the guest is told of something already.
    is_told: bool,
}

impl Rings {
    pub(crate) fn new(slots: usize, marks: Arc<Marks>, place: usize) -> Rings {
        let asked = Wanted { frames: false, room: false };
        let (sent, received) = (VecDeque::new(), VecDeque::new());
        Rings {
            marks,
            place,
            sent,
            taken: 0,
            received,
            untold: 0,
            receives: 0,
            slots,
            asked,
            wants_slots: false,
            is_told: false,
        }
    }

    /// Number of frames that the guest can send.
    pub(crate) fn free(&self) -> usize {
        self.slots - self.sent.len()
    }

    /// The guest sends a frame, for which there is a free slot. Returns whether the backend is to be woken.
    pub(crate) fn send(&mut self, frame: Frame) -> bool {
        self.sent.push_back(frame);
        self.marks.set(self.place, true);
        std::mem::take(&mut self.asked.frames)
    }

    /// The guest takes all frames that it received. Returns whether the backend is to be woken.
    pub(crate) fn receive(&mut self, frames: &mut Vec<Frame>) -> bool {
        self.is_told = false;
        self.receives = self.receives.wrapping_add(1);
        frames.extend(self.received.drain(..));
        std::mem::take(&mut self.asked.room)
    }

    /// Frames that wait in either ring.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Frame> {
        self.sent.iter().chain(&self.received)
    }

    fn has_room(&self) -> bool {
        self.received.len() < self.slots
    }
}

/// What the ports of a host share.
pub(crate) struct Backend {
    pub marks: Arc<Marks>,
    /// The guests that are to be told of something.
    pub told: Shared<Vec<u32>>,
    pub clock: Virtual,
    pub costs: Costs,
}

impl Backend {
    /// Charges one end of the path of frames with these lengths.
    pub(crate) fn spend(&self, frames: impl Iterator<Item = u32>) {
        self.costs.spend(&self.clock, frames);
    }
}

/// A backend's port at a guest's rings.
pub(crate) struct Card {
    pub rings: Shared<Rings>,
    pub backend: Arc<Backend>,
    /// Its place among its host's guests.
    pub place: u32,
    /// The guest's number.
    pub guest: u32,
    /// Number of frames that are offered.
    pub shown: usize,
}

impl Source for Card {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let rings = self.rings.lock();
        let batch = frame::offer(rings.sent.range(rings.taken..), budget, burst);
        self.shown = batch.len();
        batch
    }

    fn consume(&mut self, frames: usize) {
        let rings = &mut *self.rings.lock();
        let taken = rings.taken..rings.taken + frames;
        self.backend.spend(rings.sent.range(taken.clone()).map(|frame| frame.len));
        rings.taken = taken.end;
        self.shown -= frames;
        self.backend.marks.set(self.place as usize, rings.sent.len() > rings.taken);
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        self.backend.marks.is_set(self.place as usize)
    }

    fn more(&mut self, notify: bool) -> bool {
        let mut rings = self.rings.lock();
        let more = rings.sent.len() - rings.taken > self.shown;
        rings.asked.frames |= notify && !more;
        more
    }
}

impl Sink for Card {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let mut rings = self.rings.lock();
        let start = frames.start;
        let room = rings.slots - rings.received.len();
        let fitting = start..frames.end.min(start + room);
        rings.received.extend(fitting.clone().map(|index| Frame::read(batch.head(index), batch.bytes(index))));
        rings.untold += fitting.len();
        self.backend.spend(fitting.clone().map(|index| batch.bytes(index) as u32));
        Put { accepted: fitting.len(), refusal: (fitting.end < frames.end).then_some(Refusal::Full) }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        if self.rings.lock().has_room() { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> ack::Ring {
        let rings = self.rings.lock();
        ack::Ring { waiting: rings.received.len() as u32, taken: rings.receives }
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        let rings = &mut *self.rings.lock();
        let taken = std::mem::take(&mut rings.taken);
        rings.sent.drain(..taken);
        rings.untold = 0;
        if (!rings.received.is_empty() || taken > 0 && rings.wants_slots) && !rings.is_told {
            rings.is_told = true;
            self.backend.told.lock().push(self.guest);
        }
        Nanos::NEVER
    }
}

impl Control for Card {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        let rings = &mut *self.rings.lock();
        rings.asked = wanted;
        (wanted.frames && rings.sent.len() > rings.taken) || (wanted.room && rings.has_room())
    }

    fn wakes(&self) -> bool {
        true
    }

    fn disable_notifications(&mut self) {
        self.rings.lock().asked = Wanted { frames: false, room: false };
    }

    fn withheld(&self) -> Withheld {
        let rings = self.rings.lock();
        let most = rings.slots / 2;
        Withheld { sent: rings.taken >= most, received: rings.untold >= most }
    }

    fn status(&self) -> Status {
        Status::Up
    }
}
