//! Static tracepoints of the datapath (USDT, provider `fairlane`), for bpftrace and perf.
//!
//! A tracepoint that nobody listens to costs a comparison with its semaphore, which its listener raises; its arguments are computed
//! only then. Names are passed as an address and a length, for `str()` of bpftrace. The engine fires them; `docs/reference/tracepoints.md`
//! says what they mean.

use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use probe::probe_lazy;

/// Frames of a port were taken from its ring; their bytes, and how long the first of them waited for this service.
#[inline]
pub fn take(vif: &str, frames: u64, bytes: u64, waited: Nanos) {
    probe_lazy!(fairlane, take, vif.as_ptr(), vif.len(), frames, bytes, waited.0);
}

/// The switch judged a frame of a port, and with it those that follow with the same addresses. `to` names the receiver: empty if they
/// are dropped, `*` for all ports. `head` is the frame's first bytes.
#[inline]
pub fn verdict<'a>(vif: &str, head: &[u8], to: impl Fn() -> &'a str) {
    probe_lazy!(fairlane, verdict, vif.as_ptr(), vif.len(), to().as_ptr(), to().len(), head.as_ptr(), head.len());
}

/// Frames were put into a port; their bytes, and how long they waited in its receive queue.
#[inline]
pub fn put(vif: &str, frames: u64, bytes: u64, waited: Nanos) {
    probe_lazy!(fairlane, put, vif.as_ptr(), vif.len(), frames, bytes, waited.0);
}

/// Whose frames were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Frames that the port's peer sent.
    Sent = 0,
    /// Frames for the port's peer, in front of its ring.
    Received = 1,
}

/// Frames of a port or for it were dropped.
#[inline]
pub fn drop(vif: &str, frames: u64, reason: DropReason, whose: Whose) {
    let name = || reason.name();
    probe_lazy!(fairlane, drop, vif.as_ptr(), vif.len(), frames, name().as_ptr(), name().len(), whose as usize);
}

/// What early ack did for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// It sends ACKs for the guest.
    Ack,
    /// It put copies of segments into the guest's ring again.
    Retransmit,
}

impl Early {
    fn name(self) -> &'static str {
        match self {
            Early::Ack => "ack",
            Early::Retransmit => "retransmit",
        }
    }
}

/// Early ack composed frames for a vif's guest.
#[inline]
pub fn early_ack(vif: &str, frames: u64, what: Early) {
    let name = || what.name();
    probe_lazy!(fairlane, early_ack, vif.as_ptr(), vif.len(), frames, name().as_ptr(), name().len());
}
