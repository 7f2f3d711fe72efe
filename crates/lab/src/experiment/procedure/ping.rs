//! Round trips of echo requests to a guest, and their growth with the number of guests that share its CPU.

use fairlane_agent::{Command, Outcome};
use fairlane_load::ping;
use fairlane_report::{Axis, Figure, Metric, ResultFile, Series, stats};
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
/// The fewest cases that show whether a growth is straight.
const LEAST_CASES: usize = 3;

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

    fn comparisons(&self, cases: &[(&str, &Topology)]) -> Vec<String> {
        if cases.len() < LEAST_CASES {
            Vec::new()
        } else {
            ["growth", "growth_of_slice", "straightness"].map(str::to_owned).into()
        }
    }

    /// `growth` is the slope of the mean round trip over the number of neighbours, by least squares; `straightness` is the
    /// fraction of the variance it explains.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        if cases.len() < LEAST_CASES {
            return;
        }
        let point = |case: &Finished| {
            let mean = result.metrics.get(&format!("{}mean", case.prefix)).filter(|mean| mean.value.is_finite())?;
            Some((self.neighbours(case.topology) as f64, mean.value, mean.ci95))
        };
        let points: Vec<_> = cases.iter().filter_map(point).collect();
        let (slope, straightness) =
            slope(&points.iter().map(|(x, y, _)| [*x, *y]).collect::<Vec<_>>()).unwrap_or((f64::NAN, f64::NAN));
        let interval = slope_interval(&points).filter(|_| slope.is_finite());
        let slice = cases.first().map_or(f64::NAN, |case| waiting::slice(case.topology));
        let of_slice = interval.map(|ends| ends.map(|end| end / slice));
        result.metrics.insert("growth".to_owned(), Metric::derived(slope, interval, "ms a neighbour"));
        let of_slice = Metric::derived(slope / slice, of_slice, "slices a neighbour");
        result.metrics.insert("growth_of_slice".to_owned(), of_slice);
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

/// The slope's 95% interval, from those of the y, each given as x, y and interval. The slope is a weighted sum of the y, so their
/// distances to their intervals' ends add up in quadrature (Zou and Donner, "Construction of confidence limits about effect
/// measures", 2008). None if a y has no interval.
fn slope_interval(points: &[(f64, f64, Option<[f64; 2]>)]) -> Option<[f64; 2]> {
    let (slope, _) = slope(&points.iter().map(|(x, y, _)| [*x, *y]).collect::<Vec<_>>())?;
    let x = stats::mean(&points.iter().map(|(x, ..)| *x).collect::<Vec<_>>())?;
    let xx: f64 = points.iter().map(|(at, ..)| (at - x).powi(2)).sum();
    let mut squares = [0.0; 2];
    for (at, y, ends) in points {
        let weight = (at - x) / xx;
        let mut ends = (*ends)?.map(|end| (weight * (end - y)).powi(2));
        if weight < 0.0 {
            ends.reverse();
        }
        squares = [squares[0] + ends[0], squares[1] + ends[1]];
    }
    Some([slope - squares[0].sqrt(), slope + squares[1].sqrt()])
}

#[cfg(test)]
mod tests {
    use super::{slope, slope_interval};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_has_its_own_slope(a in -100.0..100.0f64, b in 0.1..100.0f64, n in 2usize..20) {
            let points: Vec<[f64; 2]> = (0..n).map(|x| [x as f64, a + b * x as f64]).collect();
            let (found, straightness) = slope(&points).unwrap();
            prop_assert!((found - b).abs() < 1e-6 * b.abs().max(1.0) && (straightness - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_slope_is_as_certain_as_its_points() {
        // Between two points a slope is a difference: 3 and 4 make 5. Each end has its own distance.
        let [low, high] = slope_interval(&[(0.0, 10.0, Some([7.0, 18.0])), (1.0, 30.0, Some([24.0, 34.0]))]).unwrap();
        assert!((low - 10.0).abs() < 1e-9 && (high - 25.0).abs() < 1e-9, "{low} {high}");
        assert_eq!(slope_interval(&[(0.0, 10.0, None), (1.0, 30.0, Some([24.0, 34.0]))]), None);
    }
}
