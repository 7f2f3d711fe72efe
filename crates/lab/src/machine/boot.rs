//! Boots a machine of any kind.

use std::path::Path;

use super::{Clock, Machine, bare, kvm, local, wiring, xen};
use crate::topology::{Backend, MachineKind, Topology, with_fairlane};
use crate::{Error, Progress};

/// Boots a machine: its host, its guests and the external machine, connected as in the topology. The kernels' output is kept
/// in `logs`, one file per node; `progress` gets each step as it starts.
///
/// # Errors
/// [`Error::Topology`] if this kind of machine cannot have the topology, [`Error::Missing`] if this host lacks something, and
/// [`Error::Boot`].
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
        wiring::disable_offloads(machine.as_ref(), topology)?;
    }
    Ok(machine)
}

/// Refuses a topology that the kind of machine cannot have, before anything is started.
fn refuse(kind: MachineKind, topology: &Topology, clock: &Clock) -> Result<(), Error> {
    let unfit = |reason: String| Err(Error::Topology(reason));
    if *clock != Clock::Wall && !kind.has_virtual_clock() {
        return unfit(format!("machine {kind} has the wall clock only; xen has the virtual clock (icount)"));
    }
    if topology.count && !kind.counts() {
        return unfit(format!("count: machine {kind} cannot count instructions; box, kvm, xen and xen-pvh can"));
    }
    if !topology.offload && ![MachineKind::Box, MachineKind::Xen].contains(&kind) {
        return unfit(format!("offload: machine {kind} cannot disable offloads; box and xen can"));
    }
    if topology.backend == Backend::Fairlane && !kind.supports_fairlane() {
        return unfit(format!(
            "backend: machine {kind} has backend kernel only; {} can have fairlane",
            with_fairlane()
        ));
    }
    if topology.early_ack && topology.backend != Backend::Fairlane {
        return unfit(format!("early_ack needs backend fairlane, not {}", topology.backend));
    }
    if topology.backend != Backend::Fairlane && topology.guests.iter().any(|guest| guest.min_rate.is_some()) {
        return unfit("min_rate needs backend fairlane".to_owned());
    }
    match topology.guests.iter().position(|guest| guest.disk).filter(|_| !kind.serves_disks()) {
        Some(index) => unfit(format!(
            "guest {}: machine {kind} has no block backend to serve a disk; xen, xen-pvh and kvm have",
            index + 1
        )),
        None => Ok(()),
    }
}
