//! The CPUs of this host that each node runs on.

use std::collections::BTreeSet;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use crate::error::{Error, IoContext};
use crate::topology::Topology;

/// The CPUs this process may use.
pub(super) fn usable() -> Result<BTreeSet<usize>, Error> {
    let set =
        sched_getaffinity(Pid::from_raw(0)).map_err(Into::into).doing(|| "the CPUs of this process".to_owned())?;
    Ok((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).collect())
}

/// The CPUs of each node.
#[derive(Debug, PartialEq)]
pub(super) struct Cpus {
    /// The host's: all. The kernel's cards and bridge run on the CPU of the sender, and Fairlane in their place may too.
    pub host: Vec<usize>,
    /// Each guest's.
    pub guests: Vec<Vec<usize>>,
    /// The external machine's: all that no other node has; if none is left, all.
    pub external: Vec<usize>,
    /// Whether the external machine shares the CPUs of others.
    pub external_shares: bool,
}

impl Cpus {
    /// Assigns each guest the CPUs of its topology, and the external machine those `usable` CPUs that are neither a guest's nor in
    /// `host_cpus`.
    ///
    /// # Errors
    /// [`Error::Topology`] if a CPU of the topology is not usable.
    pub(super) fn assign(topology: &Topology, usable: &BTreeSet<usize>) -> Result<Cpus, Error> {
        let list = |cpus: &BTreeSet<usize>| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let check = |whose: &str, cpus: &[usize]| match cpus.iter().find(|cpu| !usable.contains(cpu)) {
            Some(cpu) => {
                Err(Error::Topology(format!("{whose}: CPU {cpu} is not usable here; usable CPUs: {}", list(usable))))
            }
            None => Ok(cpus.to_vec()),
        };
        check("host_cpus", &topology.host_cpus)?;
        let guests = topology.guests.iter().zip(1..);
        let guests: Vec<_> =
            guests.map(|(plan, number)| check(&format!("guest {number}"), &plan.cpus)).collect::<Result<_, _>>()?;
        let mut external: Vec<usize> = usable.difference(&topology.measured_cpus()).copied().collect();
        let external_shares = external.is_empty();
        if external_shares {
            external.extend(usable);
        }
        Ok(Cpus { host: usable.iter().copied().collect(), guests, external, external_shares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::GuestPlan;

    fn topology(host: &[usize], guests: &[usize]) -> Topology {
        let guests = guests.iter().map(|cpu| GuestPlan { cpus: vec![*cpu], ..GuestPlan::default() }).collect();
        Topology { host_cpus: host.to_vec(), ..Topology::of(guests) }
    }

    #[test]
    fn the_external_machine_gets_the_remaining_cpus_and_the_host_all() {
        let usable = BTreeSet::from([0, 1, 2, 5]);
        let cpus = Cpus::assign(&topology(&[0], &[1, 1]), &usable).unwrap();
        assert_eq!((cpus.external, cpus.external_shares), (vec![2, 5], false));
        assert_eq!((cpus.host, cpus.guests), (vec![0, 1, 2, 5], vec![vec![1], vec![1]]));
        let cpus = Cpus::assign(&topology(&[0, 5], &[1, 2]), &usable).unwrap();
        assert_eq!((cpus.external, cpus.external_shares), (vec![0, 1, 2, 5], true));
    }

    #[test]
    fn an_error_names_the_missing_cpu() {
        let usable = BTreeSet::from([0, 1]);
        for (bad, words) in [
            (topology(&[0], &[1, 7]), "guest 2: CPU 7 is not usable here; usable CPUs: 0, 1"),
            (topology(&[3], &[1]), "host_cpus: CPU 3 "),
        ] {
            let error = Cpus::assign(&bad, &usable).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn this_process_has_usable_cpus() {
        assert!(!usable().unwrap().is_empty());
    }
}
