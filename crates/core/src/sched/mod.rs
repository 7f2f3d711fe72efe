//! Which port is served next.
//!
//! A scheduler holds no packets: they wait in the guests' rings, and a full ring slows its guest down. The caller asks
//! for the next port, serves it and reports the cost. So no accepted packet is ever dropped before the wire (Adamczyk
//! and Chydzinski 2011, section VII.A: "the scheduled packets will not be dropped before they reach the wire").

mod bucket;
mod fair;
pub(crate) mod heap;
mod list;
mod netback;
mod tenants;
mod throttle;
mod wrr;

pub use bucket::Bucket;

use crate::time::Nanos;
use crate::{PortId, TenantId};

/// Bytes of a budget, in schedulers that share bytes.
const BUDGET_BYTES: u64 = 16 * 1024;

/// Frames of a budget, except netback's.
const BUDGET_FRAMES: u32 = 32;

/// The schedulers and their own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Byte-accurate weighted fair sharing with guarantees.
    Fair,
    /// The weighted round robin of Adamczyk and Chydzinski (2011), section VII.
    Wrr {
        /// If off, every vif has the same weight (`prioritize` in the paper).
        prioritize: bool,
    },
    /// Round robin with a token bucket, as Linux netback does.
    Netback {
        /// How often a bucket is refilled (netback's credit interval, 50 ms).
        refill: Nanos,
    },
}

impl SchedulerKind {
    /// The name in a policy file.
    pub fn name(self) -> &'static str {
        match self {
            SchedulerKind::Fair => "fair",
            SchedulerKind::Wrr { .. } => "wrr",
            SchedulerKind::Netback { .. } => "netback",
        }
    }

    /// Whether ports share by weight; if not, all count the same.
    pub fn by_weight(self) -> bool {
        match self {
            SchedulerKind::Fair => true,
            SchedulerKind::Wrr { prioritize } => prioritize,
            SchedulerKind::Netback { .. } => false,
        }
    }
}

/// Builds a scheduler without ports. `link_rate` is the uplink's rate in bits a second, if limited; a port whose ring
/// ran empty keeps its place for `idle_timeout`.
pub fn build(kind: SchedulerKind, link_rate: Option<u64>, idle_timeout: Nanos) -> Box<dyn Scheduler> {
    match kind {
        SchedulerKind::Fair => Box::new(fair::Fair::new(link_rate, idle_timeout)),
        SchedulerKind::Wrr { prioritize } => Box::new(wrr::Wrr::new(prioritize, idle_timeout)),
        SchedulerKind::Netback { refill } => Box::new(netback::Netback::new(refill)),
    }
}

/// Builds [`SchedulerKind::Fair`] for a link whose ports may belong to tenants.
pub fn build_for_tenants(link_rate: Option<u64>, idle_timeout: Nanos) -> Box<dyn Scheduler> {
    Box::new(tenants::Tenants::new(link_rate, idle_timeout))
}

/// A port's state, common to all schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Never configured, or removed.
    #[default]
    Unknown,
    /// Not active: nothing to send, or no room at the destination.
    Idle,
    /// Active and queued.
    Ready,
    /// Offered by `next` and not yet charged. An activation now is ignored: the charge reports newer state.
    Serving,
    /// Active, but waiting for tokens of its `max_rate` or `max_frames`.
    Held,
}

/// How much a port may send before the scheduler is asked again.
///
/// The port sends while both figures are above zero; the first frame is sent whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of frames, without the virtio or netif header.
    pub bytes: u64,
    /// Frames.
    pub frames: u32,
}

/// The scheduler's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Serve this port up to the budget, then [`Scheduler::charge`] it.
    Serve(PortId, Budget),
    /// Every active port is above its `max_rate` or `max_frames`; ask again at this time.
    WaitUntil(Nanos),
    /// No port is active.
    Idle,
}

/// The cost of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of all frames; `max_rate` and `min_rate` count these.
    pub bytes: u64,
    /// The part of `bytes` that went to the uplink and so used its time.
    pub uplink_bytes: u64,
    /// Frames.
    pub frames: u64,
    /// Frames on a wire: a large frame counts as the segments that it is cut into. `max_frames` counts these.
    pub segments: u64,
    /// Measured backend time, in nanoseconds.
    pub nanos: u64,
}

/// What is left in a port's ring after a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// More frames wait.
    Backlogged,
    /// The ring is empty; [`Scheduler::activate`] reports new frames.
    Empty,
    /// The next frame's destination has no room; [`Scheduler::activate`] reports when it has. The port keeps its place.
    Blocked,
}

/// A port's configured share. Rates are in bits a second, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Relative share of what is contended, 1 to 10000.
    pub weight: u32,
    /// Served first until this rate is met; 0 for none.
    pub min_rate: u64,
    /// Never served above this rate; `None` for no limit.
    pub max_rate: Option<u64>,
    /// Bytes that may exceed `max_rate` at once after an idle time: the token bucket's size.
    pub burst: u64,
    /// Most frames a second, as a wire counts them; `None` for no limit.
    pub max_frames: Option<u64>,
    /// Frames that may exceed `max_frames` at once after an idle time.
    pub frame_burst: u64,
}

impl Share {
    /// A share of this weight, without guarantees and limits.
    pub const fn of_weight(weight: u32) -> Share {
        Share { weight, min_rate: 0, max_rate: None, burst: 0, max_frames: None, frame_burst: 0 }
    }

    /// Whether it has a highest rate, in bits or frames.
    #[inline]
    pub const fn is_limited(&self) -> bool {
        self.max_rate.is_some() || self.max_frames.is_some()
    }
}

/// Decides which of the active ports is served next.
pub trait Scheduler: Send {
    /// Adds a port, or changes the share of a known one without disturbing its place. A new port is not active.
    fn configure(&mut self, port: PortId, share: Share, now: Nanos);

    /// Adds a tenant, or changes its share. Schedulers without tenants ignore it.
    fn configure_tenant(&mut self, _tenant: TenantId, _share: Share, _now: Nanos) {}

    /// Removes a tenant without ports; an unknown one is ignored.
    fn remove_tenant(&mut self, _tenant: TenantId) {}

    /// Assigns a port that is to be configured next to a known tenant, or to none. It forgets the port's earlier state.
    /// Schedulers without tenants do no more than that.
    fn assign(&mut self, port: PortId, _tenant: Option<TenantId>) {
        self.remove(port);
    }

    /// Removes a port; an unknown one is ignored.
    fn remove(&mut self, port: PortId);

    /// Reports that a port has frames that can be forwarded. Ignored if the port is already active or unknown.
    fn activate(&mut self, port: PortId, now: Nanos);

    /// Chooses the port to serve. It is not offered again until it was charged.
    fn next(&mut self, now: Nanos) -> Next;

    /// Reports the cost of the service that [`Scheduler::next`] offered (zero if the ring was empty) and what is left.
    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos);

    /// Withdraws an offer of [`Scheduler::next`] that cannot be served now, as if the port had not been offered.
    /// Several offers are withdrawn in reverse order.
    fn defer(&mut self, port: PortId, now: Nanos);
}
