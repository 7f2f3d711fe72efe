//! Which ring to take from next.
//!
//! A scheduler holds no packets: they wait in the guests' rings, and a full ring is what slows a guest down. It is asked
//! for the next port, told what serving it cost, and that is all. So nothing that was accepted is ever dropped before
//! the wire (seed 002, section VII.A: "the scheduled packets will not be dropped before they reach the wire").

mod bucket;
mod fair;
pub(crate) mod heap;
mod list;
mod netback;
mod throttle;
mod wrr;

use crate::PortId;
use crate::time::Nanos;

/// Bytes of a budget where bytes are what is shared.
const BUDGET_BYTES: u64 = 16 * 1024;

/// Frames of a budget, except netback's.
const BUDGET_FRAMES: u32 = 32;

/// The schedulers, with what is theirs alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Byte-accurate weighted fair sharing with guarantees.
    Fair,
    /// The weighted round robin of seed 002, section VII.
    Wrr {
        /// Off: every vif has the same weight (the seed's `prioritize`).
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

    /// Whether ports share by their weights; if not, all alike.
    pub fn by_weight(self) -> bool {
        match self {
            SchedulerKind::Fair => true,
            SchedulerKind::Wrr { prioritize } => prioritize,
            SchedulerKind::Netback { .. } => false,
        }
    }
}

/// The scheduler of a link, without ports. `link_rate` is the uplink's, in bits a second, if it has one; a port that ran
/// empty keeps its place for `idle_timeout`.
pub fn build(kind: SchedulerKind, link_rate: Option<u64>, idle_timeout: Nanos) -> Box<dyn Scheduler> {
    match kind {
        SchedulerKind::Fair => Box::new(fair::Fair::new(link_rate, idle_timeout)),
        SchedulerKind::Wrr { prioritize } => Box::new(wrr::Wrr::new(prioritize, idle_timeout)),
        SchedulerKind::Netback { refill } => Box::new(netback::Netback::new(refill)),
    }
}

/// Where a port stands; the same for every scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Never configured, or removed.
    #[default]
    Unknown,
    /// Not active: nothing to send, or its destination has no room.
    Idle,
    /// Active, and in its queue.
    Ready,
    /// Offered by `next` and not yet charged. What the charge says is left is newer than any activation.
    Serving,
    /// Active, but out of its rate.
    Held,
}

/// How much may be taken from a ring before the scheduler is asked again.
///
/// Frames are taken while both figures have something left; the first frame is taken whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of frames, without the virtio or netif header.
    pub bytes: u64,
    /// Frames.
    pub frames: u32,
}

/// The scheduler's answer to "who is next?".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Take from this port up to the budget, then [`Scheduler::charge`] it.
    Serve(PortId, Budget),
    /// Every active port waits for its rate; ask again at this time.
    WaitUntil(Nanos),
    /// No port is active.
    Idle,
}

/// What serving a port took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of all frames taken: what `max_rate` and `min_rate` count.
    pub bytes: u64,
    /// The part of `bytes` that went to the uplink, and so took the link's time.
    pub uplink_bytes: u64,
    /// Frames taken.
    pub frames: u64,
    /// Time of the backend spent on them, measured, in nanoseconds.
    pub nanos: u64,
}

/// What is left of a port's frames after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// More frames wait.
    Backlogged,
    /// The ring is empty; [`Scheduler::activate`] tells when it is not.
    Empty,
    /// The next frame waits for its destination; [`Scheduler::activate`] tells when that has room. The port keeps its place.
    Blocked,
}

/// What an administrator grants a port. Rates are in bits a second, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Relative share of what is contended, 1 to 10000.
    pub weight: u32,
    /// Served first until this rate is met; 0 for none.
    pub min_rate: u64,
    /// Never served above this rate; `None` for no limit.
    pub max_rate: Option<u64>,
    /// Bytes that `max_rate` lets pass at once after a silence.
    pub burst: u64,
}

/// Decides which of the active ports is served next.
pub trait Scheduler: Send {
    /// Adds a port, or changes the share of a known one without disturbing its place. A new port is not active.
    fn configure(&mut self, port: PortId, share: Share, now: Nanos);

    /// Forgets a port; unknown ones are ignored.
    fn remove(&mut self, port: PortId);

    /// Says that a port has frames that can move. Harmless if it is active already or unknown.
    fn activate(&mut self, port: PortId, now: Nanos);

    /// Chooses the port to serve. The same port is not offered again before it was charged.
    fn next(&mut self, now: Nanos) -> Next;

    /// Tells what the service that [`Scheduler::next`] asked for took (nothing, if the ring turned out empty), and what is left.
    fn charge(&mut self, port: PortId, cost: Cost, after: After, now: Nanos);

    /// Takes back an offer of [`Scheduler::next`] that cannot be used now: it is as if the port had not been offered.
    /// Several offers are taken back latest first.
    fn defer(&mut self, port: PortId, now: Nanos);
}
