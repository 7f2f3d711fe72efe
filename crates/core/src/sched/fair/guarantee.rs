//! `min_rate`: guarantees, met by serving the ports that are owed first, earliest deadline first.
//!
//! A port is *due* once its `min_rate` would have finished what it was served so far. The deadline of its next service
//! is the time at which that rate would finish the service; as its size is not known, the largest recent one is
//! assumed. Earliest deadline first meets all deadlines except for the one service already in progress, if the rates
//! together do not exceed the link (Liu and Layland 1973; with indivisible services, Jeffay, Stanat and Martel 1991).
//! Every service counts, by guarantee or by weight, but what a port got by weight beyond its guarantee delays its next
//! due time by no more than that one service, so the guarantee holds in every window. In any window of length T a
//! backlogged port is served at least `min_rate` T, less two services of its own, and less `min_rate` times the
//! duration of another port's service. A port that is idle or throttled saves nothing, but is due at once when it
//! returns.

use super::super::Share;
use super::super::heap::Heap;
use super::MAX_SERVICE;
use crate::time::{Nanos, SECOND};

/// The guarantees of all ports, and which ports are owed.
#[derive(Default)]
pub(super) struct Guarantee {
    guarantees: Vec<Entry>,
    /// Queued ports that are not due, by due time.
    met: Heap,
    /// Queued ports that are due, by deadline.
    owed: Heap,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    rate: u64,
    due: Nanos,
    /// Bytes of the largest recent service.
    largest: u64,
}

impl Entry {
    fn time_of(self, bytes: u64) -> Nanos {
        Nanos(bytes.saturating_mul(8 * SECOND) / self.rate.max(1))
    }

    /// The same with another rate: what a port is owed, or got ahead, are bytes.
    fn at(self, rate: u64, now: Nanos) -> Entry {
        let scaled = |time: Nanos| u128::from(time.0) * u128::from(self.rate) / u128::from(rate.max(1));
        let scaled = |time: Nanos| Nanos(scaled(time).try_into().unwrap_or(u64::MAX));
        let ahead = scaled(self.due.since(now)).0.saturating_add(now.0);
        Entry { rate, due: Nanos(ahead).since(scaled(now.since(self.due))), ..self }
    }

    /// EDF can be late by this much. A guarantee that the link cannot meet must not pile up a debt.
    fn oldest(self, now: Nanos) -> Nanos {
        now.since(self.time_of(2 * MAX_SERVICE))
    }
}

impl Guarantee {
    /// Sets a port's guarantee. Returns whether it has one. The port must not be queued.
    pub(super) fn configure(&mut self, port: u32, share: &Share, now: Nanos) -> bool {
        let ports = port as usize + 1;
        if self.guarantees.len() < ports {
            self.guarantees.resize(ports, Entry::default());
            self.met.grow(ports);
            self.owed.grow(ports);
        }
        let entry = &mut self.guarantees[port as usize];
        if entry.rate != share.min_rate {
            *entry = match entry.rate {
                0 => Entry { rate: share.min_rate, due: now, largest: MAX_SERVICE },
                _ => entry.at(share.min_rate, now),
            };
        }
        share.min_rate > 0
    }

    /// Reports that a port is active again: what it could have sent while idle is lost.
    pub(super) fn resume(&mut self, port: u32, now: Nanos) {
        let entry = &mut self.guarantees[port as usize];
        entry.due = entry.due.max(now);
    }

    /// Reports that a port that was blocked, and not idle, is active again: no more is lost than a debt that must not pile up. A tenant
    /// is blocked while all its ports are in service, so at each of them it would lose the time until the next one.
    pub(super) fn unblock(&mut self, port: u32, now: Nanos) {
        let entry = &mut self.guarantees[port as usize];
        entry.due = entry.due.max(entry.oldest(now));
    }

    /// Queues a port, if it has a guarantee. Returns whether it has.
    pub(super) fn enter(&mut self, port: u32, now: Nanos) -> bool {
        let entry = self.guarantees[port as usize];
        if entry.rate == 0 {
            return false;
        }
        if entry.due > now {
            self.met.push(port, entry.due)
        } else {
            self.owe(port)
        }
        true
    }

    /// Removes a port from the queue.
    pub(super) fn leave(&mut self, port: u32) {
        let _ = self.met.remove(port) || self.owed.remove(port);
    }

    /// Removes and returns the due port with the earliest deadline.
    #[inline]
    pub(super) fn next(&mut self, now: Nanos) -> Option<u32> {
        while let Some((_, port)) = self.met.pop_until(now) {
            self.owe(port);
        }
        self.owed.pop_until(Nanos::NEVER).map(|(_, port)| port)
    }

    /// When [`Guarantee::next`] may return a port, if any has a guarantee.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        let owed = self.owed.peek().map(|_| Nanos(0));
        owed.or_else(|| self.met.peek().map(|(due, _)| due))
    }

    /// Charges a service to a port that is not queued, if it has a guarantee.
    pub(super) fn charge(&mut self, port: u32, bytes: u64, now: Nanos) {
        let entry = &mut self.guarantees[port as usize];
        if entry.rate == 0 {
            return;
        }
        let from = entry.due.max(entry.oldest(now)).min(now);
        entry.due = entry.due.max(from + entry.time_of(bytes));
        entry.largest = bytes.min(MAX_SERVICE).max(entry.largest - entry.largest / 16);
    }

    fn owe(&mut self, port: u32) {
        let entry = self.guarantees[port as usize];
        self.owed.push(port, entry.due + entry.time_of(entry.largest));
    }
}
