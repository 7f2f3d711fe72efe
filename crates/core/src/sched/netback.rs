//! What Linux xen-netback does today: the baseline of every comparison.
//!
//! Active vifs are polled in turn, first come first served, 64 frames at a time (NAPI's weight); weight and `min_rate`
//! are ignored. `max_rate` is netback's credit: a number of bytes per interval, added at the end of the interval, saved
//! up to 128 KiB or one interval's credit, whichever is more (`tx_add_credit`, `tx_credit_exceeded` in Linux'
//! drivers/net/xen-netback/netback.c). There are two differences. A vif has one credit for all its queues; Linux gives
//! each queue the full rate. And frame sizes are not known here, so a frame that starts within the credit is sent whole
//! and its excess is taken from the next interval; Linux holds the frame back.

use super::heap::Heap;
use super::list::{Links, List};
use super::{After, Budget, Cost, Next, Scheduler, Share, State};
use crate::PortId;
use crate::time::{Nanos, SECOND};

/// Frames a turn: `NAPI_POLL_WEIGHT` in Linux' include/linux/netdevice.h.
const TURN: u32 = 64;

/// The least a vif may save, in bytes: "a jumbo packet of up to 128kB" in `tx_add_credit`.
const LEAST_BURST: i64 = 131_072;

/// Round robin with netback's credit.
pub(super) struct Netback {
    refill: Nanos,
    vifs: Vec<Vif>,
    links: Links,
    round: List,
    waiting: Heap,
}

#[derive(Clone, Copy, Default)]
struct Vif {
    state: State,
    credit: Option<Credit>,
}

#[derive(Clone, Copy)]
struct Credit {
    /// Bytes per interval.
    bytes: i64,
    left: i64,
    window: Nanos,
}

impl Credit {
    fn new(rate: u64, refill: Nanos, now: Nanos) -> Credit {
        let bytes = u128::from(rate) * u128::from(refill.0) / u128::from(8 * SECOND);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).max(1);
        Credit { bytes, left: bytes, window: now }
    }

    /// Starts a new window. Credit of windows in which the vif was not served is lost, as in Linux.
    fn add(&mut self, now: Nanos) {
        self.window = now;
        self.left = self.left.saturating_add(self.bytes).min(self.bytes.max(LEAST_BURST));
    }
}

impl Netback {
    /// A scheduler without ports that adds credit every `refill`.
    pub(super) fn new(refill: Nanos) -> Netback {
        let refill = refill.max(Nanos(1));
        Netback { refill, vifs: Vec::new(), links: Links::default(), round: List::EMPTY, waiting: Heap::default() }
    }

    fn vif(&mut self, port: PortId, state: State) -> Option<&mut Vif> {
        self.vifs.get_mut(port.index()).filter(|vif| vif.state == state)
    }

    fn enter(&mut self, port: u32) {
        self.vifs[port as usize].state = State::Ready;
        self.links.push_back(&mut self.round, port);
    }

    /// Adds credit to every port whose credit timer has expired, and queues it.
    fn refill(&mut self, now: Nanos) {
        while let Some((_, port)) = self.waiting.pop_until(now) {
            if let Some(credit) = &mut self.vifs[port as usize].credit {
                credit.add(now);
            }
            self.enter(port);
        }
    }
}

impl Scheduler for Netback {
    fn configure(&mut self, port: PortId, share: Share, now: Nanos) {
        let ports = port.index() + 1;
        if self.vifs.len() < ports {
            self.vifs.resize(ports, Vif::default());
            self.links.grow(ports);
            self.waiting.grow(ports);
        }
        let fresh = share.max_rate.map(|rate| Credit::new(rate, self.refill, now));
        let vif = &mut self.vifs[port.index()];
        vif.credit = match (fresh, vif.credit) {
            (Some(new), Some(old)) => {
                Some(Credit { bytes: new.bytes, left: old.left.min(new.bytes.max(LEAST_BURST)), window: old.window })
            }
            (fresh, _) => fresh,
        };
        if vif.state == State::Unknown {
            vif.state = State::Idle;
        }
        if vif.state == State::Held {
            self.waiting.remove(port.0);
            self.enter(port.0);
        }
    }

    fn remove(&mut self, port: PortId) {
        let Some(vif) = self.vifs.get_mut(port.index()) else { return };
        match std::mem::take(vif).state {
            State::Ready => self.links.remove(&mut self.round, port.0),
            State::Held => drop(self.waiting.remove(port.0)),
            State::Unknown | State::Idle | State::Serving => {}
        }
    }

    fn activate(&mut self, port: PortId, _now: Nanos) {
        if self.vif(port, State::Idle).is_some() {
            self.enter(port.0);
        }
    }

    fn next(&mut self, now: Nanos) -> Next {
        self.refill(now);
        while let Some(port) = self.round.head() {
            self.links.remove(&mut self.round, port);
            let vif = &mut self.vifs[port as usize];
            let mut bytes = u64::MAX;
            if let Some(credit) = &mut vif.credit {
                if now >= credit.window + self.refill {
                    credit.add(now);
                }
                if credit.left <= 0 {
                    vif.state = State::Held;
                    self.waiting.push(port, credit.window + self.refill);
                    continue;
                }
                bytes = credit.left as u64;
            }
            vif.state = State::Serving;
            return Next::Serve(PortId(port), Budget { bytes, frames: TURN });
        }
        self.waiting.peek().map_or(Next::Idle, |(at, _)| Next::WaitUntil(at))
    }

    fn charge(&mut self, port: PortId, cost: Cost, after: After, _now: Nanos) {
        let Some(vif) = self.vif(port, State::Serving) else { return };
        if let Some(credit) = &mut vif.credit {
            credit.left = credit.left.saturating_sub_unsigned(cost.bytes);
        }
        vif.state = State::Idle;
        if after == After::Backlogged {
            self.enter(port.0);
        }
    }

    fn defer(&mut self, port: PortId, _now: Nanos) {
        let Some(vif) = self.vif(port, State::Serving) else { return };
        vif.state = State::Ready;
        self.links.push_front(&mut self.round, port.0);
    }
}
