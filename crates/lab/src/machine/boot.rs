//! Boots a machine of any kind.

use std::path::Path;

use super::{Clock, Machine, bare, kvm, local, wiring, xen};
use crate::topology::{Backend, MachineKind, Topology, with_fairlane};
use crate::{Error, Progress};

/// Boots a machine: its host, its guests and the external machine, wired as the topology says. What their kernels print
/// is kept in `logs`, a file a node; `progress` is told each step as it begins.
///
/// # Errors
/// [`Error::Topology`] where this kind of machine cannot be so, [`Error::Missing`] where this computer lacks what is
/// needed, and [`Error::Boot`].
pub fn boot(
    kind: MachineKind,
    topology: &Topology,
    clock: &Clock,
    logs: &Path,
    progress: Progress,
) -> Result<Box<dyn Machine>, Error> {
    topology.check()?;
    let kind = if topology.bare { kind.bare() } else { kind };
    refuse(kind, topology, clock)?;
    let machine = match kind {
        MachineKind::Native | MachineKind::Uml | MachineKind::Qemu | MachineKind::QemuE1000 => {
            local::boot(kind, topology, logs, progress)
        }
        MachineKind::Xen | MachineKind::XenPvh => xen::boot(kind, topology, clock, logs, progress),
        MachineKind::Box => bare::boot(topology, clock, logs, progress),
        MachineKind::Kvm => kvm::boot(topology, clock, logs, progress),
    }?;
    if !topology.offload {
        wiring::frame_by_frame(machine.as_ref(), topology)?;
    }
    Ok(machine)
}

/// Refuses what a kind of machine cannot be, before anything of it is started.
fn refuse(kind: MachineKind, topology: &Topology, clock: &Clock) -> Result<(), Error> {
    let unfit = |reason: String| Err(Error::Topology(reason));
    if *clock != Clock::Wall && !kind.keeps_time() {
        return unfit(format!("machine {kind} has the wall clock only; xen has the clock of instructions"));
    }
    if topology.count && !kind.counts() {
        return unfit(format!("count: machine {kind} counts no instructions; box, kvm, xen and xen-pvh do"));
    }
    if !topology.offload && ![MachineKind::Box, MachineKind::Xen].contains(&kind) {
        return unfit(format!("offload: machine {kind} cannot do without; box and xen can"));
    }
    if topology.backend == Backend::Fairlane && !kind.takes_fairlane() {
        return unfit(format!("backend: machine {kind} has its own only; {} can have fairlane", with_fairlane()));
    }
    if topology.early_ack && topology.backend != Backend::Fairlane {
        return unfit(format!("early_ack: backend {} has none; fairlane has", topology.backend));
    }
    if topology.backend != Backend::Fairlane && topology.guests.iter().any(|guest| guest.min_rate.is_some()) {
        return unfit("min_rate: no backend but fairlane has one".to_owned());
    }
    match topology.guests.iter().position(|guest| guest.disk).filter(|_| !kind.serves_disks()) {
        Some(index) => unfit(format!(
            "guest {}: machine {kind} has no block backend to serve a disk; xen, xen-pvh and kvm have",
            index + 1
        )),
        None => Ok(()),
    }
}
