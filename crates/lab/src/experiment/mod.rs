//! Experiments are data: a topology, a procedure, the number of repeats, and the claims of a source.
//!
//! [`Experiment::parse`] reads a file and checks all of it before anything starts. [`run`] boots the machines of its cases,
//! runs the procedure and judges the claims by the measurements. A procedure only computes: it turns its keys into a [`Plan`]
//! and the plan's outcomes into metrics.

mod case;
mod claim;
mod fault;
mod parse;
mod plan;
mod procedure;
mod record;
mod repeats;
mod run;
mod simulated;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeMap;

pub use case::{Background, Case, MOST_CPUS};
pub use claim::ClaimPlan;
pub use plan::{Account, Plan};
pub use procedure::Procedure;
pub use record::Record;
pub use repeats::Repeats;
pub use run::{Boot, Options, Watch, run};
pub use simulated::simulate;

use fairlane_report::{Claim, ResultFile};

use serde_json::Value;

use crate::machine::Backend;
use crate::{GuestPlan, MachineKind, Topology};

/// An experiment that passed all checks.
#[derive(Debug)]
pub struct Experiment {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// The published experiment it repeats, such as `002, figure 4`.
    pub source: String,
    /// The source's figure in words.
    pub figure: String,
    /// The kinds of machine it can run on.
    pub machines: Vec<MachineKind>,
    /// The guests' backends it can run with, if the machine has several.
    pub backends: Vec<Backend>,
    /// The factor on all rates and the link, by kind of machine, for kinds that cannot carry the source's rates.
    pub scale: BTreeMap<MachineKind, f64>,
    /// The CPUs of each guest by kind of machine, for kinds that are not placed as the topologies say.
    pub cpus: BTreeMap<MachineKind, Vec<Vec<usize>>>,
    /// How often each case is repeated.
    pub repeats: Repeats,
    /// The cases it compares: one or more.
    pub cases: Vec<Case>,
    /// The claims it judges.
    pub claims: Vec<ClaimPlan>,
}

/// A file of `experiments/`.
macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../experiments/", $name, ".toml")))
    };
}
/// The built-in experiments: name and text of the file.
pub const BUILT_IN: [(&str, &str); 23] = [
    built_in!("isolation-equal-rate"),
    built_in!("isolation-two-rates"),
    built_in!("isolation-unlimited"),
    built_in!("isolation-overactive"),
    built_in!("isolation-disk"),
    built_in!("priority-change"),
    built_in!("min-rate"),
    built_in!("isolation-cpu"),
    built_in!("delay-ping"),
    built_in!("delay-packet"),
    built_in!("transfer"),
    built_in!("early-ack-gain"),
    built_in!("alltoall"),
    built_in!("path-length"),
    built_in!("path-length-backend"),
    built_in!("early-ack-overhead"),
    built_in!("accept-rate"),
    built_in!("http-sizes"),
    built_in!("receive-stall"),
    built_in!("receive-flood"),
    built_in!("receive-shares"),
    built_in!("tenants"),
    built_in!("restart"),
];

impl Experiment {
    /// How long its measurements take at most, in seconds, without booting.
    pub fn seconds(&self) -> f64 {
        self.cases.iter().map(|case| case.procedure.seconds() * self.repeats.most() as f64).sum()
    }

    /// Whether it runs on this kind of machine.
    ///
    /// # Errors
    /// It does not; on which it does.
    pub fn runs_on(&self, kind: MachineKind) -> Result<(), String> {
        if self.machines.contains(&kind) {
            return Ok(());
        }
        let kinds: Vec<&str> = self.machines.iter().map(|kind| kind.name()).collect();
        Err(format!("{} does not run on machine {kind}; it runs on {}", self.name, kinds.join(", ")))
    }

    /// How many machines are booted one after another: consecutive cases with the same topology share one.
    pub fn boots(&self) -> usize {
        self.cases.chunk_by(|a, b| a.topology == b.topology).count()
    }

    /// Sets the backend of the guests' cards, and early ack in each case; without `early_ack` a case has it only if the file says
    /// so. Bare machines, which are there to compare with, do not change. Claims about another backend are removed.
    pub fn serve_by(&mut self, backend: Backend, early_ack: bool) {
        for case in self.cases.iter_mut().filter(|case| !case.topology.bare) {
            case.topology.backend = backend;
            case.topology.early_ack |= early_ack;
        }
        self.claims.retain(|claim| claim.backend.is_none_or(|about| about == backend));
    }

