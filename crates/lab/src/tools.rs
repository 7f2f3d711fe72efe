//! The tools of guests.

/// The programs of a guest besides its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// HAProxy, for a load balancer.
    pub proxy: bool,
    /// Open MPI, and the measured program.
    pub mpi: bool,
    /// The doctor (`fairlane`) and the tools it runs. A host has them as well.
    pub doctor: bool,
    /// The hostile Xen frontend. Guests of a Xen host only.
    pub hostile: bool,
}

impl Tools {
    /// The additional memory that a guest needs for them, in MiB: during boot it has the files packed and unpacked.
    pub(crate) fn memory_mib(self) -> usize {
        (if self.doctor { 64 } else { 0 }) + (if self.mpi { 64 } else { 0 })
    }

    /// The tools of a host with such guests.
    pub(crate) fn of_host(self) -> Tools {
        Tools { doctor: self.doctor, ..Tools::default() }
    }
}
