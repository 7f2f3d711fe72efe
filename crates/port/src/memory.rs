//! A port for tests: two queues of frames in this process, shared with a [`Peer`].

use crate::{Batch, Burst, Control, Put, Refusal, Room, Sink, Source, Status, Wanted};
use fairlane_core::ack::Ring;
use fairlane_core::packet::Offload;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A frame and its offload.
pub type Owned = (Vec<u8>, Offload);

#[derive(Default)]
struct Queues {
    /// Sent by the peer, not offered yet.
    sent: VecDeque<Owned>,
    /// Sent to the peer.
    received: VecDeque<Owned>,
    /// The most frames that may wait in `received`.
    room: usize,
    /// Frames that the peer took from `received`.
    taken: u32,
}

/// The port.
pub struct Memory {
    queues: Arc<Mutex<Queues>>,
    /// Taken from `sent`, not consumed yet.
    offered: VecDeque<Owned>,
    /// Frames of the last offer.
    shown: usize,
}

/// The other end of a [`Memory`] port, in place of a guest.
#[derive(Clone)]
pub struct Peer(Arc<Mutex<Queues>>);

/// A port and its peer. At most `room` frames wait for the peer; further ones find the port full.
pub fn pair(room: usize) -> (Memory, Peer) {
    let queues = Arc::new(Mutex::new(Queues { room, ..Queues::default() }));
    (Memory { queues: queues.clone(), offered: VecDeque::new(), shown: 0 }, Peer(queues))
}

impl Peer {
    /// Transmits a frame.
    pub fn send(&self, frame: &[u8], offload: Offload) {
        self.queues().sent.push_back((frame.to_vec(), offload));
    }

    /// Takes the next received frame.
    pub fn receive(&self) -> Option<Owned> {
        let mut queues = self.queues();
        let frame = queues.received.pop_front()?;
        queues.taken = queues.taken.wrapping_add(1);
        Some(frame)
    }

    /// Frames sent and not yet taken by the port.
    pub fn unsent(&self) -> usize {
        self.queues().sent.len()
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.0.lock().expect("no holder panics")
    }
}

impl Memory {
    fn queues(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.queues.lock().expect("no holder panics")
    }
}

impl Source for Memory {
    fn offer<'a>(&'a mut self, burst: &'a mut Burst, budget: Budget, _now: Nanos) -> Batch<'a> {
        let wanted = (budget.frames as usize).min(crate::BURST);
        while self.offered.len() < wanted {
            let Some(frame) = self.queues.lock().expect("no holder panics").sent.pop_front() else { break };
            self.offered.push_back(frame);
        }
        let mut filler = burst.fill();
        filler.push_all(budget, self.offered.iter().map(|(frame, offload)| (&frame[..], *offload)));
        self.shown = filler.len();
        filler.done()
    }

    fn consume(&mut self, frames: usize) {
        self.offered.drain(..frames);
    }

    fn waiting(&mut self, _now: Nanos) -> bool {
        !self.offered.is_empty() || !self.queues().sent.is_empty()
    }

    fn more(&mut self, _notify: bool) -> bool {
        self.offered.len() > self.shown || !self.queues().sent.is_empty()
    }
}

impl Sink for Memory {
    fn put(&mut self, batch: &Batch<'_>, frames: Range<usize>, _now: Nanos) -> Put {
        let (frames, lost) = batch.fetch(frames);
        let mut queues = self.queues();
        let mut accepted = 0;
        for index in frames {
            if queues.received.len() >= queues.room {
                return Put { accepted, refusal: Some(Refusal::Full) };
            }
            let frame = batch.frame(index);
            let mut bytes = Vec::with_capacity(frame.bytes() as usize);
            frame.read(&mut bytes);
            queues.received.push_back((bytes, frame.offload()));
            accepted += 1;
        }
        Put { accepted, refusal: lost }
    }

    fn room(&mut self, _now: Nanos) -> Room {
        let queues = self.queues();
        if queues.received.len() < queues.room { Room::Now } else { Room::Unknown }
    }

    fn ring(&self) -> Ring {
        let queues = self.queues();
        Ring { waiting: queues.received.len() as u32, taken: queues.taken }
    }

    fn flush(&mut self, _now: Nanos) -> Nanos {
        Nanos::NEVER
    }
}

impl Control for Memory {
    fn enable_notifications(&mut self, wanted: Wanted) -> bool {
        (wanted.frames && self.waiting(Nanos(0))) || (wanted.room && self.room(Nanos(0)) == Room::Now)
    }

    fn status(&self) -> Status {
        Status::Up
    }
}
