//! Guests' ports without frames: which of them are polled, and how often.

use super::Bridge;
use crate::entry::{PortEntry, Turn};
use fairlane_core::PortId;
use fairlane_core::time::Nanos;

/// Idle ports polled in a round: so many, and one for each frame of the round before, up to a limit. A worker with little to do
/// hears of the others by their kicks.
const FEW_POLLS: u64 = 8;
const MOST_POLLS: u64 = 64;

/// Polls in vain after which a port's peer is asked to wake the worker instead, even while that is busy with others, if more ports are
/// idle than a round polls: when they have cost about as much as a wakeup does. A peer that was asked before the worker slept wakes it
/// in any case, so one poll is enough. Few idle ports are polled on: that is cheap, and finds a frame sooner than a wakeup.
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

    /// Hands an idle port to the scheduler if frames wait in its ring.
    pub(super) fn poll(&mut self, port: PortId, now: Nanos) {
        if self.fabric.entry(port).is_some_and(|entry| entry.turn == Turn::Idle && entry.has_frames(now)) {
            self.wake_up(port, now);
        }
    }

    /// Hands a port with frames to the scheduler.
    fn wake_up(&mut self, port: PortId, now: Nanos) {
        let Some(entry) = self.fabric.entry(port) else { return };
        entry.turn = Turn::Active;
        entry.since = now;
        entry.is_served();
        self.leave_idle(port);
        self.scheduler.activate(port, now);
    }

    /// Polls those idle ports that had frames when they were asked to wake the worker, and some of the others.
    pub(super) fn poll_idle(&mut self, now: Nanos) {
        while let Some(port) = self.sleep.found.pop() {
            self.poll(port, now);
        }
        let polls = (FEW_POLLS + self.last_frames).min(MOST_POLLS) as usize;
        for _ in 0..polls.min(self.idle.len()) {
            if self.cursor >= self.idle.len() {
                self.cursor = 0;
            }
            let Some(&port) = self.idle.get(self.cursor) else { break };
            let many = self.idle.len() as u64 > MOST_POLLS;
            let Some(entry) = self.fabric.entry(port) else { break };
            if entry.has_frames(now) {
                self.wake_up(port, now);
            } else if entry.polled_in_vain(many) {
                self.leave_idle(port);
            } else {
                self.cursor += 1;
            }
        }
    }
}

impl PortEntry {
    /// Counts a poll in vain. Returns whether the port need not be polled any more: there are `many`, and its peer, which was asked
    /// to, wakes the worker.
    fn polled_in_vain(&mut self, many: bool) -> bool {
        self.vain_polls = self.vain_polls.saturating_add(1);
        let is_enough = many && (self.vain_polls >= VAIN_POLLS || self.is_asked());
        // ACKs that early ack sends for a guest, and what happens at a time, cause no event.
        is_enough && self.early.is_none() && self.port.wakes() && self.dozes()
    }
}
