//! Whose memory a page of the machine is.
//!
//! A hypervisor gives a domain its memory in large pieces, so a page belongs to whom its nearest known neighbour belongs to.
//! Known are the host's pages, all those that were executed before there was a guest, and the guest's kernel:
//! what is executed at an address of the host's kernel, on a page that is not the host's.

use std::collections::BTreeSet;

use super::Counts;

/// Where the Linux kernel's own text begins, and ends where modules may begin (Linux: `Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_TEXT: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

/// A system on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// The host's own system: of Xen the driver domain, and the only one without a hypervisor.
    Host,
    /// The guest.
    Guest,
}

/// The pages that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    host: BTreeSet<u64>,
    guest: BTreeSet<u64>,
}

impl Domains {
    /// Learns them from what was executed up to a mark `before` there was a guest, and in the whole run so far.
    pub fn learn(before: &Counts, all: &Counts) -> Domains {
        let host: BTreeSet<u64> = before.places.keys().map(|place| place.page).collect();
        let text = |counts: &Counts| -> BTreeSet<u64> {
            counts.places.keys().map(|place| place.address).filter(|address| KERNEL_TEXT.contains(address)).collect()
        };
        let addresses = text(before);
        let of_guest =
            all.places.keys().filter(|place| addresses.contains(&place.address) && !host.contains(&place.page));
        let guest = of_guest.map(|place| place.page).collect();
        Domains { host, guest }
    }

    /// Whose page it is.
    pub fn of(&self, page: u64) -> Domain {
        let distance = |pages: &BTreeSet<u64>| {
            let below = pages.range(..=page).next_back().map(|below| page - below);
            let above = pages.range(page..).next().map(|above| above - page);
            below.into_iter().chain(above).min().unwrap_or(u64::MAX)
        };
        if distance(&self.guest) < distance(&self.host) { Domain::Guest } else { Domain::Host }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_belongs_to_its_neighbours_domain() {
        let before = Counts::parse("clock 1 9\nffffffff81000000 900 5 0\nffffffff81001000 901 4 0\n").unwrap();
        let all = Counts::parse(
            "clock 1 90\nffffffff81000000 900 5 0\nffffffff81001000 901 4 0\nffffffff81001000 501 4 0\n401000 520 1 0\n",
        );
        let domains = Domains::learn(&before, &all.unwrap());
        let of = [520, 400, 0, 690, 710, 5000].map(|page| domains.of(page));
        let expected = [Domain::Guest, Domain::Guest, Domain::Guest, Domain::Guest, Domain::Host, Domain::Host];
        assert_eq!(of, expected);
    }

    #[test]
    fn without_a_guest_all_is_the_hosts() {
        let counts = Counts::parse("clock 1 9\nffffffff81000000 900 5 0\n").unwrap();
        assert_eq!(Domains::learn(&counts, &counts).of(7), Domain::Host);
    }
}
