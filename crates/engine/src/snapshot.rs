//! Snapshots of a running backend, for `ctl`, `top` and metrics.
//!
//! Rates are in bits a second, sizes in bytes, times in nanoseconds. Counters only grow: a rate is the difference of two snapshots.

use crate::control::CaptureReport;
use crate::early::Seen;
use crate::waiting::Waiting;
use fairlane_core::ack::{Fallback, FlowView};
use fairlane_core::stats::{Counters, Drops};
use fairlane_core::time::SECOND;
use fairlane_policy::{Shares, Tenant};
use fairlane_port::Status;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A snapshot of everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Nanoseconds since the backend started.
    pub time: u64,
    /// The links, in the policy's order.
    pub links: Vec<LinkState>,
    /// The tenants, in the policy's order.
    #[serde(default)]
    pub tenants: Vec<TenantState>,
    /// The vifs, in the policy's order.
    pub vifs: Vec<VifState>,
    /// Vifs of files that are not served, as they could not be opened.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
}

/// A vif that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// As [`VifState::added`].
    pub added: bool,
}

impl Snapshot {
    /// What a tenant's vifs together sent, as a share of each link on which it has some: by tenant and link.
    pub fn tenant_shares(&self) -> BTreeMap<(&str, &str), f64> {
        let mut shares = BTreeMap::new();
        for vif in &self.vifs {
            if let Some(tenant) = &vif.tenant {
                *shares.entry((tenant.as_str(), vif.link.as_str())).or_default() += vif.share;
            }
        }
        shares
    }
}

/// A tenant's share of each link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantState {
    /// Its name.
    pub name: String,
    /// Relative share.
    pub weight: u32,
    /// Guaranteed rate; 0 for none.
    pub min_rate: u64,
    /// Guaranteed rates on some links in place of that one, by link.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub min_rate_on: BTreeMap<String, u64>,
    /// Highest rate.
    pub max_rate: Option<u64>,
    /// Bytes that `max_rate` lets pass at once after an idle time.
    pub burst: u64,
    /// Most frames a second.
    #[serde(default)]
    pub max_frames: Option<u64>,
    /// Frames that `max_frames` lets pass at once after an idle time.
    #[serde(default)]
    pub frame_burst: u64,
    /// Relative share of what its guests receive.
    #[serde(default)]
    pub rx_weight: u32,
    /// Guaranteed rate of what its guests receive; 0 for none.
    #[serde(default)]
    pub rx_min_rate: u64,
    /// Highest rate of what its guests receive.
    #[serde(default)]
    pub rx_max_rate: Option<u64>,
    /// Bytes that `rx_max_rate` lets pass at once after an idle time.
    #[serde(default)]
    pub rx_burst: u64,
    /// Most frames a second that its guests receive.
    #[serde(default)]
    pub rx_max_frames: Option<u64>,
    /// Frames that `rx_max_frames` lets pass at once after an idle time.
    #[serde(default)]
    pub rx_frame_burst: u64,
}

impl TenantState {
    /// The state of a tenant of a policy.
    pub fn new(tenant: &Tenant) -> TenantState {
        let Tenant { name, shares: Shares { tx, rx, .. }, min_rate_on } = tenant;
        TenantState {
            name: name.clone(),
            weight: tx.weight,
            min_rate: tx.min_rate,
            min_rate_on: min_rate_on.clone(),
            max_rate: tx.max_rate,
            burst: tx.burst,
            max_frames: tx.max_frames,
            frame_burst: tx.frame_burst,
            rx_weight: rx.weight,
            rx_min_rate: rx.min_rate,
            rx_max_rate: rx.max_rate,
            rx_burst: rx.burst,
            rx_max_frames: rx.max_frames,
            rx_frame_burst: rx.frame_burst,
        }
    }

