//! The domain that executed code belongs to, by the kernel it runs under.

use std::collections::BTreeSet;

use super::{Code, Counts};

/// The addresses of the Linux kernel's own text, up to the first modules (Linux: `Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_TEXT: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

/// The plugin's number for the kernel of guests that the host enters by VMRUN.
const GUEST_BY_VMRUN: u64 = 1;

/// A domain of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// The host's own system: Xen's driver domain; the only domain without a hypervisor.
    Host,
    /// The guest.
    Guest,
}

/// The known kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The numbers of guests' kernels known by their text. All others are the host's, or code that ran before any kernel.
    guests: BTreeSet<u64>,
}

impl Domains {
    /// Learns them from the counts up to a mark `before` any guest started, and those of the whole run. Guests boot the same kernel
    /// as the host, so a text address of the host's that is also executed under another kernel number belongs to a guest.
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

    /// The domain of code.
    pub fn of(&self, code: &Code) -> Domain {
        if code.kernel == GUEST_BY_VMRUN || self.guests.contains(&code.kernel) { Domain::Guest } else { Domain::Host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_kernel_that_executes_the_hosts_text_addresses_is_a_guests() {
        let before = Counts::parse("clock 1 9\nffffffff81000000 900 7 5 0\nffffffff81001000 901 8 4 0\n").unwrap();
        let all = "clock 1 90\nffffffff81000000 900 7 5 0\nffffffff81001000 501 3 4 0\nffffffff81002000 902 9 4 0\n";
        let domains = Domains::learn(&before, &Counts::parse(all).unwrap());
        let of = [7, 8, 3, 9, 0].map(|kernel| domains.of(&Code { kernel, tallies: Vec::new() }));
        assert_eq!(of, [Domain::Host, Domain::Host, Domain::Guest, Domain::Host, Domain::Host]);
    }

    #[test]
    fn code_after_vmrun_is_a_guests() {
        let code = |kernel| Code { kernel, tallies: Vec::new() };
        assert_eq!([1, 2].map(|kernel| Domains::default().of(&code(kernel))), [Domain::Guest, Domain::Host]);
    }

    #[test]
    fn without_a_guest_all_code_is_the_hosts() {
        let counts = Counts::parse("clock 1 9\nffffffff81000000 900 7 5 0\n").unwrap();
        let domains = Domains::learn(&counts, &counts);
        assert_eq!(domains.of(&Code { kernel: 4, tallies: Vec::new() }), Domain::Host);
    }
}
