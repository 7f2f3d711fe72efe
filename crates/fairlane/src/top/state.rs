//! The figures of the time between two snapshots, and their history over a minute.

use crate::figures;
use fairlane_engine::Waiting;
use fairlane_engine::snapshot::{LinkState, PortState, Snapshot, State, VifState};
use std::collections::{HashMap, VecDeque};

/// Length of a [`History`], in nanoseconds.
const MINUTE: u64 = 60_000_000_000;

/// The figures of the time between two snapshots. Rates are in bits per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reading {
    /// Nanoseconds since the backend started.
    pub time: u64,
    /// The links, in the policy's order.
    pub links: Vec<LinkReading>,
    /// The vifs, in the policy's order.
    pub vifs: Vec<VifReading>,
}

/// A link.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinkReading {
    /// Its name.
    pub name: String,
    /// Its scheduler's name.
    pub scheduler: String,
    /// Rate limit of its uplink; none if unlimited.
    pub rate: Option<u64>,
    /// Rate sent to the uplink. Without an uplink: the rate its vifs sent.
    pub out: f64,
    /// Rate received from the uplink. Without an uplink: the rate its vifs received.
    pub into: f64,
    /// State of the uplink, if it has one.
    pub uplink: Option<State>,
}

/// A vif.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct VifReading {
    /// Its state in the later snapshot.
    pub seen: VifState,
    /// Rate its guest sent.
    pub sent: f64,
    /// Rate its guest received.
    pub received: f64,
    /// The share of the link that its weight gives it among the vifs that use the link, 0 to 1; none if it does not use it.
    pub due: Option<f64>,
    /// Frames dropped per second.
    pub drops: f64,
    /// Upper bound of the median wait, in nanoseconds.
    pub p50: Option<u64>,
    /// Upper bound of 99% of its waits, in nanoseconds.
    pub p99: Option<u64>,
    /// Upper bound of 99% of the waits of frames for its guest, in nanoseconds.
    pub rx_p99: Option<u64>,
}

impl Reading {
    /// Compares two snapshots of one backend; none if the backend was restarted in between.
    pub(super) fn between(earlier: &Snapshot, later: &Snapshot) -> Option<Reading> {
        let seconds = later.time.checked_sub(earlier.time).filter(|nanos| *nanos > 0)? as f64 / 1e9;
        let before: HashMap<&str, &VifState> = earlier.vifs.iter().map(|vif| (vif.name.as_str(), vif)).collect();
        let weights = Weights::of(later);
        let vif = |vif: &VifState| {
            // A vif that is new has sent and received nothing yet.
            let old = before.get(vif.name.as_str()).copied().unwrap_or(vif);
            let waits = newer_waits(&old.waiting, &vif.waiting);
            let drops = |port: &PortState| port.drops.values().sum();
            let used = vif.share > 0.0;
            VifReading {
                sent: rate(old.port.sent_bytes, vif.port.sent_bytes, seconds),
                received: rate(old.port.received_bytes, vif.port.received_bytes, seconds),
                due: used.then(|| weights.due(later, vif)),
                drops: rate(drops(&old.port), drops(&vif.port), seconds) / 8.0,
                p50: figures::wait_quantile(&waits, 0.5),
                p99: figures::wait_quantile(&waits, 0.99),
                rx_p99: figures::wait_quantile(&newer_waits(&old.receive.waiting, &vif.receive.waiting), 0.99),
                seen: vif.clone(),
            }
        };
        let vifs: Vec<VifReading> = later.vifs.iter().map(vif).collect();
        let link = |link: &LinkState| {
            let of_link = || vifs.iter().filter(|vif| vif.seen.link == link.name);
            let old = earlier.links.iter().find(|old| old.name == link.name).and_then(|old| old.uplink.as_ref());
            let (out, into) = match (&link.uplink, old) {
                (Some(now), Some(old)) => (
                    rate(old.received_bytes, now.received_bytes, seconds),
                    rate(old.sent_bytes, now.sent_bytes, seconds),
                ),
                _ => (of_link().map(|vif| vif.sent).sum(), of_link().map(|vif| vif.received).sum()),
            };
            let (name, scheduler) = (link.name.clone(), link.scheduler.clone());
            let uplink = link.uplink.as_ref().map(|uplink| uplink.state.clone());
            LinkReading { name, scheduler, rate: link.rate, out, into, uplink }
        };
        Some(Reading { time: later.time, links: later.links.iter().map(link).collect(), vifs })
    }
}

