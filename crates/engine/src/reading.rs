//! The figures of the time between two snapshots: rates, waits, and what is due, for people and pages.

use crate::due::Due;
use crate::snapshot::{LinkState, PortState, Snapshot, TenantState, VifState};
use crate::waiting::Waiting;
use serde::Serialize;
use std::collections::HashMap;

/// The figures of the time between two snapshots. Rates are in bits a second, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Nanoseconds since the backend started.
    pub time: u64,
    /// Nanoseconds between the snapshots.
    #[serde(skip)]
    pub elapsed: u64,
    /// The links, in the policy's order.
    pub links: Vec<LinkReading>,
    /// The tenants, in the policy's order.
    pub tenants: Vec<TenantReading>,
    /// The vifs, in the policy's order.
    pub vifs: Vec<VifReading>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkReading {
    /// Its state in the later snapshot.
    #[serde(flatten)]
    pub seen: LinkState,
    /// Rate sent to the uplink. Without an uplink: the rate its vifs sent.
    pub out_rate: f64,
    /// Rate received from the uplink. Without an uplink: the rate its vifs received.
    pub in_rate: f64,
    /// Part of the time, 0 to 1, in which its worker had frames to move.
    pub busy: f64,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReading {
    /// Its state in the later snapshot.
    #[serde(flatten)]
    pub seen: TenantState,
    /// Rate its guests sent.
    pub sent_rate: f64,
    /// Rate its guests received.
    pub received_rate: f64,
    /// Its part of each link that its guests use, in the policy's order.
    pub links: Vec<TenantPart>,
}

/// A tenant's part of a link.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantPart {
    /// The link's name.
    pub link: String,
    /// What its vifs sent, 0 to 1, as [`VifState::share`].
    pub share: f64,
    /// What weights give them, as [`VifReading::due`].
    pub due: f64,
}

/// A vif.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VifReading {
    /// Its state in the later snapshot.
    #[serde(flatten)]
    pub seen: VifState,
    /// Rate its guest sent.
    pub sent_rate: f64,
    /// Frames that its guest sent per second.
    #[serde(skip)]
    pub sent_frames: f64,
    /// Rate its guest received.
    pub received_rate: f64,
    /// The share of the link that its weight gives it among the vifs that use the link, 0 to 1; none if it does not use it.
    pub due: Option<f64>,
    /// Frames dropped per second.
    pub drop_rate: f64,
    /// Upper bound of the median wait.
    pub wait_p50: Option<u64>,
    /// Upper bound of 99% of its waits.
    pub wait_p99: Option<u64>,
    /// Upper bound of 99% of the waits of frames for its guest.
    pub rx_wait_p99: Option<u64>,
    /// Waits of this time.
    #[serde(skip)]
    pub waits: Waiting,
    /// For how much of this time a frame of its guest waited for service, in nanoseconds, whether it was served meanwhile or not.
    #[serde(skip)]
    pub waited: u64,
    /// Waits of frames for its guest in this time.
    #[serde(skip)]
    pub rx_waits: Waiting,
}

impl Reading {
    /// Compares two snapshots of one backend; none if the backend was restarted in between.
    pub fn between(earlier: &Snapshot, later: &Snapshot) -> Option<Reading> {
        let elapsed = later.time.checked_sub(earlier.time).filter(|nanos| *nanos > 0)?;
        let seconds = elapsed as f64 / 1e9;
        let before: HashMap<&str, &VifState> = earlier.vifs.iter().map(|vif| (vif.name.as_str(), vif)).collect();
        let due = Due::of(later);
        let vif = |vif: &VifState| {
            // A vif that is new has sent and received nothing yet.
            let old = before.get(vif.name.as_str()).copied().unwrap_or(vif);
            let (waits, rx_waits) = (vif.waiting.since(&old.waiting), vif.receive.waiting.since(&old.receive.waiting));
            let drops = |port: &PortState| port.drops.values().sum();
            VifReading {
                sent_rate: rate(old.port.sent_bytes, vif.port.sent_bytes, seconds),
                sent_frames: rate(old.port.sent_frames, vif.port.sent_frames, seconds) / 8.0,
                received_rate: rate(old.port.received_bytes, vif.port.received_bytes, seconds),
                due: due.of_vif(vif),
                drop_rate: rate(drops(&old.port), drops(&vif.port), seconds) / 8.0,
                wait_p50: waits.quantile(0.5),
                wait_p99: waits.quantile(0.99),
                rx_wait_p99: rx_waits.quantile(0.99),
                waited: (waits.sum + vif.unserved).saturating_sub(old.unserved),
                waits,
                rx_waits,
                seen: vif.clone(),
            }
        };
        let vifs: Vec<VifReading> = later.vifs.iter().map(vif).collect();
        let mut of_links: HashMap<&str, (f64, f64)> = HashMap::new();
        let mut of_tenants: HashMap<&str, (f64, f64)> = HashMap::new();
        for vif in &vifs {
            let tenant = vif.seen.tenant.as_deref().map(|tenant| of_tenants.entry(tenant).or_default());
            for (sent, received) in tenant.into_iter().chain([of_links.entry(&vif.seen.link).or_default()]) {
                *sent += vif.sent_rate;
                *received += vif.received_rate;
            }
        }
        let link = |link: &LinkState| {
            let old = earlier.links.iter().find(|old| old.name == link.name);
            let (out_rate, in_rate) = match (&link.uplink, old.and_then(|old| old.uplink.as_ref())) {
                (Some(now), Some(old)) => (
                    rate(old.received_bytes, now.received_bytes, seconds),
                    rate(old.sent_bytes, now.sent_bytes, seconds),
                ),
                _ => of_links.get(link.name.as_str()).copied().unwrap_or_default(),
            };
            let busy = link.busy.saturating_sub(old.map_or(link.busy, |old| old.busy)) as f64 / 1e9 / seconds;
            LinkReading { seen: link.clone(), out_rate, in_rate, busy }
        };
        let (shares, dues) = (later.tenant_shares(), due.of_tenants());
        let tenant = |tenant: &TenantState| {
            let (sent_rate, received_rate) = of_tenants.get(tenant.name.as_str()).copied().unwrap_or_default();
            let part = |link: &LinkState| {
                let key = (tenant.name.as_str(), link.name.as_str());
                Some(TenantPart { link: link.name.clone(), share: *shares.get(&key)?, due: *dues.get(&key)? })
            };
            let links = later.links.iter().filter_map(part).collect();
            TenantReading { seen: tenant.clone(), sent_rate, received_rate, links }
        };
        Some(Reading {
            time: later.time,
            elapsed,
            links: later.links.iter().map(link).collect(),
            tenants: later.tenants.iter().map(tenant).collect(),
            vifs,
        })
    }
}

/// Bits per second between two counts of bytes; 0 if the counter was reset.
fn rate(before: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 * 8.0 / seconds
}
