//! What came of a simulation: counts of its traffic, and each vif's share beside what it is due.

use crate::flow::Tally;
use crate::host::Host;
use crate::world::World;
use fairlane_engine::Waiting;
use fairlane_engine::reading::Reading;
use fairlane_engine::snapshot::{LinkState, PortState, Snapshot, TenantState, VifState};
use std::collections::BTreeMap;

/// What came of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seconds that were counted: from when it settled until its end.
    pub seconds: f64,
    /// What was counted of each traffic.
    pub tallies: Vec<Tally>,
    /// Bytes that arrived from each flow in the counted time, by traffic.
    pub flows: Vec<Vec<u64>>,
    /// The hosts.
    pub hosts: Vec<HostOutcome>,
    /// What came of each guarantee on all hosts together: each second from the start on.
    pub guarantees: Vec<Vec<Second>>,
    /// Changes that were refused, a sentence each.
    pub refused: Vec<String>,
    /// Events that were simulated, rounds of workers among them.
    pub events: u64,
    /// Frames that were on their way at the end.
    pub waiting: u64,
}

/// What came of a host.
#[derive(Clone, Debug)]
pub struct HostOutcome {
    /// Its name.
    pub name: String,
    /// Its uplink's counters.
    pub uplink: PortState,
    /// Its vifs.
    pub vifs: Vec<VifOutcome>,
}

/// What came of a vif, in the counted time unless otherwise stated.
#[derive(Clone, Debug)]
pub struct VifOutcome {
    /// Its name.
    pub name: String,
    /// Its tenant.
    pub tenant: Option<String>,
    /// Its guaranteed rate; 0 for none, or if its host's policy changed in that time.
    pub min_rate: u64,
    /// Rate that its guest sent, in bits a second.
    pub sent_rate: f64,
    /// Rate that its guest received.
    pub received_rate: f64,
    /// Its part of what the link's vifs sent.
    pub share: f64,
    /// The part that weights give it among those that sent; none if it did not, or its host's policy changed in that time.
    pub due: Option<f64>,
    /// Whether its guest had more to send at the end than its ring holds.
    pub waits: bool,
    /// How long its frames waited for the worker, from the start on.
    pub waiting: Waiting,
    /// Frames that were dropped from the start on, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// A second of a tenant's guarantee on all hosts together. Rates are in bits a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// What its guests sent.
    pub sent: f64,
    /// What hosts guaranteed to it at the end of the second.
    pub in_force: u64,
    /// Whether its guests wanted all of the guarantee, where there was room for it: by what hosts claimed.
    pub wanted: bool,
}

/// The counters of each host's vifs when the scenario settled: bytes sent and received.
pub(crate) type Baseline = Vec<Vec<(u64, u64)>>;

impl Outcome {
    pub(crate) fn baseline(world: &mut World) -> Baseline {
        let bytes = |vif: VifState| (vif.port.sent_bytes, vif.port.received_bytes);
        let of = |host: &mut Host| host.snapshot().1.into_iter().map(bytes).collect();
        world.hosts.iter_mut().map(of).collect()
    }

    pub(crate) fn of(mut world: World, baseline: Baseline) -> Outcome {
        let scenario = world.scenario;
        let seconds = scenario.end().since(scenario.settle).as_secs_f64();
        let mut waiting = world.in_flight();
        let mut hosts = Vec::new();
        let mut guests = world.guests.iter();
        for (index, (plan, host)) in scenario.hosts.iter().zip(&mut world.hosts).enumerate() {
            let (uplink, mut vifs) = host.snapshot();
            waiting += host.wire.lock().waiting().count() as u64;
            waiting += vifs.iter().map(|vif| vif.receive.queued_frames).sum::<u64>();
            let mut is_waiting = Vec::new();
            for guest in guests.by_ref().take(vifs.len()) {
                waiting += guest.rings.lock().waiting().count() as u64 + guest.queue.len() as u64;
                is_waiting.push(!guest.queue.is_empty() || guest.rings.lock().free() == 0);
            }
            let before = |vif: usize| baseline.get(index).and_then(|vifs| vifs.get(vif)).copied().unwrap_or_default();
            let sent = |vif: usize, state: &VifState| state.port.sent_bytes - before(vif).0;
            let all: u64 = vifs.iter().enumerate().map(|(vif, state)| sent(vif, state)).sum();
            for (vif, state) in vifs.iter_mut().enumerate() {
                state.share = sent(vif, state) as f64 / all.max(1) as f64;
            }
            // What is due is that of one policy, and so is what is guaranteed.
            let changes = scenario.changes.iter().any(|change| change.host == index && change.at > scenario.settle);
            let mut dues = dues(Host::link(plan, uplink.clone()), &host.policy, &vifs);
            if changes {
                dues.fill(None);
            }
            let rate = |bytes: u64| bytes as f64 * 8.0 / seconds;
            let vif = |(vif, (state, due)): (usize, (VifState, Option<f64>))| VifOutcome {
                sent_rate: rate(sent(vif, &state)),
                received_rate: rate(state.port.received_bytes - before(vif).1),
                share: state.share,
                due,
                waits: is_waiting[vif],
                name: state.name,
                tenant: state.tenant,
                min_rate: if changes { 0 } else { state.min_rate },
                waiting: state.waiting,
                drops: state.port.drops,
            };
            let vifs = vifs.into_iter().zip(dues).enumerate().map(vif).collect();
            hosts.push(HostOutcome { name: plan.name.clone(), uplink: uplink.unwrap_or_default(), vifs });
        }
        let mut flows = vec![Vec::new(); scenario.traffic.len()];
        for flow in &world.flows {
            flows[flow.traffic].push(flow.arrived_bytes);
            let again = flow.stream.as_ref().map_or(0, |stream| stream.sender.retransmitted);
            world.tallies[flow.traffic].retransmitted += again;
        }
        let (guarantees, refused) = (world.division.seconds(), std::mem::take(&mut world.refused));
        Outcome { seconds, events: world.events(), tallies: world.tallies, flows, hosts, guarantees, refused, waiting }
    }

    /// Frames that were made, answers and announcements among them.
    pub fn made(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.made).sum()
    }

    /// Frames that arrived.
    pub fn arrived(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.arrived).sum()
    }

    /// Frames that did not arrive, by the reason.
    pub fn drops(&self) -> BTreeMap<String, u64> {
        let mut drops = BTreeMap::new();
        let mut add = |reason: &str, frames: u64| {
            if frames > 0 {
                *drops.entry(reason.to_owned()).or_default() += frames;
            }
        };
        for host in &self.hosts {
            let of_vifs = host.vifs.iter().map(|vif| &vif.drops);
            for (reason, frames) in of_vifs.chain([&host.uplink.drops]).flatten() {
                add(reason, *frames);
            }
        }
        for tally in &self.tallies {
            add("fabric", tally.lost_in_fabric);
            add("guest_queue_full", tally.refused_by_guest);
        }
        drops
    }
}

/// What weights give the vifs of a link, as `fairlane top` shows it.
fn dues(link: LinkState, policy: &fairlane_policy::Policy, vifs: &[VifState]) -> Vec<Option<f64>> {
    let (links, tenants) = (vec![link], policy.tenants.iter().map(TenantState::new).collect());
    let later = Snapshot { time: 1, links, tenants, vifs: vifs.to_vec(), ..Snapshot::default() };
    let reading = Reading::between(&Snapshot::default(), &later);
    reading.map_or_else(Vec::new, |reading| reading.vifs.into_iter().map(|vif| vif.due).collect())
}
