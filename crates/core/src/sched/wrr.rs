//! Weighted round robin (Adamczyk and Chydzinski, "On the Performance Isolation Across Virtual Network Adapters in
//! Xen", 2011, section VII).
//!
//! The weight is the number of frames a vif may send per turn; then it moves to the end of the round. A vif whose ring
//! runs empty is skipped, but keeps its place and the rest of its turn for `idle_timeout`: if frames arrive in that
//! time, it is served next. After that it starts at the end with a new turn. A vif that waits for its destination or
//! for its `max_rate` or `max_frames` keeps both however long it waits. Those that come back are served before the vif whose turn it
//! is, in the order in which they came. So between two visits to the end of the round a vif sends at
//! most its weight; a turn may be interrupted, but is never lost or doubled. `min_rate` is ignored.

use super::list::{Links, List};
use super::throttle::Throttle;
use super::{After, BUDGET_FRAMES, Budget, Cost, Next, Scheduler, Share, State};
use crate::PortId;
use crate::time::Nanos;

/// Weighted round robin, counted in frames.
pub(super) struct Wrr {
    prioritize: bool,
    idle_timeout: Nanos,
    vifs: Vec<Vif>,
    links: Links,
    round: List,
    /// Vifs that came back in their turns. Apart from the round, so that none of them falls behind vifs of the round that are
    /// deferred later.
    returned: List,
    throttle: Throttle,
}

#[derive(Clone, Copy, Default)]
struct Vif {
    state: State,
    limited: bool,
    weight: u32,
    /// Frames left in this turn; at zero the next turn starts at the end of the round.
    left: u32,
    /// Whether it came back in this turn.
    returned: bool,
    /// When an idle vif loses its place.
    place_until: Nanos,
}

impl Wrr {
    /// A scheduler without ports. Without `prioritize` every weight counts as 1. An idle vif keeps its place for
    /// `idle_timeout`.
    pub(super) fn new(prioritize: bool, idle_timeout: Nanos) -> Wrr {
        Wrr {
            prioritize,
            idle_timeout,
            vifs: Vec::new(),
            links: Links::default(),
            round: List::EMPTY,
            returned: List::EMPTY,
            throttle: Throttle::default(),
        }
    }

    fn vif(&mut self, port: PortId, state: State) -> Option<&mut Vif> {
        self.vifs.get_mut(port.index()).filter(|vif| vif.state == state)
    }

    /// Queues a vif that was not queued: behind those that came back before it if its turn is not over, else at the end of the round
    /// with a new turn.
    fn enter(&mut self, port: u32) {
        let vif = &mut self.vifs[port as usize];
        let returned = vif.left > 0;
        (vif.state, vif.returned) = (State::Ready, returned);
        if !returned {
            vif.left = vif.weight;
        }
        let (links, list) = self.list(returned);
        links.push_back(list, port);
    }

    /// Puts a vif back to where it was taken from.
    fn put_back(&mut self, port: u32) {
        let vif = &mut self.vifs[port as usize];
        vif.state = State::Ready;
        let returned = vif.returned;
        let (links, list) = self.list(returned);
        links.push_front(list, port);
    }

    /// Takes the vif that is served next.
    fn take(&mut self) -> Option<u32> {
        let (links, list) = self.list(self.returned.head().is_some());
        let port = list.head()?;
        links.remove(list, port);
        Some(port)
    }

    /// The list of vifs that came back in their turns, or of the others.
    fn list(&mut self, returned: bool) -> (&mut Links, &mut List) {
        (&mut self.links, if returned { &mut self.returned } else { &mut self.round })
    }
}

impl Scheduler for Wrr {
    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        let ports = port.index() + 1;
        if self.vifs.len() < ports {
            self.vifs.resize(ports, Vif::default());
            self.links.grow(ports);
        }
        let weight = if self.prioritize { share.weight.max(1) } else { 1 };
        let limited = self.throttle.configure(port.0, &share, now);
        let vif = &mut self.vifs[port.index()];
        let sent = vif.weight - vif.left;
        (vif.limited, vif.weight, vif.left) = (limited, weight, weight.saturating_sub(sent));
        if vif.state == State::Unknown {
            (vif.state, vif.left) = (State::Idle, 0);
        }
        if vif.state == State::Held {
            self.throttle.unhold(port.0);
            self.enter(port.0);
        }
    }

    fn remove(&mut self, port: PortId) {
        let Some(vif) = self.vifs.get_mut(port.index()) else { return };
        let Vif { state, returned, .. } = std::mem::take(vif);
        if state == State::Ready {
            let (links, list) = self.list(returned);
            links.remove(list, port.0);
        }
        self.throttle.remove(port.0);
    }

    fn activate(&mut self, port: PortId, now: Nanos) {
        let Some(vif) = self.vif(port, State::Idle) else { return };
        if now > vif.place_until {
            vif.left = 0;
        }
        self.enter(port.0);
    }

    fn next(&mut self, now: Nanos) -> Next {
        while let Some(port) = self.throttle.release(now) {
            self.enter(port);
        }
        while let Some(port) = self.take() {
            let vif = &mut self.vifs[port as usize];
            if vif.left == 0 {
                // The weight was lowered below what the vif has sent in this turn.
                self.enter(port);
                continue;
            }
            let unlimited = Budget { bytes: u64::MAX, frames: BUDGET_FRAMES };
            let room = if vif.limited { self.throttle.room(port, now) } else { Some(unlimited) };
            let Some(Budget { bytes, frames }) = room else {
                vif.state = State::Held;
                self.throttle.hold(port);
                continue;
            };
            vif.state = State::Serving;
            return Next::Serve(PortId(port), Budget { bytes, frames: frames.min(vif.left) });
        }
        self.throttle.next_release().map_or(Next::Idle, Next::WaitUntil)
    }

    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos) {
        let idle_timeout = self.idle_timeout;
        let Some(vif) = self.vif(port, State::Serving) else { return };
        // An empty service counts as one frame, so that no port can stall the round.
        vif.left = vif.left.saturating_sub(u32::try_from(cost.frames.max(1)).unwrap_or(u32::MAX));
        vif.state = State::Idle;
        vif.place_until = if after == After::Empty { now + idle_timeout } else { Nanos::NEVER };
        let (limited, goes_on) = (vif.limited, vif.left > 0);
        if limited {
            self.throttle.take(port.0, &cost, now);
        }
        if after == After::Backlogged {
            if goes_on { self.put_back(port.0) } else { self.enter(port.0) }
        }
    }

    fn defer(&mut self, port: PortId, _now: Nanos) {
        if self.vif(port, State::Serving).is_some() {
            self.put_back(port.0);
        }
    }
}
