//! The emulated PC as a KVM host. Each guest is a QEMU with virtio-net, served by vhost-net or Fairlane, and some have a virtio disk,
//! served by QEMU.
//!
//! The emulated CPUs have AMD's virtualization with nested paging, so KVM itself runs the guests. The host's agent starts each
//! QEMU; its only serial line connects to the guest's agent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fairlane_agent::Command;
use serde_json::{Value, json};

use super::emulated::{Emulated, Linux};
use super::pc::{self, Pc, Software};
use super::vhost_user::Fairlane;
use super::wiring;
use super::{Clock, Machine};
use crate::error::Error;
use crate::images::{GUEST_INITRAMFS, GUEST_KERNEL, KVM_QEMU, KvmImages};
use crate::topology::{Backend, Node, Topology};
use crate::{Agent, Progress, image};

/// The memory of the host's own system, of a guest without the doctor, and of the rest of a guest's QEMU, in MiB.
const HOST_MIB: usize = 512;
const GUEST_MIB: usize = 128;
const QEMU_MIB: usize = 64;

/// Boots the machine.
pub(super) fn boot(
    topology: &Topology,
    clock: &Clock,
    logs: &Path,
    progress: Progress,
) -> Result<Box<dyn Machine>, Error> {
    let agent = image::agent()?;
    let images = KvmImages::build(&agent, topology.backend, topology.tools())?;
    progress("KVM host: booting");
    let software = Software {
        kernel: &images.kernel,
        command_line: format!("{} fairlane.console=ttyS1 fairlane.host=host{}", pc::LINUX, isolation(topology)),
        modules: vec![(&images.host, String::new())],
        features: ",-smap",
        memory_mib: HOST_MIB + topology.guests.len() * (guest_mib(topology) + QEMU_MIB),
        external_cpu: pc::cpus(topology),
    };
    let pc = Pc::start(&software, topology, &agent, clock, logs)?;
    let host = pc.host();
    if topology.count {
        host.run(Command::Mark)?;
    }
    // Fairlane paces the link itself and has one card for all guests.
    let (fairlane, link, cards) = match topology.backend {
        Backend::Kernel => (None, topology.link, topology.joined()),
        Backend::Fairlane => (Some(Fairlane::installed()), None, 1),
    };
    if let Some(fairlane) = &fairlane {
        fairlane.start(host, topology)?;
    }
    pc::bring_up_link(host, link)?;
    let log = pc::log(logs)?;
    let boot_error = |guest: &Agent, error| pc::boot_error(guest, error, &images.host, &log);
    let (mut guests, mut starting) = (Vec::new(), Vec::new());
    for number in 1..=topology.guests.len() {
        let node = Node::Guest(number);
        progress(&format!("{node}: booting"));
        let spawn = guest(host, topology, number, fairlane.as_ref())?;
        guests.push(host.guest(&node.to_string()));
        starting.push(host.start_job(spawn)?);
    }
    for (guest, job) in guests.iter().zip(starting) {
        job.wait().map_err(|error| boot_error(guest, error))?;
    }
    wiring::join(host, topology.join, cards)?;
    let facts = facts(&pc, topology, &images.release)?;
    Ok(Box::new(Emulated { guests, pc, facts, host: Linux }))
}

/// The kernel's option that keeps the host's own work, mainly its vhost threads, off the guests' CPUs, as dom0 is pinned on a Xen
/// host. The kernel does not balance load between isolated CPUs, so the CPUs of a guest with several are not isolated.
fn isolation(topology: &Topology) -> String {
    let single = topology.guests.iter().filter(|guest| guest.cpus.len() == 1).flat_map(|guest| &guest.cpus);
    let isolated: BTreeSet<usize> = single.copied().filter(|cpu| !topology.host_cpus.contains(cpu)).collect();
    if isolated.is_empty() { String::new() } else { format!(" isolcpus={}", list(&isolated)) }
}

