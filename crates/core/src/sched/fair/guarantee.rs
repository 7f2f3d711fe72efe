//! `min_rate`: a floor, kept by serving those who are owed first, in the order of their deadlines.
//!
//! A port is *due* when all that its `min_rate` allowed so far has been served; its next service's deadline is the time
//! at which that rate would have passed it. As its size is not known, the largest of the recent ones stands for it.
//! Earliest deadline first meets all deadlines but for the one service that is under way, if the rates together do not
//! exceed the link (Liu and Layland 1973; with indivisible services, Jeffay, Stanat and Martel 1991). Whatever a port is
//! served counts, by guarantee or by weight, but what it got by weight beyond its floor delays its next due time by no
//! more than that one service: the floor holds in every window. In any window of length T a backlogged port is served
//! at least `min_rate` T, less two services of its own, and what `min_rate` makes of the time of another's. A port that
//! idles or is throttled collects nothing, but is due at once when it returns.

use super::super::Share;
use super::super::heap::Heap;
use super::MAX_SERVICE;
use crate::time::{Nanos, SECOND};

/// The floors of all ports, and who is owed.
#[derive(Default)]
pub struct Guarantee {
    floors: Vec<Floor>,
    /// Queued ports that are not due, by the time they will be.
    met: Heap,
    /// Queued ports that are due, by deadline.
    owed: Heap,
}

#[derive(Clone, Copy, Default)]
struct Floor {
    rate: u64,
    due: Nanos,
    /// Bytes of the largest of the recent services.
    largest: u64,
}

impl Floor {
    fn time_of(self, bytes: u64) -> Nanos {
        Nanos(bytes.saturating_mul(8 * SECOND) / self.rate.max(1))
    }
}

impl Guarantee {
    /// Sets a port's floor; says whether it has one. The port must not be queued.
    pub fn configure(&mut self, port: u32, share: &Share, now: Nanos) -> bool {
        let ports = port as usize + 1;
        if self.floors.len() < ports {
            self.floors.resize(ports, Floor::default());
            self.met.grow(ports);
            self.owed.grow(ports);
        }
        let floor = &mut self.floors[port as usize];
        if floor.rate != share.min_rate {
            *floor = Floor { rate: share.min_rate, due: now, largest: MAX_SERVICE };
        }
        share.min_rate > 0
    }

    /// A port came back: what it could have had meanwhile is gone.
    pub fn resume(&mut self, port: u32, now: Nanos) {
        let floor = &mut self.floors[port as usize];
        floor.due = floor.due.max(now);
    }

    /// Queues a port.
    pub fn enter(&mut self, port: u32, now: Nanos) {
        let floor = self.floors[port as usize];
        if floor.due > now { self.met.push(port, floor.due) } else { self.owe(port) }
    }

    /// Takes a port out of the queue.
    pub fn leave(&mut self, port: u32) {
        let _ = self.met.remove(port) || self.owed.remove(port);
    }

    /// Takes out the port with the earliest deadline of those that are due.
    #[inline]
    pub fn next(&mut self, now: Nanos) -> Option<u32> {
        while let Some((_, port)) = self.met.pop_until(now) {
            self.owe(port);
        }
        self.owed.pop_until(Nanos::NEVER).map(|(_, port)| port)
    }

    /// Counts a service of a port that is not queued.
    pub fn charge(&mut self, port: u32, bytes: u64, now: Nanos) {
        let floor = &mut self.floors[port as usize];
        // What EDF can be late by; a floor that the link cannot keep must not pile up.
        let oldest = now.since(floor.time_of(2 * MAX_SERVICE));
        let from = floor.due.max(oldest).min(now);
        floor.due = floor.due.max(from + floor.time_of(bytes));
        floor.largest = bytes.min(MAX_SERVICE).max(floor.largest - floor.largest / 16);
    }

    fn owe(&mut self, port: u32) {
        let floor = self.floors[port as usize];
        self.owed.push(port, floor.due + floor.time_of(floor.largest));
    }
}