    /// What is guaranteed to it on a link, in bits a second; 0 for nothing.
    pub fn min_rate_on(&self, link: &str) -> u64 {
        self.min_rate_on.get(link).copied().unwrap_or(self.min_rate)
    }
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkState {
    /// Its name.
    pub name: String,
    /// The scheduler's name in a policy.
    pub scheduler: String,
    /// Whether its vifs share by weight; if not, equally.
    pub by_weight: bool,
    /// Rate of what guests send to the uplink; unlimited if absent.
    pub rate: Option<u64>,
    /// Rate of what guests receive from the uplink; unlimited if absent.
    #[serde(default)]
    pub rx_rate: Option<u64>,
    /// A vif without a frame for this long counts as inactive.
    #[serde(alias = "delay")]
    pub idle_timeout: u64,
    /// Whether guests reach the uplink only.
    pub isolate: bool,
    /// The core its worker is pinned to.
    pub cpu: Option<usize>,
    /// Most bytes in all receive queues of the link together.
    #[serde(default)]
    pub rx_pool: u64,
    /// Nanoseconds since the backend started in which its worker moved frames, or had more to move while other threads had its core.
    #[serde(default)]
    pub busy: u64,
    /// Its uplink; none if guests reach only each other. Its `sent` counters are about frames from outside.
    pub uplink: Option<PortState>,
}

/// A guest's card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VifState {
    /// Its name.
    pub name: String,
    /// Its link's name.
    pub link: String,
    /// Its tenant's name, if it has one.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Whether it was added at run time, by a control client: no file names it, except the one for such changes.
    #[serde(default)]
    pub added: bool,
    /// Relative share.
    pub weight: u32,
    /// Guaranteed rate; 0 for none.
    pub min_rate: u64,
    /// Highest rate.
    pub max_rate: Option<u64>,
    /// Bytes that `max_rate` lets pass at once after an idle time.
    pub burst: u64,
    /// Most frames a second.
    #[serde(default)]
    pub max_frames: Option<u64>,
    /// Frames that `max_frames` lets pass at once after an idle time.
    #[serde(default)]
    pub frame_burst: u64,
    /// Its share, 0 to 1, of what the link's vifs sent to the uplink in the last whole second (longer if the link was asleep).
    /// Without an uplink: of everything they sent.
    pub share: f64,
    /// The vif or uplink whose ring has no room for its next frame.
    pub waits_for: Option<String>,
    /// How long frames waited for service.
    pub waiting: Waiting,
    /// How long its next frame has waited for service by now, in nanoseconds; 0 if none waits.
    #[serde(default)]
    pub unserved: u64,
    /// What its guest may receive, and its receive queue.
    #[serde(default)]
    pub receive: ReceiveState,
    /// Early ack, if it is on or still owes its guest data.
    #[serde(default)]
    pub early_ack: Option<EarlyState>,
    /// Its capture, until a client asks for the report.
    #[serde(default)]
    pub capture: Option<CaptureReport>,
    /// State and traffic.
    #[serde(flatten)]
    pub port: PortState,
}

impl VifState {
    /// For how long it is not served, in nanoseconds: its next frame has waited for a second or more.
    pub fn not_served(&self) -> Option<u64> {
        Some(self.unserved).filter(|nanos| *nanos >= SECOND)
    }

    /// Whether it has a share of its link, or would have if it were served.
    pub(crate) fn uses_link(&self) -> bool {
        self.share > 0.0 || self.not_served().is_some()
    }
}

/// What a guest may receive, and its receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveState {
    /// Relative share of what the link's guests receive.
    pub weight: u32,
    /// Guaranteed rate; 0 for none.
    pub min_rate: u64,
    /// Highest rate.
    pub max_rate: Option<u64>,
    /// Bytes that `max_rate` lets pass at once after an idle time.
    pub burst: u64,
    /// Most frames a second.
    #[serde(default)]
    pub max_frames: Option<u64>,
    /// Frames that `max_frames` lets pass at once after an idle time.
    #[serde(default)]
    pub frame_burst: u64,
    /// Most bytes in its queue.
    pub queue: u64,
    /// Frames that wait longer are dropped.
    pub timeout: u64,
    /// Frames in its queue.
    pub queued_frames: u64,
    /// Bytes in its queue, with 64 for each frame.
    pub queued_bytes: u64,
    /// How long frames waited for room in its ring; those that found room at once are in the first bucket.
    pub waiting: Waiting,
    /// Frames that were marked because of congestion (ECN) since the backend started.
    pub marked_frames: u64,
}

