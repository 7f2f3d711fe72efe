//! Instructions by component and function.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use fairlane_agent::Function;

use super::{Code, Counts, Domain, Domains, Place};

/// Xen's own virtual addresses (Xen: `xen/arch/x86/include/asm/config.h`).
const HYPERVISOR: std::ops::Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
/// The end of programs' addresses.
const USER_END: u64 = 1 << 47;

/// A component that code belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Component {
    /// The hypervisor.
    Hypervisor,
    /// A domain's kernel.
    Kernel(Domain),
    /// A domain's programs.
    User(Domain),
}

impl Component {
    /// All components, in the order of figures.
    pub const ALL: [Component; 5] = [
        Component::Hypervisor,
        Component::Kernel(Domain::Host),
        Component::User(Domain::Host),
        Component::Kernel(Domain::Guest),
        Component::User(Domain::Guest),
    ];

    /// The component of the code at a place.
    pub fn of(place: Place, code: &Code, domains: &Domains) -> Component {
        if HYPERVISOR.contains(&place.address) {
            Component::Hypervisor
        } else if place.address < USER_END {
            Component::User(domains.of(code))
        } else {
            Component::Kernel(domains.of(code))
        }
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Component::Hypervisor => "hypervisor",
            Component::Kernel(Domain::Host) => "host_kernel",
            Component::User(Domain::Host) => "host_user",
            Component::Kernel(Domain::Guest) => "guest_kernel",
            Component::User(Domain::Guest) => "guest_user",
        }
    }
}

/// The instructions of the measured CPUs, by component and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    executed: BTreeMap<Component, BTreeMap<u64, u64>>,
    charged: BTreeMap<Domain, u64>,
}

impl Bill {
    /// Sums the counts of some CPUs.
    pub fn of(counts: &Counts, domains: &Domains, cpus: &BTreeSet<usize>) -> Bill {
        let mut bill = Bill::default();
        for (place, code) in &counts.places {
            let tallies = cpus.iter().filter_map(|cpu| code.tallies.get(*cpu));
            let (executed, charged) =
                tallies.fold((0, 0), |(executed, charged), tally| (executed + tally.executed, charged + tally.charged));
            let component = Component::of(*place, code, domains);
            if executed > 0 {
                *bill.executed.entry(component).or_default().entry(place.address).or_default() += executed;
            }
            if let Component::Kernel(domain) | Component::User(domain) = component {
                *bill.charged.entry(domain).or_default() += charged;
            }
        }
        bill
    }

    /// Instructions of a component.
    pub fn instructions(&self, component: Component) -> u64 {
        self.executed.get(&component).map_or(0, |places| places.values().sum())
    }

    /// The time that a hypervisor would account to a domain: nanoseconds on the measured CPUs, with a clock of one nanosecond per
    /// instruction of all CPUs.
    pub fn charged(&self, domain: Domain) -> u64 {
        self.charged.get(&domain).copied().unwrap_or(0)
    }

    /// The addresses that execute most of a component's instructions, up to `share` of them, 0 to 1; the most frequent first. They
    /// are to be resolved by a symbol table.
    pub fn addresses(&self, component: Component, share: f64) -> Vec<u64> {
        let mut places: Vec<(u64, u64)> =
            self.executed.get(&component).into_iter().flatten().map(|(address, weight)| (*weight, *address)).collect();
        places.sort_unstable_by_key(|(weight, address)| (Reverse(*weight), *address));
        let enough = self.instructions(component) as f64 * share;
        let mut sum = 0;
        let heavy = places.into_iter().take_while(|(weight, _)| {
            let wanted = (sum as f64) < enough;
            sum += weight;
            wanted
        });
        heavy.map(|(_, address)| address).collect()
    }

    /// Instructions by function, the most first; code outside the `known` functions is named by its address.
    pub fn functions(&self, component: Component, known: &[Function]) -> Vec<(String, u64)> {
        let known: BTreeMap<u64, &Function> = known.iter().map(|function| (function.start, function)).collect();
        let name = |address: u64| {
            let function = known.range(..=address).next_back().map(|(_, function)| *function);
            function.filter(|function| address < function.end).map(|function| function.name.clone())
        };
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (address, instructions) in self.executed.get(&component).into_iter().flatten() {
            *sums.entry(name(*address).unwrap_or_else(|| format!("{address:#x}"))).or_default() += instructions;
        }
        let mut functions: Vec<_> = sums.into_iter().collect();
        functions.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs, the first of which is measured: the hypervisor, the host's kernel (number 9) and the guest's (number 5).
    const BEFORE: &str = "clock 2 100\nffffffff81000000 900 9 100 100 0 0\n";
    const AFTER: &str = "clock 2 1000\nffff82d040200000 100 0 50 0 7 0\nffffffff81000000 900 9 150 300 0 0\n\
                         ffffffff81000000 500 5 200 600 0 0\nffffffff81000040 500 5 30 0 0 0\n401000 510 5 20 10 400 9\n";

    fn bill() -> Bill {
        let (before, after) = (Counts::parse(BEFORE).unwrap(), Counts::parse(AFTER).unwrap());
        let domains = Domains::learn(&before, &after);
        Bill::of(&after.since(&before), &domains, &BTreeSet::from([0]))
    }

    #[test]
    fn instructions_are_summed_by_component() {
        let expected = [50, 50, 0, 230, 20];
        assert_eq!(Component::ALL.map(|component| bill().instructions(component)), expected);
        assert_eq!((bill().charged(Domain::Host), bill().charged(Domain::Guest)), (200, 610));
    }

    #[test]
    fn functions_are_sorted_by_weight() {
        let kernel = Component::Kernel(Domain::Guest);
        assert_eq!(bill().addresses(kernel, 1.0), [0xffff_ffff_8100_0000, 0xffff_ffff_8100_0040]);
        assert_eq!(bill().addresses(kernel, 0.8), [0xffff_ffff_8100_0000]);
        let memcpy = Function { start: 0xffff_ffff_8100_0020, end: 0xffff_ffff_8100_0080, name: "memcpy".to_owned() };
        let functions = bill().functions(kernel, &[memcpy]);
        assert_eq!(functions, [("0xffffffff81000000".to_owned(), 200), ("memcpy".to_owned(), 30)]);
    }
}
