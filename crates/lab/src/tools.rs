//! What guests run besides their agents.

/// What a guest runs besides its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tools {
    /// HAProxy, as a load balancer has it.
    pub proxy: bool,
    /// Open MPI, and a program whose exchange is timed.
    pub mpi: bool,
    /// The doctor (`fairlane`, beside the agent), and what it asks. A host has it as well.
    pub doctor: bool,
    /// A frontend that breaks the rules of Xen's cards. A guest of a Xen host only.
    pub hostile: bool,
}

impl Tools {
    /// The memory that a guest needs for them beyond what others need, in MiB: for a while it has the files packed and unpacked.
    pub(crate) fn memory_mib(self) -> usize {
        (if self.doctor { 64 } else { 0 }) + (if self.mpi { 64 } else { 0 })
    }

    /// Those of a host.
    pub(crate) fn of_host(self) -> Tools {
        Tools { doctor: self.doctor, ..Tools::default() }
    }
}