/// Bits per second between two counts of bytes; 0 if the counter was reset.
fn rate(before: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 * 8.0 / seconds
}

/// The vif's weight; 1 if its link's scheduler ignores weights.
fn weight(seen: &Snapshot, vif: &VifState) -> u32 {
    let ignored = seen.links.iter().any(|link| link.name == vif.link && !link.by_weight);
    if ignored { 1 } else { vif.weight }
}

/// Sums of the weights of those that use a link.
struct Weights<'a> {
    /// Of each link: tenants, and vifs without one.
    links: HashMap<&'a str, f64>,
    /// Of each tenant on each link.
    tenants: HashMap<(&'a str, &'a str), f64>,
}

impl<'a> Weights<'a> {
    fn of(seen: &'a Snapshot) -> Weights<'a> {
        let mut weights = Weights { links: HashMap::new(), tenants: HashMap::new() };
        for vif in seen.vifs.iter().filter(|vif| vif.share > 0.0) {
            let link = weights.links.entry(vif.link.as_str()).or_default();
            match &vif.tenant {
                None => *link += f64::from(weight(seen, vif)),
                Some(tenant) => {
                    let own = weights.tenants.entry((&vif.link, tenant)).or_insert_with(|| {
                        *link += tenant_weight(seen, tenant);
                        0.0
                    });
                    *own += f64::from(vif.weight);
                }
            }
        }
        weights
    }

    /// The share of its link that a vif's weight gives it, and its tenant's.
    fn due(&self, seen: &Snapshot, vif: &VifState) -> f64 {
        let link = self.links[vif.link.as_str()];
        match &vif.tenant {
            None => f64::from(weight(seen, vif)) / link,
            Some(tenant) => {
                let of_tenant = f64::from(vif.weight) / self.tenants[&(vif.link.as_str(), tenant.as_str())];
                tenant_weight(seen, tenant) / link * of_tenant
            }
        }
    }
}

fn tenant_weight(seen: &Snapshot, name: &str) -> f64 {
    seen.tenants.iter().find(|tenant| tenant.name == name).map_or(0.0, |tenant| f64::from(tenant.weight))
}

/// The waits of the later histogram that are not in the earlier one.
fn newer_waits(before: &Waiting, now: &Waiting) -> Waiting {
    let pairs = now.buckets.iter().zip(&before.buckets);
    Waiting {
        buckets: pairs.map(|(now, before)| now.saturating_sub(*before)).collect(),
        sum: now.sum.saturating_sub(before.sum),
    }
}

/// The rate that each vif sent during the last minute.
#[derive(Default)]
pub(super) struct History {
    /// End of the last sample, nanoseconds since the backend started.
    now: u64,
    vifs: HashMap<String, VecDeque<Sample>>,
}

/// A mean rate over an interval.
struct Sample {
    from: u64,
    to: u64,
    sent: f64,
}

impl History {
    /// Adds a reading of the time since `from`. Vifs that are gone are removed.
    pub(super) fn add(&mut self, from: u64, reading: &Reading) {
        self.now = reading.time;
        let mut old = std::mem::take(&mut self.vifs);
        for vif in &reading.vifs {
            let mut samples = old.remove(&vif.seen.name).unwrap_or_default();
            samples.push_back(Sample { from, to: reading.time, sent: vif.sent });
            let begin = self.now.saturating_sub(MINUTE);
            while samples.front().is_some_and(|sample| sample.to <= begin) {
                samples.pop_front();
            }
            self.vifs.insert(vif.seen.name.clone(), samples);
        }
    }

    /// The mean rates of `count` equal parts of the minute, the latest last; none for parts without samples.
    pub(super) fn means(&self, vif: &str, count: u64) -> Vec<Option<f64>> {
        let samples = self.vifs.get(vif);
        // Times are shifted by a minute, so that the first minute of a backend does not begin below zero.
        let begin = |part: u64| self.now + MINUTE * part / count;
        let mean = |part| {
            let (mut bits, mut time) = (0.0, 0.0);
            for sample in samples.into_iter().flatten() {
                let (from, to) = (sample.from + MINUTE, sample.to + MINUTE);
                let overlap = to.min(begin(part + 1)).saturating_sub(from.max(begin(part))) as f64;
                bits += sample.sent * overlap;
                time += overlap;
            }
            (time > 0.0).then(|| bits / time)
        };
        (0..count).map(mean).collect()
    }
}