    /// Shortens it to a trial: two repeats at most and short loads. That is too little to judge a source's claims by.
    pub fn shorten(&mut self) {
        self.repeats = Repeats::Count(self.repeats.most().min(2));
        self.cases.iter_mut().for_each(|case| case.procedure.shorten());
    }

    /// Makes cases measure instructions instead of times, if their procedure and this kind of machine can. Claims about times
    /// are removed.
    pub fn count(&mut self, kind: MachineKind) {
        for case in &mut self.cases {
            let kind = if case.topology.bare { kind.bare() } else { kind };
            if case.procedure.count(kind.has_virtual_clock()) {
                // The doctor's own instructions must not be counted.
                case.topology = Topology { count: true, doctor: false, ..case.topology.clone() };
            }
        }
        let known = case::all_metrics(&self.cases);
        self.claims.retain(|claim| claim.faults(&known).is_empty());
    }

    /// The experiment's claims, judged by a result's metrics.
    fn verdicts(&self, result: &ResultFile) -> Vec<Claim> {
        self.claims.iter().map(|claim| claim.judge(&self.source, result)).collect()
    }

    /// Judges a result of this experiment that was written earlier, by the experiment as it is now: what follows from all cases
    /// together, and the claims, are computed anew from the result's metrics. Cases that the run did not have are left out, and so
    /// are claims about them or about another backend.
    pub fn judge(mut self, result: &mut ResultFile) {
        let setting = |case: &Case| {
            let name = if case.name.is_empty() { "-" } else { &case.name };
            result.settings.get(&format!("case {name}")).and_then(|case| case.get("topology"))
        };
        self.cases.retain(|case| setting(case).is_some());
        let topologies: Vec<_> = self.cases.iter().filter_map(setting).collect();
        let is = |topology: &Value, key: &str, value: Value| topology.get(key) == Some(&value);
        let by_fairlane = topologies.iter().any(|topology| is(topology, "backend", "fairlane".into()));
        let counted = !topologies.is_empty() && topologies.iter().all(|topology| is(topology, "count", true.into()));
        self.serve_by(if by_fairlane { Backend::Fairlane } else { Backend::Kernel }, false);
        if counted {
            // Which kind of machine it was matters to the length of a run only.
            self.count(MachineKind::Xen);
        }
        let known = case::all_metrics(&self.cases);
        self.claims.retain(|claim| claim.faults(&known).is_empty());
        let cases: Vec<_> = self.cases.iter().map(|case| case.finished(Record::default())).collect();
        if let Some(case) = self.cases.first() {
            case.procedure.compare(&cases, result);
        }
        result.source(&self.source, &self.figure);
        result.claims = self.verdicts(result);
    }

    /// Whether instructions are counted in each case.
    pub fn counts(&self) -> bool {
        self.cases.iter().all(|case| case.topology.count)
    }

    /// Fixes the number of repeats, for the virtual clock (icount): a replay cannot depend on what was measured. As emulation with
    /// that clock is slow, each case is repeated three times at most, the fewest that give an interval.
    pub fn fix_repeats(&mut self) {
        self.repeats = Repeats::Count(self.repeats.most().min(repeats::LEAST));
    }

    /// Places the guests as this kind of machine has them. Cases with another number of guests do not change.
    pub fn place(&mut self, kind: MachineKind) {
        let Some(cpus) = self.cpus.get(&kind) else { return };
        let cases = self.cases.iter_mut().filter(|case| case.topology.guests.len() == cpus.len());
        for (guest, cpus) in cases.flat_map(|case| case.topology.guests.iter_mut().zip(cpus)) {
            guest.cpus.clone_from(cpus);
        }
    }

    /// Multiplies every rate and the link by a factor, for a machine that cannot carry the source's rates.
    pub fn scale(&mut self, factor: f64) {
        for case in &mut self.cases {
            case.procedure.scale(factor);
            let topology = &mut case.topology;
            let of_guests = topology.guests.iter_mut().flat_map(GuestPlan::rates).map(|(_, rate)| rate);
            let rates = of_guests.chain([&mut topology.link, &mut topology.rx_link]);
            rates.flatten().for_each(|rate| *rate *= factor);
        }
    }
}
