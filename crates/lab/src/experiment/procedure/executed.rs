//! Instructions that an emulated host executed between two marks, by component.

use std::collections::BTreeSet;

use fairlane_agent::Outcome;
use fairlane_report::{Axis, Series};

use super::super::plan::Account;
use crate::path::{Bill, Component, Counts, Domain, Domains};
use crate::{Error, Machine, Topology};

/// The caption of their figures.
pub(super) const CAPTION: &str = "Instructions, counted in emulation. They do not show cache and TLB misses, nor the \
                           hardware's cost of entering and leaving the hypervisor.";

/// The numbers of the marks that a plan made, in order.
pub(super) fn marks(accounts: &[Account]) -> Vec<usize> {
    let number = |account: &Account| match account.outcome {
        Outcome::Marked { number, .. } => Some(number),
        _ => None,
    };
    accounts.iter().filter_map(number).collect()
}

/// The instructions of the measured CPUs between two marks.
pub(super) struct Executed {
    /// All instructions up to the machine's first mark, which was made before any guest started.
    pub before: Counts,
    /// By component and address.
    pub bill: Bill,
    between: Counts,
    cpus: BTreeSet<usize>,
}

impl Executed {
    /// Reads what a machine's emulator counted between two marks, given by number. None if it does not count.
    ///
    /// # Errors
    /// Those of reading the marks' files.
    pub(super) fn between(
        machine: &dyn Machine,
        topology: &Topology,
        marks: [usize; 2],
    ) -> Result<Option<Executed>, Error> {
        let files = machine.marks();
        let file = |number: usize| number.checked_sub(1).and_then(|index| files.get(index));
        let (Some(before), [Some(from), Some(to)]) = (file(1), marks.map(file)) else { return Ok(None) };
        let (before, from, to) = (Counts::read(before)?, Counts::read(from)?, Counts::read(to)?);
        let domains = Domains::learn(&before, &to);
        let cpus = topology.measured_cpus();
        let between = to.since(&from);
        let bill = Bill::of(&between, &domains, &cpus);
        Ok(Some(Executed { before, bill, between, cpus }))
    }

    /// Instructions of each component and in `total`, divided by `each`, the number of packets or connections.
    pub(super) fn shares(&self, each: f64) -> impl Iterator<Item = (&'static str, f64)> {
        let of_components = Component::ALL.map(|component| (component.name(), self.bill.instructions(component)));
        of_components.into_iter().chain([("total", self.total())]).map(move |(name, count)| (name, count as f64 / each))
    }

    /// All instructions.
    pub(super) fn total(&self) -> u64 {
        self.between.executed(&self.cpus)
    }

    /// The fraction of them, 0 to 1, executed outside the guest.
    pub(super) fn outside_guest(&self) -> f64 {
        let of_guest = [Component::Kernel(Domain::Guest), Component::User(Domain::Guest)];
        1.0 - of_guest.map(|component| self.bill.instructions(component)).iter().sum::<u64>() as f64
            / self.total() as f64
    }

    /// Instructions of the CPU that executed the most.
    pub(super) fn busiest(&self) -> u64 {
        let of_cpus = self.cpus.iter().map(|cpu| self.between.executed(&BTreeSet::from([*cpu])));
        of_cpus.max().unwrap_or(0)
    }
}

/// The names of [`Executed::shares`], in order.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    Component::ALL.map(Component::name).into_iter().chain(["total"])
}

/// A series of bars, one a category.
pub(super) fn bars(name: &str, unit: &str, heights: impl IntoIterator<Item = f64>) -> Series {
    let points = (0..).zip(heights).map(|(place, height)| [f64::from(place), height]);
    Series::new(name, unit, Axis::new("place", "")).points(points)
}
