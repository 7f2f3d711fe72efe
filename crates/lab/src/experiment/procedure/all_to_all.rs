//! The exchange of a parallel computation among guests, by the size of the messages: how long an iteration takes.
//!
//! The exchange is our own over TCP ([`fairlane_load::all_to_all`]), in the pattern of the Intel MPI Benchmarks'
//! Alltoall; no MPI library takes part.

use std::net::SocketAddr;

use fairlane_agent::{Command, Outcome};
use fairlane_load::all_to_all;
use fairlane_report::{Axis, Figure, ResultFile, Series, stats};
use serde::Deserialize;

use super::super::case::{Fault, guest_fault};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure, limits};
use crate::{Node, Topology};

/// Seconds from the background's start until it is steady.
const SETTLE: f64 = 1.0;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllToAll {
    /// The guests that take part.
    guests: Vec<usize>,
    /// Bytes from each to each other, each size in its turn.
    sizes: Vec<usize>,
    /// Iterations of a size.
    iterations: usize,
    /// Seconds for all; it is a failure not to be done by then.
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
        if self.sizes.is_empty() || self.sizes.iter().any(|size| *size > 64 << 20) {
            faults.push(("sizes", "sizes must be one or more, each at most 64 MiB, such as [1024]".to_owned()));
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
        let nodes: Vec<SocketAddr> = self.guests.iter().map(|guest| (at(Node::Guest(*guest)), port).into()).collect();
        let round = |bytes: &usize| all_to_all::Round { bytes: *bytes, iterations: self.iterations };
        let rounds: Vec<all_to_all::Round> = self.sizes.iter().map(round).collect();
        for (own, guest) in self.guests.iter().enumerate() {
            let spec = all_to_all::Spec { nodes: nodes.clone(), own, rounds: rounds.clone(), seconds: self.seconds };
            plan.start(Node::Guest(*guest), SETTLE, Command::AllToAll(spec));
        }
        plan
    }

    /// An iteration takes what it takes in the mean of all nodes: the benchmarks' t_avg.
    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let nodes: Vec<&Vec<all_to_all::Times>> = accounts
            .iter()
            .filter_map(|account| if let Outcome::Exchanged(times) = &account.outcome { Some(times) } else { None })
            .collect();
        for (index, size) in self.sizes.iter().enumerate() {
            let of_nodes = |iteration| nodes.iter().filter_map(move |times| times.get(index)?.seconds.get(iteration));
            let mean = |iteration| {
                let seconds: Vec<f64> = of_nodes(iteration).copied().collect();
                stats::mean(&seconds).map_or(f64::NAN, |seconds| seconds * 1e3)
            };
            let times: Vec<f64> = (0..self.iterations).map(mean).collect();
            record.add(&Self::name(*size), Statistic::Mean, "ms", times.iter().copied());
            let points = times.iter().map(|time| [index as f64, *time]);
            record.series(Series::new("times", "ms", Axis::new("place in sizes", "")).points(points));
        }
    }

    fn comparisons(&self, cases: usize) -> Vec<String> {
        if cases < 2 { Vec::new() } else { vec!["worst_slowdown".to_owned()] }
    }

    /// The worst slowdown: of all sizes the most times longer that an iteration takes in the last case than in the first.
    fn compare(&self, cases: &[Finished], result: &mut ResultFile) {
        let [first, .., last] = cases else { return };
        let time = |case: &Finished, size| stats::mean(case.record.samples(&Self::name(size)));
        let slowdowns = self.sizes.iter().filter_map(|size| Some(time(last, *size)? / time(first, *size)?));
        result.value("worst_slowdown", slowdowns.fold(f64::NAN, f64::max), "times");
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let names = cases.iter().map(|case| format!("{}times", case.prefix));
        let sizes = self.sizes.iter().map(|size| format!("{size} B"));
        let figure = Figure::bars("Time of an exchange").series(names).categories(sizes);
        vec![figure.x("bytes from each to each other").y("time of an iteration")]
    }
}