/// Early ack of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyState {
    /// `stalled`, `always`, or `off` while flows are draining.
    pub mode: String,
    /// Whether data are acknowledged early now.
    pub engaged: bool,
    /// Known flows.
    pub flows: u32,
    /// Bytes of retained copies.
    pub retained: u64,
    /// Most bytes of retained copies; at the limit nothing more is acknowledged early.
    #[serde(default)]
    pub limit: u64,
    /// ACKs sent for the guest. Like all following fields it counts since the backend started.
    pub early_acks: u64,
    /// Segments of the guest whose ACK was raised to what was acknowledged early.
    pub raised: u64,
    /// ACKs of the guest that repeated what was acknowledged early and were dropped.
    pub suppressed: u64,
    /// Segments retransmitted to the guest.
    pub retransmissions: u64,
    /// Senders that were reset because acknowledged data could not be delivered.
    pub resets: u64,
    /// Flows left to their two ends, by reason. Reasons that did not occur are omitted.
    pub fallbacks: BTreeMap<String, u64>,
}

/// A flow of early ack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowState {
    /// The guest's vif.
    pub vif: String,
    /// The outer VLAN; 0 if there is none.
    pub vlan: u16,
    /// Address and port outside.
    pub outside: SocketAddr,
    /// Address and port of the guest.
    pub inside: SocketAddr,
    /// `opening`, `idle`, `active`, `no_buffer`, `unexpected_sequence`, `draining` or `end_to_end`.
    pub state: String,
    /// Bytes of retained copies.
    pub retained: u32,
    /// Bytes of those that were acknowledged early and that the guest has not acknowledged.
    pub owed: u32,
    /// ACKs sent for the guest.
    pub early_acks: u32,
    /// ACKs of the guest that repeated what was acknowledged early and were dropped.
    pub suppressed: u32,
    /// Segments retransmitted to the guest.
    pub retransmissions: u32,
    /// Why it is draining or end-to-end.
    pub fallback: Option<String>,
}

impl EarlyState {
    pub(crate) fn new(seen: Seen) -> EarlyState {
        let Seen { mode, engaged, flows, retained, limit, stats } = seen;
        let reasons = Fallback::ALL.into_iter().map(|reason| (reason.name().to_owned(), stats.fallbacks(reason)));
        EarlyState {
            mode: mode.name().to_owned(),
            engaged,
            flows,
            retained,
            limit,
            early_acks: stats.early_acks,
            raised: stats.raised,
            suppressed: stats.suppressed,
            retransmissions: stats.retransmissions,
            resets: stats.resets,
            fallbacks: reasons.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl FlowState {
    pub(crate) fn new(vif: &str, flow: FlowView) -> FlowState {
        FlowState {
            vif: vif.to_owned(),
            vlan: flow.vlan,
            outside: flow.outside,
            inside: flow.inside,
            state: flow.state.name().to_owned(),
            retained: flow.retained,
            owed: flow.owed,
            early_acks: flow.early_acks,
            suppressed: flow.suppressed,
            retransmissions: flow.retransmissions,
            fallback: flow.fallback.map(|reason| reason.name().to_owned()),
        }
    }
}

/// State and traffic of a port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortState {
    /// Whether it carries frames.
    #[serde(flatten)]
    pub state: State,
    /// Frames taken from it.
    pub sent_frames: u64,
    /// Bytes of those.
    pub sent_bytes: u64,
    /// Frames put into it.
    pub received_frames: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Drops by reason: of frames that it sent, in the port itself, and of frames for its guest in front of its ring (`rx_`).
    /// Reasons that did not occur are omitted.
    pub drops: BTreeMap<String, u64>,
}

/// Whether a port carries frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// No frontend is connected.
    #[default]
    Waiting,
    /// Carries frames.
    Up,
    /// Its frontend broke a rule.
    Disabled {
        /// The rule.
        reason: String,
    },
}

impl State {
    /// The name in JSON and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Up => "up",
            State::Disabled { .. } => "disabled",
        }
    }
}

impl PortState {
    pub(crate) fn new(status: Status, counters: &Counters, lost: Drops) -> PortState {
        let drops = counters.drops.and(lost).and(counters.receive_drops);
        PortState {
            state: match status {
                Status::Waiting => State::Waiting,
                Status::Up => State::Up,
                Status::Disabled(reason) => State::Disabled { reason },
            },
            sent_frames: counters.sent_frames,
            sent_bytes: counters.sent_bytes,
            received_frames: counters.received_frames,
            received_bytes: counters.received_bytes,
            drops: drops.iter().map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
        }
    }
}
