//! Round trips of echo requests to a guest, and their growth with the number of guests that share its CPU.

use fairlane_agent::{Command, Outcome};
use fairlane_load::ping;
use fairlane_report::{Axis, Figure, ResultFile, Series, stats};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits, node_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure, waiting};
use crate::{Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;
/// Seconds to wait for replies after the last request.
const REPLY_TIMEOUT: f64 = 1.0;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ping {
    /// The node that sends requests.
    #[serde(deserialize_with = "super::node")]
    from: Node,
    /// The guest that replies.
    guest: usize,
    /// Requests per repeat.
    count: u16,
    /// Seconds from one request to the next.
    interval: f64,
}

impl Ping {
    /// The number of guests that share a CPU with the one that replies.
    fn neighbours(&self, topology: &Topology) -> usize {
        let own = self.guest.checked_sub(1).and_then(|index| topology.guests.get(index));
        let shares = |cpus: &Vec<usize>| own.is_some_and(|own| cpus.iter().any(|cpu| own.cpus.contains(cpu)));
        topology.guests.iter().filter(|guest| shares(&guest.cpus)).count().saturating_sub(1)
    }
}

impl Procedure for Ping {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = guest_fault("guest", self.guest, topology).into_iter().collect();
        faults.extend(node_fault("from", self.from, topology));
        limits(&mut faults, "count", self.count.into(), 10.0, 65_535.0);
        limits(&mut faults, "interval", self.interval, 0.001, 10.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        ["mean", "median", "lost"].into_iter().chain(waiting::METRICS).map(str::to_owned).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + f64::from(self.count) * self.interval + REPLY_TIMEOUT
    }

    fn shorten(&mut self) {
        self.count = self.count.min(100);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, _: u16) -> Plan {
        let mut plan = Plan::default();
        let to = at(Node::Guest(self.guest));
        let spec = ping::Spec { to, count: self.count, interval: self.interval, patience: REPLY_TIMEOUT };
        plan.start(self.from, SETTLE, Command::Ping(spec));
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let Some(Account { outcome: Outcome::RoundTrips(trips), .. }) = accounts.first() else { return };
        let milliseconds = |trip: &Option<f64>| trip.map_or(f64::NAN, |seconds| seconds * 1e3);
        let values: Vec<f64> = trips.seconds.iter().map(milliseconds).collect();
        let points = values.iter().enumerate().map(|(index, value)| [index as f64 * self.interval, *value]);
        record.series(Series::new("rtt", "ms", Axis::time()).points(points));
        record.add("mean", Statistic::Mean, "ms", values.iter().copied());
        record.add("median", Statistic::Median, "ms", values.iter().copied());
        let lost = trips.seconds.iter().filter(|trip| trip.is_none()).count();
        record.add("lost", Statistic::OfRepeats, "%", [100.0 * lost as f64 / trips.seconds.len().max(1) as f64]);
    }

    fn conclude(&self, topology: &Topology, record: &mut Record) {
        waiting::conclude(topology, record, "rtt");
    }

    fn comparisons(&self, cases: usize) -> Vec<String> {
        if cases < 3 { Vec::new() } else { ["growth", "growth_of_slice", "straightness"].map(str::to_owned).into() }
    }

    /// `growth` is the slope of the mean round trip over the number of neighbours, by least squares; `straightness` is the
    /// fraction of the variance it explains.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        let point =
            |case: &Finished| Some([self.neighbours(case.topology) as f64, stats::mean(case.record.samples("mean"))?]);
        let points: Vec<[f64; 2]> = cases.iter().filter_map(point).collect();
        if self.comparisons(cases.len()).is_empty() {
            return;
        }
        let (slope, straightness) = slope(&points).unwrap_or((f64::NAN, f64::NAN));
        let slice = cases.first().map_or(f64::NAN, |case| waiting::slice(case.topology));
        result.value("growth", slope, "ms a neighbour");
        result.value("growth_of_slice", slope / slice, "slices a neighbour");
        result.value("straightness", straightness, "");
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        waiting::figures("Round trips", "round trip", cases, "rtt")
    }
}

/// Slope and R² of a line by least squares; none if x or y does not vary.
fn slope(points: &[[f64; 2]]) -> Option<(f64, f64)> {
    let of = |index: usize| points.iter().map(|point| point[index]).collect::<Vec<f64>>();
    let (x, y) = (stats::mean(&of(0))?, stats::mean(&of(1))?);
    let sum = |f: &dyn Fn(&[f64; 2]) -> f64| points.iter().map(f).sum::<f64>();
    let (xx, xy, yy) = (sum(&|p| (p[0] - x).powi(2)), sum(&|p| (p[0] - x) * (p[1] - y)), sum(&|p| (p[1] - y).powi(2)));
    (xx > 0.0 && yy > 0.0).then(|| (xy / xx, xy * xy / (xx * yy)))
}

#[cfg(test)]
mod tests {
    use super::slope;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_has_its_own_slope(a in -100.0..100.0f64, b in 0.1..100.0f64, n in 2usize..20) {
            let points: Vec<[f64; 2]> = (0..n).map(|x| [x as f64, a + b * x as f64]).collect();
            let (found, straightness) = slope(&points).unwrap();
            prop_assert!((found - b).abs() < 1e-6 * b.abs().max(1.0) && (straightness - 1.0).abs() < 1e-6);
        }
    }
}
