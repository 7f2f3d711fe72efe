//! How long a guest's network stands still while its backend's daemon is replaced by the next one: the longest time between two
//! answers to pings, around each replacement.

use fairlane_agent::{Command, Outcome};
use fairlane_load::ping;
use fairlane_report::{Axis, Figure, Series};
use serde::Deserialize;

use super::super::fault::{Fault, guest_fault, limits};
use super::super::plan::{Account, Addresses, Plan};
use super::super::record::{Record, Statistic};
use super::{Finished, Procedure, succeeded};
use crate::machine::{Replacement, replace};
use crate::{Error, Machine, Node, Topology};

/// Seconds from the first ping to the first replacement.
const LEAD: f64 = 1.0;
/// Seconds to wait for replies after the last ping.
const REPLY_TIMEOUT: f64 = 2.0;

/// The procedure's keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Replace {
    /// The guest that the external machine pings.
    guest: usize,
    /// How the daemon is replaced; not at all if not given.
    how: Option<Replacement>,
    /// Replacements in a repeat.
    times: u16,
    /// Seconds from one to the next.
    every: f64,
    /// Seconds from one ping to the next.
    interval: f64,
}

impl Replace {
    /// When each replacement begins, in seconds after the first ping.
    fn begins(&self) -> impl Iterator<Item = f64> {
        (0..self.times).map(|number| LEAD + f64::from(number) * self.every)
    }

    /// The number of pings, until the last replacement is over.
    fn count(&self) -> u16 {
        ((LEAD + f64::from(self.times) * self.every) / self.interval) as u16
    }
}

impl Procedure for Replace {
    fn faults(&self, topology: &Topology) -> Vec<Fault> {
        let mut faults: Vec<Fault> = guest_fault("guest", self.guest, topology).into_iter().collect();
        limits(&mut faults, "times", self.times.into(), 1.0, 100.0);
        limits(&mut faults, "every", self.every, 0.5, 60.0);
        limits(&mut faults, "interval", self.interval, 0.001, 1.0);
        faults
    }

    fn metrics(&self, _: &Topology) -> Vec<String> {
        ["gap", "gap/worst", "lost"].map(str::to_owned).into()
    }

    fn seconds(&self) -> f64 {
        f64::from(self.count()) * self.interval + REPLY_TIMEOUT
    }

    fn shorten(&mut self) {
        self.times = self.times.min(2);
    }

    fn scale(&mut self, _: f64) {}

    fn plan(&self, _: &Topology, at: Addresses, _: u16) -> Plan {
        let mut plan = Plan::default();
        let (to, interval) = (at(Node::Guest(self.guest)), self.interval);
        let spec = ping::Spec { to, count: self.count(), interval, patience: REPLY_TIMEOUT };
        plan.start(Node::External, 0.0, Command::Ping(spec));
        if let Some(how) = self.how {
            self.begins().for_each(|begin| plan.start(Node::Host, begin, replace(how)));
        }
        plan
    }

    fn read(&self, _: &Topology, _: Addresses, accounts: &[Account], record: &mut Record) {
        let Some(Account { outcome: Outcome::RoundTrips(trips), .. }) = accounts.first() else { return };
        let gap = |begin| 1e3 * trips.gap(self.interval, begin..begin + self.every);
        let gaps: Vec<f64> = self.begins().map(gap).collect();
        let points = self.begins().zip(gaps.iter().copied()).map(<[f64; 2]>::from);
        record.series(Series::new("gap", "ms", Axis::new("replacement begins", "s")).points(points));
        record.add("gap", Statistic::Median, "ms", gaps);
        record.add("lost", Statistic::OfRepeats, "pings", [trips.lost() as f64]);
    }

    fn observe(&self, _: &Topology, machine: &dyn Machine, accounts: &[Account], _: &mut Record) -> Result<(), Error> {
        succeeded(machine, accounts, "the daemon was not replaced")
    }

    fn conclude(&self, _: &Topology, record: &mut Record) {
        let worst = record.samples("gap").iter().copied().fold(f64::NAN, f64::max);
        record.set("gap/worst", "ms", worst);
    }

    fn figures(&self, cases: &[Finished]) -> Vec<Figure> {
        let gaps = cases.iter().map(|case| format!("{}gap", case.prefix));
        vec![Figure::cdf("Longest time without an answer").series(gaps).x("gap")]
    }
}
