//! A guest: what it does with its rings, and when.

use crate::card::{self, Shared, rings};
use crate::frame::{self, Number, Station};
use fairlane_core::packet::Mac;
use fairlane_core::time::Nanos;

/// Number of frames that a guest has buffers for.
const ROOM: usize = 64;

/// How it takes received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// At once.
    Calm,
    /// Not at all.
    Stalled,
    /// One frame per this time.
    Slow { every: Nanos },
    /// At once, and it posts some bytes per this time.
    Dripping { every: Nanos, bytes: u64 },
}

/// A guest.
pub(crate) struct Guest {
    pub station: Station,
    /// Its backend.
    pub at: usize,
    pub ring: Shared,
    /// Whether its vif is in the policy.
    pub is_here: bool,
    pub mood: Mood,
    /// When it is calm again.
    pub until: Nanos,
    number: u64,
}

impl Guest {
    pub(crate) fn new(number: u32, at: usize) -> Guest {
        let station = Station::Guest(number);
        Guest { station, at, ring: rings(ROOM), is_here: false, mood: Mood::Calm, until: Nanos(0), number: 0 }
    }

    /// Whether it does nothing unusual.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_here && self.mood == Mood::Calm && card::lock(&self.ring).driver == card::Driver::Runs
    }

    /// Whether its CPU runs.
    pub(crate) fn runs(&self) -> bool {
        self.is_here && self.mood != Mood::Stalled && card::lock(&self.ring).driver == card::Driver::Runs
    }

    /// Sends a frame with its own or another source address; false if its ring is full.
    pub(crate) fn send_as(&mut self, from: Mac, to: Mac, len: usize, now: Nanos) -> bool {
        self.number += 1;
        let number = Number { sender: self.station, number: self.number, sent: now };
        card::lock(&self.ring).send(frame::write(to, from, number, len))
    }

    pub(crate) fn send(&mut self, to: Mac, len: usize, now: Nanos) -> bool {
        self.send_as(self.station.mac(), to, len, now)
    }
}
