//! The one-way delay of datagrams to a guest, from the driver domain or another node.

use fairlane_agent::{Command, Outcome};
use fairlane_load::{ServeSpec, delay};
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure, waiting};
use crate::{Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;
/// Seconds to wait for datagrams after the last one was sent.
const RECEIVE_TIMEOUT: f64 = 0.5;
/// Extra seconds for the sender to relate the two clocks: 120 exchanges, each of which a guest that waits for its CPU may
/// delay by two slices or more.
const CLOCKS: f64 = 15.0;
/// Payload of a datagram, in bytes.
const PAYLOAD: usize = 64;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PacketDelay {
    /// The sender.
    #[serde(deserialize_with = "super::node")]
    from: Node,
    /// The guest that receives.
    guest: usize,
    /// Datagrams a repeat.
    count: u32,
    /// Seconds from one datagram to the next.
    interval: f64,
}

impl Procedure for PacketDelay {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = guest_fault("guest", self.guest, topology).into_iter().collect();
        faults.extend(node_fault("from", self.from, topology));
        limits(&mut faults, "count", self.count.into(), 10.0, 1e6);
        limits(&mut faults, "interval", self.interval, 0.0005, 10.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        ["median", "lost", "uncertainty"].into_iter().chain(waiting::METRICS).map(str::to_owned).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + CLOCKS + f64::from(self.count) * self.interval + RECEIVE_TIMEOUT
    }

    fn shorten(&mut self) {
        self.count = self.count.min(3000);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let guest = Node::Guest(self.guest);
        plan.serve(guest, Command::DelayServe(ServeSpec { port, seconds: self.seconds() }));
        let to = (at(guest), port).into();
        let (count, interval, patience) = (self.count, self.interval, RECEIVE_TIMEOUT);
        plan.start(self.from, SETTLE, Command::DelaySend(delay::Spec { to, size: PAYLOAD, count, interval, patience }));
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let Some(Account { outcome: Outcome::Delays(delays), .. }) = accounts.get(1) else { return };
        let milliseconds = |delay: &Option<f64>| delay.map_or(f64::NAN, |seconds| seconds * 1e3);
        let values: Vec<f64> = delays.seconds.iter().map(milliseconds).collect();
        let points = values.iter().enumerate().map(|(index, value)| [index as f64 * self.interval, *value]);
        record.series(Series::new("delay", "ms", Axis::time()).points(points));
        record.add("median", Statistic::Median, "ms", values.iter().copied());
        let lost = delays.seconds.iter().filter(|delay| delay.is_none()).count();
        record.add("lost", Statistic::OfRepeats, "%", [100.0 * lost as f64 / delays.seconds.len().max(1) as f64]);
        record.add("uncertainty", Statistic::OfRepeats, "ms", [delays.uncertainty * 1e3]);
    }

    fn conclude(&self, topology: &Topology, record: &mut Record) {
        waiting::conclude(topology, record, "delay");
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        waiting::figures("Packet delay", "delay", cases, "delay")
    }
}
