//! Whose code it is that a CPU executes.
//!
//! Where only one domain runs on a CPU, that domain's. Elsewhere the memory tells: a hypervisor gives a domain its memory in large pieces, so a page belongs to whom its nearest known neighbour belongs to.
//! Known are the host's pages, all those that were executed before there was a guest, and the guest's kernel:
//! what is executed at an address of the host's kernel, on a page that is not the host's. Where a program lies at a random
//! address (`/proc/sys/kernel/randomize_va_space`), what is executed thereabouts is one process's and so one domain's: the
//! one of whichever of its pages is nearest to a known one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Counts, Place};

/// Where the Linux kernel's own text begins, and ends where modules may begin (Linux: `Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_TEXT: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

/// Where Linux puts programs and libraries at random, for itself and each process.
const RANDOM: std::ops::Range<u64> = 0x5500_0000_0000..0x8000_0000_0000;

/// Bits of an address within what is taken for one process's: 16 MiB, more than a program and its libraries have here.
const PROCESS_BITS: u32 = 24;

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
    /// By the addresses of processes, without their last bits.
    processes: BTreeMap<u64, Domain>,
    /// CPUs on which one domain alone runs, once there is a guest.
    owners: BTreeMap<usize, Domain>,
}

impl Domains {
    /// Learns them from what was executed up to a mark `before` there was a guest, and in the whole run so far, where some CPUs
    /// have `owners`.
    pub fn learn(before: &Counts, all: &Counts, owners: BTreeMap<usize, Domain>) -> Domains {
        let host: BTreeSet<u64> = before.places.keys().map(|place| place.page).collect();
        let text = |counts: &Counts| -> BTreeSet<u64> {
            counts.places.keys().map(|place| place.address).filter(|address| KERNEL_TEXT.contains(address)).collect()
        };
        let addresses = text(before);
        let of_guest =
            all.places.keys().filter(|place| addresses.contains(&place.address) && !host.contains(&place.page));
        let guest = of_guest.map(|place| place.page).collect();
        let mut domains = Domains { host, guest, processes: BTreeMap::new(), owners };
        let mut nearest: BTreeMap<u64, (u64, Domain)> = BTreeMap::new();
        for place in all.places.keys().filter(|place| RANDOM.contains(&place.address)) {
            let found = domains.nearest(place.page);
            let best = nearest.entry(place.address >> PROCESS_BITS).or_insert(found);
            if found.0 < best.0 {
                *best = found;
            }
        }
        domains.processes = nearest.into_iter().map(|(process, (_, domain))| (process, domain)).collect();
        domains
    }

    /// Whose code it is that a CPU executed there.
    pub fn of(&self, place: Place, cpu: usize) -> Domain {
        // The host ran on all CPUs before there was a guest.
        if self.host.contains(&place.page) {
            return Domain::Host;
        }
        let process = || self.processes.get(&(place.address >> PROCESS_BITS)).copied();
        self.owners.get(&cpu).copied().or_else(process).unwrap_or_else(|| self.nearest(place.page).1)
    }

    /// Whose the known page is that is nearest to a page, and how far that is.
    fn nearest(&self, page: u64) -> (u64, Domain) {
        let distance = |pages: &BTreeSet<u64>| {
            let below = pages.range(..=page).next_back().map(|below| page - below);
            let above = pages.range(page..).next().map(|above| above - page);
            below.into_iter().chain(above).min().unwrap_or(u64::MAX)
        };
        let (host, guest) = (distance(&self.host), distance(&self.guest));
        if guest < host { (guest, Domain::Guest) } else { (host, Domain::Host) }
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
        let domains = Domains::learn(&before, &all.unwrap(), BTreeMap::new());
        let of = [520, 400, 0, 690, 710, 5000].map(|page| domains.of(Place { address: 0x401000, page }, 0));
        let expected = [Domain::Guest, Domain::Guest, Domain::Guest, Domain::Guest, Domain::Host, Domain::Host];
        assert_eq!(of, expected);
    }

    #[test]
    fn without_a_guest_all_is_the_hosts() {
        let counts = Counts::parse("clock 1 9\nffffffff81000000 900 5 0\n").unwrap();
        assert_eq!(
            Domains::learn(&counts, &counts, BTreeMap::new()).of(Place { address: 0, page: 7 }, 0),
            Domain::Host
        );
    }

    #[test]
    fn a_process_is_one_domains_wherever_its_pages_lie() {
        let before = Counts::parse("clock 1 9\nffffffff81000000 900 5 0\n").unwrap();
        let all = "clock 1 90\nffffffff81000000 900 5 0\nffffffff81000000 100 5 0\n\
                   7fceab0a7000 120 1 0\n7fceab186000 700 1 0\n7fa000001000 700 1 0\n";
        let domains = Domains::learn(&before, &Counts::parse(all).unwrap(), BTreeMap::new());
        let of = |address| domains.of(Place { address, page: 700 }, 0);
        assert_eq!([of(0x7fceab186000), of(0x7fa000001000)], [Domain::Guest, Domain::Host]);
    }

    #[test]
    fn what_a_cpu_executes_is_its_owners_but_for_the_hosts_own_pages() {
        let before = Counts::parse("clock 2 9\nffffffff81000000 900 0 0 5 0\n").unwrap();
        let owners = BTreeMap::from([(0, Domain::Host), (1, Domain::Guest)]);
        let domains = Domains::learn(&before, &before, owners);
        let of = |page, cpu| domains.of(Place { address: 0x7fceab0a7000, page }, cpu);
        assert_eq!([of(900, 1), of(901, 1), of(1, 0)], [Domain::Host, Domain::Guest, Domain::Host]);
    }
}
