//! The all-to-all exchange of a parallel computation among guests: the time of an iteration by message size.
//!
//! The exchange is Open MPI's MPI_Alltoall ([`fairlane_agent::mpi`]), timed as the Intel MPI Benchmarks' Alltoall is.

use fairlane_agent::{Command, Outcome, mpi};
use fairlane_report::{Axis, Figure, Metric, ResultFile, Series};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure};
use crate::{Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;

/// Seconds that the remote shells run longer than mpirun, whose message explains a failure better than theirs.
const GRACE: f64 = 2.0;

/// The largest message in bytes, as in the benchmarks.
const MOST_BYTES: usize = 4 << 20;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AllToAll {
    /// The participating guests.
    guests: Vec<usize>,
    /// Bytes from each guest to each other one; the sizes are measured one after the other.
    sizes: Vec<usize>,
    /// Iterations of a size.
    iterations: usize,
    /// The time limit for all sizes together, in seconds.
    seconds: f64,
}

impl AllToAll {
    fn name(size: usize) -> String {
        format!("time/{size}")
    }
}

impl Procedure for AllToAll {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> =
            self.guests.iter().filter_map(|guest| guest_fault("guests", *guest, topology)).collect();
        if self.guests.len() < 2 {
            faults.push(("guests", "guests must be two or more, such as [1, 2]".to_owned()));
        }
        if self.sizes.is_empty() || self.sizes.iter().any(|size| *size > MOST_BYTES) {
            faults.push(("sizes", "sizes must be one or more, each at most 4 MiB, such as [1024]".to_owned()));
        }
        if !topology.mpi {
            faults.push(("guests", "guests must have Open MPI: mpi = true in the topology".to_owned()));
        }
        limits(&mut faults, "iterations", self.iterations as f64, 1.0, 100_000.0);
        limits(&mut faults, "seconds", self.seconds, 1.0, 3600.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        self.sizes.iter().map(|size| Self::name(*size)).collect()
    }

    fn seconds(&self) -> f64 {
        SETTLE + self.seconds
    }

    fn shorten(&mut self) {
        self.iterations = self.iterations.min(20);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, port: u16) -> Plan {
        let mut plan = Plan::default();
        let nodes = self.guests.iter().map(|guest| at(Node::Guest(*guest))).collect();
        let (sizes, iterations, seconds) = (self.sizes.clone(), self.iterations, self.seconds);
        let spec = mpi::Spec { nodes, port, sizes, iterations, seconds };
        plan.start(Node::Guest(self.guests[0]), SETTLE, Command::MpiRun(spec));
        for node in self.guests[1..].iter().copied().map(Node::Guest) {
            let spec = mpi::ShellSpec { at: (at(node), port).into(), seconds: self.seconds() + GRACE };
            plan.serve(node, Command::MpiServe(spec));
        }
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let outcomes = accounts.iter().map(|account| &account.outcome);
        let times =
            outcomes.filter_map(|outcome| if let Outcome::Exchanged(times) = outcome { Some(times) } else { None });
        for (index, times) in times.flatten().enumerate() {
            let milliseconds = times.seconds.iter().map(|seconds| seconds * 1e3);
            record.add(&Self::name(times.bytes), Statistic::Mean, "ms", milliseconds.clone());
            let points = milliseconds.map(|time| [index as f64, time]);
            record.series(Series::new("times", "ms", Axis::new("place in sizes", "")).points(points));
        }
    }

    fn comparisons(&self, cases: &[(&str, &Topology)]) -> Vec<String> {
        if cases.len() < 2 { Vec::new() } else { vec!["worst_slowdown".to_owned()] }
    }

    /// The worst slowdown: the largest ratio, over all sizes, of an iteration's time in the last case to that in the first.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        let [first, .., last] = cases else { return };
        let time = |case: &Finished, size| result.metrics.get(&format!("{}{}", case.prefix, Self::name(size)));
        let slowdowns = self.sizes.iter().filter_map(|size| Some(time(last, *size)?.ratio_to(time(first, *size)?)));
        let worst = slowdowns.filter(|(times, _)| times.is_finite()).max_by(|(a, _), (b, _)| a.total_cmp(b));
        let (times, interval) = worst.unwrap_or((f64::NAN, None));
        result.metrics.insert("worst_slowdown".to_owned(), Metric::derived(times, interval, "times"));
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = cases.iter().map(|case| format!("{}times", case.prefix));
        let sizes = self.sizes.iter().map(|size| format!("{size} B"));
        let figure = Figure::bars("Time of an exchange").series(names).categories(sizes);
        vec![figure.x("bytes from each to each other").y("time of an iteration")]
    }
}
