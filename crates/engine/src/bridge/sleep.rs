//! What a bridge does before its worker sleeps, and after: which ports ask their peers to wake the worker.
//!
//! A port that asked is asked again only after it was served or had an event, so a wakeup costs little more with many guests.

use super::Bridge;
use crate::entry::{PortEntry, Turn};
use crate::forward::UPLINK;
use fairlane_core::PortId;
use fairlane_core::time::Nanos;
use fairlane_port::Wanted;

/// Which guests' ports must do something before the worker sleeps. A port that is gone may still be listed.
#[derive(Default)]
pub(super) struct Sleep {
    /// Those that were served, or had an event, since they last asked to be woken.
    changed: Vec<PortId>,
    /// Those that asked to be woken for room.
    asked_for_room: Vec<PortId>,
    /// Those that have something to do without an event.
    timed: Vec<PortId>,
    /// Idle ones that had frames when they were asked, so that the worker does not sleep.
    pub(super) found: Vec<PortId>,
}

/// What a port knows of its place in these lists.
#[derive(Default)]
pub(crate) struct Asleep {
    is_listed: bool,
    is_timed: bool,
    /// Whether it asked to be woken, and was not served since.
    has_asked: bool,
}

impl Sleep {
    /// Has a port ask again before the next sleep.
    #[inline]
    pub(super) fn changed(&mut self, port: PortId, entry: &mut PortEntry) {
        if !std::mem::replace(&mut entry.asleep.is_listed, true) {
            self.changed.push(port);
        }
        self.watch_time(port, entry);
    }

    /// Notes a port that has something to do without an event, if it has.
    #[inline]
    pub(super) fn watch_time(&mut self, port: PortId, entry: &mut PortEntry) {
        if !entry.asleep.is_timed && entry.port.next_event() != Nanos::NEVER {
            entry.asleep.is_timed = true;
            self.timed.push(port);
        }
    }
}

impl PortEntry {
    /// Tells the port's peer that the port is served now, and need not be asked to wake anybody.
    #[inline]
    pub(super) fn is_served(&mut self) {
        if std::mem::take(&mut self.asleep.has_asked) {
            self.port.disable_notifications();
        }
    }

    /// Whether an idle port's peer was asked before a sleep to wake the worker for a frame, and nothing happened at the port since.
    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        !self.asleep.is_listed
    }

    /// Has the port's peer wake the worker for a frame. False if one is there, or something happens without an event.
    pub(super) fn dozes(&mut self) -> bool {
        if self.asleep.is_timed {
            return false;
        }
        if self.is_asked() {
            return true;
        }
        self.asleep.has_asked = true;
        !self.port.enable_notifications(Wanted { frames: true, room: false })
    }
}

impl Bridge {
    /// Asks ports to wake the worker for what they wait for. Returns true if something has arrived already.
    pub fn enable_notifications(&mut self) -> bool {
        let Bridge { fabric, sleep, contended, accelerated, held, .. } = self;
        let Sleep { changed, asked_for_room, found, .. } = sleep;
        let mut ready = false;
        if let Some(uplink) = fabric.entry(UPLINK) {
            ready |= uplink.port.enable_notifications(Wanted { frames: true, room: !held.is_empty() });
        }
        changed.retain(|port| {
            let Some(entry) = fabric.entry(*port) else { return false };
            let there = match entry.turn {
                // Its peer was asked already.
                Turn::Idle if entry.idle_place.is_none() => false,
                Turn::Idle => {
                    let there = entry.port.enable_notifications(Wanted { frames: true, room: false });
                    found.extend(there.then_some(*port));
                    there
                }
                Turn::Parked(on) if on != UPLINK => entry.port.more(true),
                Turn::Parked(_) | Turn::Active => false,
            };
            entry.asleep.has_asked = true;
            entry.asleep.is_listed = there;
            ready |= there;
            there
        });
        asked_for_room.clear();
        asked_for_room.extend(contended.iter().chain(fabric.receivers.full()));
        for port in asked_for_room {
            if let Some(entry) = fabric.entry(*port) {
                ready |= entry.port.enable_notifications(Wanted { frames: entry.turn == Turn::Idle, room: true });
            }
        }
        for port in accelerated {
            // One that waits for another guest has something to send to others now.
            let is_new = |turn| turn == Turn::Idle || matches!(turn, Turn::Parked(on) if on != UPLINK);
            ready |= fabric.entry(*port).is_some_and(|entry| is_new(entry.turn) && entry.sends_for_guest());
        }
        ready
    }

    /// Tells ports that the worker polls again.
    pub fn disable_notifications(&mut self) {
        if let Some(uplink) = self.fabric.entry(UPLINK) {
            uplink.port.disable_notifications();
        }
        while let Some(port) = self.sleep.asked_for_room.pop() {
            if let Some(entry) = self.fabric.entry(port) {
                entry.port.disable_notifications();
            }
            self.look_again(port);
        }
    }

    /// When a port has something to do without an event.
    pub fn next_event(&mut self) -> Nanos {
        let Bridge { fabric, sleep, .. } = self;
        let mut next = fabric.entry(UPLINK).map_or(Nanos::NEVER, |uplink| uplink.port.next_event());
        let Sleep { changed, timed, .. } = sleep;
        timed.retain(|port| {
            let Some(entry) = fabric.entry(*port) else { return false };
            let at = entry.port.next_event();
            next = next.min(at);
            entry.asleep.is_timed = at != Nanos::NEVER;
            if !entry.asleep.is_timed && !std::mem::replace(&mut entry.asleep.is_listed, true) {
                // What it waited for is over, so it may wait for its peer again.
                changed.push(*port);
            }
            entry.asleep.is_timed
        });
        next
    }
}
