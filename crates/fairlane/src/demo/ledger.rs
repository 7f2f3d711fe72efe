//! Accounts for all frames: each one that a guest sent was forwarded, or dropped for a reason.

use fairlane_engine::snapshot::{PortState, Snapshot};
use std::collections::BTreeMap;

/// The frames of an act, counted at each point of their path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    /// Datagrams that programs in the guests passed to their kernels.
    pub sent_datagrams: u64,
    /// Frames taken from the senders' rings.
    pub taken: u64,
    /// Frames put onto the wire.
    pub on_wire: u64,
    /// Frames of the senders that were dropped between ring and wire, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Frames that left the wire.
    pub off_wire: u64,
    /// Frames put into the receiver's ring.
    pub delivered: u64,
    /// Frames dropped between wire and receiver, by reason.
    pub undelivered: BTreeMap<String, u64>,
    /// Datagrams that the program in the receiver received.
    pub received_datagrams: u64,
}

impl Ledger {
    /// The difference of two snapshots, both taken while no frame was in flight.
    pub(super) fn between(before: &Snapshot, after: &Snapshot, sent_datagrams: u64, received_datagrams: u64) -> Ledger {
        let [before, after] = [Ledger::of(before), Ledger::of(after)];
        Ledger {
            sent_datagrams,
            taken: after.taken - before.taken,
            on_wire: after.on_wire - before.on_wire,
            dropped: difference(after.dropped, &before.dropped),
            off_wire: after.off_wire - before.off_wire,
            delivered: after.delivered - before.delivered,
            undelivered: difference(after.undelivered, &before.undelivered),
            received_datagrams,
        }
    }

    /// The counters of a snapshot, since the backend's start.
    fn of(snapshot: &Snapshot) -> Ledger {
        let uplink =
            |link: &str| snapshot.links.iter().find(|known| known.name == link).and_then(|link| link.uplink.clone());
        let on = |link: &'static str| snapshot.vifs.iter().filter(move |vif| vif.link == link);
        let (near, far) = (uplink("senders"), uplink("receivers"));
        Ledger {
            taken: on("senders").map(|vif| vif.port.sent_frames).sum(),
            on_wire: near.as_ref().map_or(0, |port| port.received_frames),
            dropped: on("senders").fold(BTreeMap::new(), |sum, vif| add(sum, &vif.port)),
            off_wire: far.as_ref().map_or(0, |port| port.sent_frames),
            delivered: on("receivers").map(|vif| vif.port.received_frames).sum(),
            undelivered: far.iter().fold(BTreeMap::new(), add),
            ..Ledger::default()
        }
    }

    /// Frames dropped between ring and wire.
    pub(super) fn drops(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Frames that were neither forwarded nor dropped; 0 if all counters agree.
    pub(super) fn unaccounted(&self) -> u64 {
        let near = self.taken.abs_diff(self.on_wire + self.drops());
        let wire = self.on_wire.abs_diff(self.off_wire);
        let far = self.off_wire.abs_diff(self.delivered + self.undelivered.values().sum::<u64>());
        near + wire + far
    }
}

fn add(mut sum: BTreeMap<String, u64>, port: &PortState) -> BTreeMap<String, u64> {
    for (reason, count) in &port.drops {
        *sum.entry(reason.clone()).or_default() += count;
    }
    sum
}

/// The difference of counters that only grow, without those that did not change.
fn difference(mut after: BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (reason, count) in &mut after {
        *count -= before.get(reason).copied().unwrap_or(0);
    }
    after.retain(|_, count| *count > 0);
    after
}
