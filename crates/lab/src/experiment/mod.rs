//! Experiments are data: a machine's plan, a procedure, how often, and what a source claims to come of it.
//!
//! [`Experiment::parse`] reads a file and checks all of it before anything starts. [`run`] boots the machines of its cases,
//! performs the procedure and judges the claims by what was measured. A procedure says what to do as a [`Plan`] and
//! reads what came of it; it neither starts nor waits for anything itself.

mod case;
mod claim;
mod fault;
mod parse;
mod plan;
mod procedure;
mod record;
mod repeats;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use case::{Background, Case, MOST_CPUS};
pub use claim::ClaimPlan;
pub use plan::{Account, Plan};
pub use procedure::Procedure;
pub use record::Record;
pub use repeats::Repeats;
pub use run::{Boot, Options, Watch, run};

use crate::machine::Backend;
use crate::{MachineKind, Topology};

/// An experiment, checked.
#[derive(Debug)]
pub struct Experiment {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// Whose experiment it repeats, such as `002, figure 4`.
    pub source: String,
    /// The source's figure in words.
    pub figure: String,
    /// The kinds of machine it can run on.
    pub machines: Vec<MachineKind>,
    /// The guests' backends it can run with, on a machine that has a choice.
    pub backends: Vec<Backend>,
    /// The factor on all rates and the link, by kind of machine, where one cannot carry the source's.
    pub scale: BTreeMap<MachineKind, f64>,
    /// How often each case is repeated.
    pub repeats: Repeats,
    /// What is compared: one or more.
    pub cases: Vec<Case>,
    /// What the source claims.
    pub claims: Vec<ClaimPlan>,
}

/// A file of `experiments/`.
macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../experiments/", $name, ".toml")))
    };
}
/// The experiments that come with the lab: name and text of the file.
pub const BUILT_IN: [(&str, &str); 17] = [
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
    built_in!("alltoall"),
    built_in!("path-length"),
    built_in!("path-length-backend"),
    built_in!("early-ack-overhead"),
    built_in!("accept-rate"),
    built_in!("http-sizes"),
];

impl Experiment {
    /// How long it takes at most on its machines, in seconds, without booting.
    pub fn seconds(&self) -> f64 {
        self.cases.iter().map(|case| case.procedure.seconds() * self.repeats.most() as f64).sum()
    }

    /// How many machines are booted one after another: cases in a row with the same topology share one.
    pub fn boots(&self) -> usize {
        self.cases.chunk_by(|a, b| a.topology == b.topology).count()
    }

    /// Has its machines serve guests' cards by a backend, with early ack in each case, or only where the file says so. A bare
    /// machine is there to be compared with, and claims about another backend are not made.
    pub fn serve_by(&mut self, backend: Backend, early_ack: bool) {
        for case in self.cases.iter_mut().filter(|case| !case.topology.bare) {
            case.topology.backend = backend;
            case.topology.early_ack |= early_ack;
        }
        self.claims.retain(|claim| claim.backend.is_none_or(|about| about == backend));
    }

    /// Shortens it to a trial: few repeats and short loads. What it measures is then too little to judge a source by.
    pub fn shorten(&mut self) {
        self.repeats = Repeats::Count(self.repeats.most().min(2));
        self.cases.iter_mut().for_each(|case| case.procedure.shorten());
    }

    /// Has cases measure instructions instead of times, where that can be, on a kind of machine. Claims about times are not made
    /// then.
    pub fn count(&mut self, kind: MachineKind) {
        for case in &mut self.cases {
            let kind = if case.topology.bare { kind.bare() } else { kind };
            if case.procedure.count(kind.keeps_time()) {
                // What the doctor executes is not to be counted.
                case.topology = Topology { count: true, doctor: false, ..case.topology.clone() };
            }
        }
        let known = case::all_metrics(&self.cases);
        self.claims.retain(|claim| claim.faults(&known).is_empty());
    }

    /// Whether instructions are counted in each case.
    pub fn counts(&self) -> bool {
        self.cases.iter().all(|case| case.topology.count)
    }

    /// Fixes how often each case is repeated: what is done may not depend on what was measured, and as each instruction is
    /// emulated in turn, three times at most. That is the fewest repeats whose spread says something.
    pub fn fix_repeats(&mut self) {
        self.repeats = Repeats::Count(self.repeats.most().min(repeats::LEAST));
    }

    /// Multiplies every rate and the link by a factor, for a machine that cannot carry the source's.
    pub fn scale(&mut self, factor: f64) {
        for case in &mut self.cases {
            case.procedure.scale(factor);
            let topology = &mut case.topology;
            let of_guests = topology.guests.iter_mut().flat_map(|guest| [&mut guest.rate, &mut guest.min_rate]);
            let rates = of_guests.chain([&mut topology.link]);
            rates.flatten().for_each(|rate| *rate *= factor);
        }
    }
}
