//! A simulated host: the engine's own bridge, and a worker that runs it as [`fairlane_engine::worker`] does.

use crate::card::{Backend, Card, Marks, Rings, Shared};
use crate::clock::Virtual;
use crate::scenario;
use crate::uplink::{QUEUE, Uplink, Wire};
use fairlane_core::PortId;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;
use fairlane_engine::snapshot::{LinkState, PortState, VifState};
use fairlane_engine::worker::{LINGER, SPIN};
use fairlane_engine::{Bridge, Error};
use fairlane_policy::{self as policy, Policy, Setting, Vif, uplink_queue};
use fairlane_port::paced::Paced;
use fairlane_port::{Burst, Poller, Port, Refusal};
use std::sync::Arc;

/// A host.
pub(crate) struct Host {
    bridge: Bridge,
    /// Its policy as it is in force.
    pub policy: Policy,
    clock: Virtual,
    pub wire: Shared<Wire>,
    /// The guests that are to be told of something.
    pub told: Shared<Vec<u32>>,
    /// Ports with an event that the worker has not handled yet.
    kicks: Vec<PortId>,
    /// Since when it sleeps, and how long it lingers before it really does.
    sleeps: Option<(Nanos, Nanos)>,
    /// When it runs next.
    pub wake: Nanos,
    wakeup: Nanos,
}

impl Host {
    /// Opens the link of a host. `rings` are those of its guests, in the policy's order, which have consecutive numbers from `first`.
    pub(crate) fn open(
        host: &scenario::Host,
        rings: &[Shared<Rings>],
        marks: &Arc<Marks>,
        first: u32,
    ) -> Result<Host, Error> {
        let (clock, costs) = (Virtual::default(), host.costs);
        let (is_wire, queue, refusal) = match host.link.uplink {
            policy::Uplink::Wire { queue, backpressure: true, .. } => (true, queue, Refusal::Full),
            policy::Uplink::Wire { queue, .. } => (true, queue, Refusal::Never(DropReason::UplinkFull)),
            _ => (false, QUEUE, Refusal::Full),
        };
        let (told, wire) = (Shared::new(Vec::new()), Shared::new(Wire::new(host.card, queue)));
        let backend = Arc::new(Backend { marks: marks.clone(), told: told.clone(), clock: clock.clone(), costs });
        let uplink = Uplink { wire: wire.clone(), backend: backend.clone(), refusal, seen: Nanos(0) };
        let rate = host.link.rate;
        // A wire has the link's rate itself.
        let uplink: Box<dyn Port> = match is_wire {
            true => Box::new(uplink),
            false => Box::new(Paced::new(uplink, rate.unwrap_or(0), uplink_queue(rate), true)),
        };
        let mut numbered = rings.iter().zip(first..).zip(0..);
        let card = |_: &Vif| {
            let ((rings, guest), place) = numbered.next().expect("there are rings for each vif");
            let (rings, backend) = (rings.clone(), backend.clone());
            Ok(Box::new(Card { rings, backend, place, guest, shown: 0 }) as Box<dyn Port>)
        };
        let bridge = Bridge::open(&host.policy, &host.link, Some(uplink), card, &clock)?;
        let kicks = Vec::new();
        let policy = host.policy.clone();
        Ok(Host { bridge, policy, clock, wire, told, kicks, sleeps: None, wake: Nanos(0), wakeup: costs.wake })
    }

    /// Where its clock is: when the effects of the last round are.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.look()
    }

    /// A port has frames or room. Returns when the worker runs, if that is earlier than before.
    pub(crate) fn kick(&mut self, port: PortId, now: Nanos) -> Option<Nanos> {
        self.kicks.push(port);
        self.rouse(now)
    }

    /// Something happens at `time` that wakes the worker. Returns when it runs, if that is earlier than before.
    pub(crate) fn rouse(&mut self, time: Nanos) -> Option<Nanos> {
        // A worker that works is not done earlier for it.
        let at = self.awake_at(time).max(self.clock.look());
        (at < self.wake).then(|| {
            self.wake = at;
            at
        })
    }

    /// When a worker that is woken at `time` runs.
    fn awake_at(&self, time: Nanos) -> Nanos {
        match self.sleeps {
            Some((since, linger)) if time.since(since) > linger => time + self.wakeup,
            _ => time,
        }
    }

    /// One round of the worker at its time to wake. Sets when it runs next.
    pub(crate) fn run(&mut self, burst: &mut Burst, poller: &Poller) {
        self.clock.advance_to(self.wake);
        if self.sleeps.take().is_some() {
            self.bridge.disable_notifications();
        }
        for port in self.kicks.drain(..) {
            self.bridge.event(port, 0, poller, &mut self.clock.now(), &self.clock);
        }
        let now = self.clock.now();
        let round = self.bridge.round(burst, now, &self.clock);
        self.wake = self.clock.look();
        if round.busy {
            return;
        }
        if self.bridge.enable_notifications() {
            self.bridge.disable_notifications();
            return;
        }
        let due = round.next.min(self.bridge.next_event());
        let linger = if due == Nanos::NEVER { LINGER } else { SPIN };
        self.sleeps = Some((self.wake, linger));
        self.wake = if due == Nanos::NEVER { due } else { self.awake_at(due.max(self.wake)) };
    }

    /// Changes a setting, as `ctl set` does. Returns when the worker runs, if that is earlier than before.
    ///
    /// # Errors
    /// What the daemon would answer.
    pub(crate) fn set(&mut self, target: &str, setting: Setting, now: Nanos) -> Result<Option<Nanos>, String> {
        let mut next = self.policy.clone();
        next.apply(target, setting).map_err(|wrong| wrong.to_string())?;
        // What can be set needs no restart.
        for change in self.policy.changes(&next).unwrap_or_default() {
            let applied = self.bridge.apply(&change, &next, self.clock.look().max(now));
            applied.map_err(|error| error.to_string())?;
        }
        self.policy = next;
        Ok(self.rouse(now))
    }

    /// The counters of its uplink and its vifs.
    pub(crate) fn snapshot(&mut self) -> (Option<PortState>, Vec<VifState>) {
        self.bridge.snapshot(self.clock.look())
    }

    /// Its link's state.
    pub(crate) fn link(host: &scenario::Host, uplink: Option<PortState>) -> LinkState {
        let link = &host.link;
        LinkState {
            name: link.name.clone(),
            scheduler: link.scheduler.name().to_owned(),
            by_weight: link.scheduler.by_weight(),
            rate: link.rate,
            rx_rate: link.rx_rate,
            idle_timeout: link.idle_timeout.0,
            isolate: link.isolate,
            rx_pool: link.rx_pool,
            uplink,
            ..LinkState::default()
        }
    }
}
