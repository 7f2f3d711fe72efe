//! Guests' ports without frames: which of them are polled, and how often.

use super::Bridge;
use crate::entry::Turn;
use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// Idle ports polled in a round: so many, and one for each frame of the round before, up to a limit. A worker with little to do
/// hears of the others by their kicks.
const FEW_POLLS: u64 = 8;
const MOST_POLLS: u64 = 64;

/// Polls in vain after which a port's peer is asked to wake the worker instead, even while that is busy with others, if more ports are
/// idle than a round polls: when they have cost about as much as a wakeup does. Few idle ports are polled on: that is cheap, and
/// finds a frame sooner than a wakeup.
const VAIN_POLLS: u32 = 32;

impl Bridge {
    /// Moves a port to the idle ones, which are polled.
    pub(super) fn set_idle(&mut self, port: PortId) {
        if let Some(entry) = self.fabric.entry(port) {
            entry.turn = Turn::Idle;
        }
        self.look_again(port);
    }

    /// Has a guest's port ask to be woken before the next sleep, and polls it from now on if it is idle: what its peer was asked, or
    /// did, is not known any more.
    pub(super) fn look_again(&mut self, port: PortId) {
        let Some(entry) = self.fabric.entry(port) else { return };
        self.sleep.changed(port, entry);
        if entry.turn == Turn::Idle && entry.idle_place.is_none() {
            (entry.idle_place, entry.vain_polls) = (Some(self.idle.len()), 0);
            self.idle.push(port);
        }
    }

    /// Polls a port no longer.
    pub(super) fn leave_idle(&mut self, port: PortId) {
        let Some(place) = self.fabric.entry(port).and_then(|entry| entry.idle_place.take()) else { return };
        self.idle.swap_remove(place);
        if let Some(&moved) = self.idle.get(place)
            && let Some(entry) = self.fabric.entry(moved)
        {
            entry.idle_place = Some(place);
        }
    }

    /// Stops polling an idle port if there are many, it was polled in vain too often, and its peer wakes the worker. Returns whether it
    /// did.
    fn doze(&mut self, port: PortId) -> bool {
        let many = self.idle.len() as u64 > MOST_POLLS;
        let asks = self.fabric.entry(port).is_some_and(|entry| {
            entry.vain_polls = entry.vain_polls.saturating_add(1);
            // ACKs that early ack sends for a guest, and what happens at a time, cause no event.
            many && entry.vain_polls >= VAIN_POLLS && entry.early.is_none() && entry.port.wakes() && entry.dozes()
        });
        if asks {
            self.leave_idle(port);
        }
        asks
    }

    /// Hands an idle port to the scheduler if frames wait in its ring. Returns whether they do.
    pub(super) fn poll(&mut self, port: PortId, now: Nanos) -> bool {
        let Some(entry) = self.fabric.entry(port) else { return false };
        if !entry.has_frames(now) {
            return false;
        }
        entry.turn = Turn::Active;
        entry.since = now;
        entry.is_served();
        self.leave_idle(port);
        self.scheduler.activate(port, now);
        true
    }

    /// Polls some of the idle ports for frames.
    pub(super) fn poll_idle(&mut self, now: Nanos) {
        let polls = (FEW_POLLS + self.last_frames).min(MOST_POLLS) as usize;
        for _ in 0..polls.min(self.idle.len()) {
            if self.cursor >= self.idle.len() {
                self.cursor = 0;
            }
            let Some(&port) = self.idle.get(self.cursor) else { break };
            if !self.poll(port, now) && !self.doze(port) {
                self.cursor += 1;
            }
        }
    }
}