fn list<'a>(cpus: impl IntoIterator<Item = &'a usize>) -> String {
    cpus.into_iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The memory of a guest, in MiB.
fn guest_mib(topology: &Topology) -> usize {
    GUEST_MIB + topology.tools().memory_mib()
}

/// Prepares the host's end of a guest's card; returns the command that starts the guest on its CPUs.
fn guest(host: &Agent, topology: &Topology, number: usize, fairlane: Option<&Fairlane>) -> Result<Command, Error> {
    let node = Node::Guest(number);
    let plan = &topology.guests[number - 1];
    let memory = guest_mib(topology);
    let mut command_line =
        format!("console=ttyS0 quiet panic=-1 rdinit=/init fairlane.console=ttyS0 fairlane.host={node}");
    let mut argv = format!(
        "/init place inside=1 {} {KVM_QEMU} -nodefaults -no-user-config -display none -no-reboot -accel kvm \
         -machine pc,memory-backend=memory -object memory-backend-memfd,id=memory,size={memory}M,share=on \
         -cpu host -smp {} -m {memory} -chardev socket,id=agent,fd=0 -device isa-serial,chardev=agent \
         -kernel {GUEST_KERNEL} -initrd {GUEST_INITRAMFS}",
        list(&plan.cpus),
        plan.cpus.len(),
    );
    if number <= topology.joined() {
        argv += &match fairlane {
            Some(fairlane) => format!(
                " -chardev socket,id=wire,path={} -netdev vhost-user,id=card,chardev=wire",
                fairlane.socket(number).display()
            ),
            None => {
                let tap = wiring::vif(number);
                wiring::ip(host, &format!("tuntap add {tap} mode tap vnet_hdr"))?;
                plan.rate.map_or(Ok(()), |rate| wiring::limit_incoming(host, &tap, rate))?;
                // Without `vhostforce` QEMU serves the card itself if vhost-net fails.
                format!(" -netdev tap,id=card,ifname={tap},script=no,downscript=no,vhost=on,vhostforce=on")
            }
        };
        argv += &format!(" -device virtio-net-pci,netdev=card,romfile=,mac={}", node.mac());
        command_line += &format!(" {}", wiring::card_arguments(node));
    }
    if plan.disk {
        let disk = pc::disk(topology, &Clock::Wall, number);
        argv += &format!(" -drive file={disk},format=raw,if=virtio,cache=none");
    }
    let words = argv.split(' ').map(str::to_owned);
    let argv = words.chain(["-append".to_owned(), command_line]).collect();
    Ok(Command::Spawn { name: node.to_string(), argv })
}

/// The machine's description for the result.
fn facts(pc: &Pc, topology: &Topology, kernel: &str) -> Result<BTreeMap<String, Value>, Error> {
    let version = pc.host().output(&[KVM_QEMU, "--version"])?;
    let isolated = isolation(topology);
    let card = match topology.backend {
        Backend::Kernel => "virtio-net on a tap, served by vhost-net",
        Backend::Fairlane => "virtio-net on vhost-user, served by Fairlane",
    };
    Ok(BTreeMap::from([
        ("machine".to_owned(), json!("kvm")),
        ("kernel".to_owned(), json!(kernel)),
        ("emulated_by".to_owned(), json!(pc::version()?)),
        ("guests_by".to_owned(), json!(version.lines().next().unwrap_or_default())),
        ("accelerator".to_owned(), json!("kvm, on AMD's virtualization as emulated")),
        ("backend".to_owned(), json!(topology.backend)),
        ("card".to_owned(), json!(card)),
        ("disk".to_owned(), json!("virtio-blk, served by the guest's QEMU, on the guest's CPUs")),
        ("isolated_cpus".to_owned(), json!(isolated.trim_start_matches(" isolcpus="))),
        ("external".to_owned(), json!(pc.external_place())),
        ("left_out".to_owned(), json!("scheduler, slice and weights: Linux schedules guests as processes")),
    ]))
}
