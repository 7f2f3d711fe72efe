//! Whose code it is that was executed: which kernel is which system's.

use std::collections::BTreeSet;

use super::{Code, Counts};

/// Where the Linux kernel's own text begins, and ends where modules may begin (Linux: `Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_TEXT: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

/// What the plugin calls the kernel of guests that the host's own system enters by VMRUN, wherever that is.
const GUEST_BY_VMRUN: u64 = 1;

/// A system on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// The host's own system: of Xen the driver domain, and the only one without a hypervisor.
    Host,
    /// The guest.
    Guest,
}

/// The kernels that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The numbers of guests' kernels that are known by their text. All others are the host's, or ran before there was a kernel.
    guests: BTreeSet<u64>,
}

impl Domains {
    /// Learns them from what was executed up to a mark `before` there was a guest, and in the whole run so far: guests run the
    /// host's kernel once more, so a text address of the host's that is then executed elsewhere is of a guest's kernel.
    pub fn learn(before: &Counts, all: &Counts) -> Domains {
        let text = |counts: &Counts| -> Vec<(u64, u64)> {
            let texts = counts.places.iter().filter(|(place, _)| KERNEL_TEXT.contains(&place.address));
            texts.map(|(place, code)| (place.address, code.kernel)).collect()
        };
        let host = text(before);
        let (addresses, kernels): (BTreeSet<u64>, BTreeSet<u64>) = host.into_iter().unzip();
        let of_guest = |(address, kernel): &(u64, u64)| addresses.contains(address) && !kernels.contains(kernel);
        Domains { guests: text(all).into_iter().filter(of_guest).map(|(_, kernel)| kernel).collect() }
    }

    /// Whose code it is.
    pub fn of(&self, code: &Code) -> Domain {
        if code.kernel == GUEST_BY_VMRUN || self.guests.contains(&code.kernel) { Domain::Guest } else { Domain::Host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_executes_the_hosts_addresses_elsewhere_is_a_guests() {
        let before = Counts::parse("clock 1 9\nffffffff81000000 900 7 5 0\nffffffff81001000 901 8 4 0\n").unwrap();
        let all = "clock 1 90\nffffffff81000000 900 7 5 0\nffffffff81001000 501 3 4 0\nffffffff81002000 902 9 4 0\n";
        let domains = Domains::learn(&before, &Counts::parse(all).unwrap());
        let of = [7, 8, 3, 9, 0].map(|kernel| domains.of(&Code { kernel, tallies: Vec::new() }));
        assert_eq!(of, [Domain::Host, Domain::Host, Domain::Guest, Domain::Host, Domain::Host]);
    }

    #[test]
    fn what_runs_behind_vmrun_is_a_guests() {
        let code = |kernel| Code { kernel, tallies: Vec::new() };
        assert_eq!([1, 2].map(|kernel| Domains::default().of(&code(kernel))), [Domain::Guest, Domain::Host]);
    }

    #[test]
    fn without_a_guest_all_is_the_hosts() {
        let counts = Counts::parse("clock 1 9\nffffffff81000000 900 7 5 0\n").unwrap();
        let domains = Domains::learn(&counts, &counts);
        assert_eq!(domains.of(&Code { kernel: 4, tallies: Vec::new() }), Domain::Host);
    }
}
