//! The emulated PC as a Xen host. dom0 is the driver domain; guests are paravirtual (PV) or hardware-assisted with paravirtual
//! cards (PVH).
//!
//! dom0's agent runs Xen's own tools. Each guest's agent is reached over the guest's console, which dom0's agent attaches to.

use std::collections::BTreeMap;
use std::path::Path;

use fairlane_agent::Command;
use serde_json::{Value, json};

use super::emulated::{Emulated, Host};
use super::pc::{self, Pc, Software};
use super::wiring::{self, UPLINK};
use super::{Clock, CpuTime, Machine, backend};
use crate::error::Error;
use crate::images::{CPU_TIME, GUEST_INITRAMFS, GUEST_KERNEL, PYTHON, XEN_PROGRAMS, XenImages};
use crate::topology::{Backend, MachineKind, Node, Scheduler, Topology};
use crate::{Agent, Progress, image};

/// The memory of dom0, of a guest without the doctor, and of the hypervisor, in MiB.
const DOM0_MIB: usize = 640;
const GUEST_MIB: usize = 128;
const XEN_MIB: usize = 128;

/// Boots the machine.
pub(super) fn boot(
    kind: MachineKind,
    topology: &Topology,
    clock: &Clock,
    logs: &Path,
    progress: Progress,
) -> Result<Box<dyn Machine>, Error> {
    let agent = image::agent()?;
    let images = XenImages::build(&agent, topology.backend, topology.tools())?;
    progress("Xen and dom0: booting");
    let software = software(kind, &images, topology, clock);
    let pc = Pc::start(&software, topology, &agent, clock, logs)?;
    let dom0 = pc.host();
    start_toolstack(dom0, topology, clock)?;
    if topology.count {
        // All pages executed so far belong to dom0.
        dom0.run(Command::Mark)?;
    }
    let guests: Vec<Agent> =
        (1..=topology.guests.len()).map(|number| dom0.guest(&Node::Guest(number).to_string())).collect();
    if topology.backend == Backend::Fairlane {
        // Fairlane paces the link itself and opens its card, which must be up before.
        pc::bring_up_link(dom0, None)?;
        wiring::bring_up(dom0, Node::Host, UPLINK)?;
        wiring::await_state(dom0, UPLINK, "state UP")?;
        backend::start(dom0, topology)?;
    }
    let log = pc::log(logs)?;
    let boot_error = |guest: &Agent, error| pc::boot_error(guest, error, &images.dom0, &log);
    let domains = create_guests(kind, topology, clock, dom0, &guests, &boot_error, progress)?;
    for guest in guests.iter().filter(|_| topology.early_ack) {
        backend::enable_early_ack(dom0, guest.name())?;
    }
    if topology.backend == Backend::Kernel {
        pc::bring_up_link(dom0, topology.link)?;
        wiring::join(dom0, topology.join, topology.joined())?;
    }
    let mut facts = facts(kind, &pc, topology, &images.release)?;
    if matches!(clock, Clock::Virtual(_)) {
        facts.insert("emulator".to_owned(), json!(format!("its threads ran {}", pc::turns())));
    }
    Ok(Box::new(Emulated { guests, pc, facts, host: Dom0 { backend: topology.backend, domains } }))
}

fn software<'a>(kind: MachineKind, images: &'a XenImages, topology: &Topology, clock: &Clock) -> Software<'a> {
    let scheduler = match (topology.scheduler, topology.slice_ms) {
        (Scheduler::Credit, Some(slice)) => format!("credit sched_credit_tslice_ms={slice}"),
        (Scheduler::Credit, None) => "credit".to_owned(),
        (Scheduler::Credit2, _) => "credit2".to_owned(),
    };
    // The measured CPUs of dom0. On the virtual clock (icount) it has one more, the external machine's.
    let own = topology.host_cpus.len();
    let (vcpus, inside) = match clock {
        Clock::Wall => (own, String::new()),
        // Isolated, as netback's threads would run there as well.
        Clock::Record(_) | Clock::Virtual(_) => (own + 1, format!(" isolcpus={own} irqaffinity=0-{}", own - 1)),
    };
    let features = match kind {
        // The emulator does not report the length of an intercepted RDTSCP, which Xen needs for PVH guests.
        MachineKind::XenPvh => ",-smap,-rdtscp",
        // With SMAP, dom0 crashes in Xen's create_bounce_frame.
        _ => ",-smap",
    };
    let console = "console=hvc0 quiet rdinit=/init fairlane.console=ttyS1 fairlane.host=dom0";
    Software {
        kernel: &images.hypervisor,
        // Scrubbing memory takes long in emulation.
        command_line: format!(
            "console=com1 com1=115200 smap=0 bootscrub=0 dom0_mem={DOM0_MIB}M dom0_max_vcpus={vcpus} sched={scheduler}"
        ),
        modules: vec![(&images.kernel, format!("{console}{inside}")), (&images.dom0, String::new())],
        features,
        memory_mib: DOM0_MIB + topology.guests.len() * guest_mib(topology) + XEN_MIB,
        external_cpu: own,
    }
}

/// Runs one of Xen's own programs.
fn xen(dom0: &Agent, line: &str) -> Result<String, Error> {
    let words = format!("/{XEN_PROGRAMS}/{line}");
    dom0.output(&words.split(' ').collect::<Vec<_>>())
}

fn start_toolstack(dom0: &Agent, topology: &Topology, clock: &Clock) -> Result<(), Error> {
    xen(dom0, "xenstored --pid-file /run/xenstored.pid")?;
    // xenstored forks to the background before it listens.
    dom0.await_output(&[&format!("/{XEN_PROGRAMS}/xen-init-dom0")], "")?;
    xen(dom0, "xenconsoled --pid-file=/run/xenconsoled.pid")?;
    let external = (*clock != Clock::Wall).then(|| pc::cpus(topology));
    for (vcpu, cpu) in topology.host_cpus.iter().copied().chain(external).enumerate() {
        xen(dom0, &format!("xl vcpu-pin 0 {vcpu} {cpu} {cpu}"))?;
    }
    Ok(())
}

/// The memory of a guest, in MiB.
fn guest_mib(topology: &Topology) -> usize {
    GUEST_MIB + topology.tools().memory_mib()
}

/// A guest's configuration (xl.cfg(5)).
fn configuration(kind: MachineKind, topology: &Topology, clock: &Clock, number: usize) -> String {
    let node = Node::Guest(number);
    let mode = if kind == MachineKind::XenPvh { "pvh" } else { "pv" };
    let plan = &topology.guests[number - 1];
    let cpus = plan.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let card = number <= topology.joined();
    let mac = node.mac();
    let rate = plan.rate.map(|rate| format!(",rate={rate:.0}b/s")).unwrap_or_default();
    let vif = if card { format!("vif = ['mac={mac}{rate}']\n") } else { String::new() };
    let card_arguments = format!(" {}", wiring::card_arguments(node));
    let weight = plan.weight.map(|weight| format!("cpu_weight = {weight}\n")).unwrap_or_default();
    let disk = if plan.disk {
        format!("disk = ['phy:{},xvda,w']\n", pc::disk(topology, clock, number))
    } else {
        String::new()
    };
    // The emulated CPU does not announce an invariant time stamp counter, as real ones do. Without `tsc_mode` Xen would emulate every
    // read of it.
    format!(
        "name = '{node}'\ntype = '{mode}'\ntsc_mode = 'native'\nkernel = '{GUEST_KERNEL}'\nramdisk = '{GUEST_INITRAMFS}'\nmemory = {}\n\
         vcpus = {}\ncpus = '{cpus}'\n{vif}{disk}{weight}\
         extra = 'console=hvc0 quiet rdinit=/init fairlane.console=hvc0 fairlane.host={node}{}'\n",
        guest_mib(topology),
        plan.cpus.len(),
        if card { &card_arguments } else { "" },
    )
}

/// Creates the guests one after the other, as the toolstack does, and then waits for all; returns their domain ids. `boot_error`
/// makes the error of a guest that does not come up.
fn create_guests(
    kind: MachineKind,
    topology: &Topology,
    clock: &Clock,
    dom0: &Agent,
    guests: &[Agent],
    boot_error: &dyn Fn(&Agent, Error) -> Error,
    progress: Progress,
) -> Result<Vec<String>, Error> {
    let (mut attaching, mut domains) = (Vec::new(), Vec::new());
    for (number, guest) in (1..).zip(guests) {
        progress(&format!("{}: booting", guest.name()));
        let path = format!("/etc/xen/{}.cfg", guest.name());
        let text = configuration(kind, topology, clock, number);
        dom0.run(Command::Write { path: path.clone().into(), text })?;
        xen(dom0, &format!("xl create -q {path}")).map_err(|error| boot_error(guest, error))?;
        let domain = xen(dom0, &format!("xl domid {}", guest.name()))?.trim().to_owned();
        if topology.backend == Backend::Kernel && number <= topology.joined() {
            // Done by Xen's hotplug script on other hosts.
            wiring::ip(dom0, &format!("link set vif{domain}.0 name {}", wiring::vif(number)))?;
        }
        let tty = format!("/local/domain/{domain}/console/tty");
        let console = dom0.await_output(&["xenstore-read", &tty], "/")?;
        let attach = Command::Attach { name: guest.name().to_owned(), console: console.trim().into() };
        attaching.push((guest, dom0.start_job(attach)?));
        domains.push(domain);
    }
    for (guest, job) in attaching {
        job.wait().map_err(|error| boot_error(guest, error))?;
    }
    Ok(domains)
}

/// Accounts and counters in dom0.
struct Dom0 {
    backend: Backend,
    /// The guests' domain ids.
    domains: Vec<String>,
}

impl Host for Dom0 {
    /// Precise to the nanosecond. dom0's time includes the request itself, up to the reading.
    fn cpu_time(&self, dom0: &Agent) -> Result<Vec<CpuTime>, Error> {
        let table = dom0.output(&[&PYTHON[..], &[CPU_TIME]].concat())?;
        let mut nanoseconds = BTreeMap::new();
        for line in table.lines() {
            let (domain, time) = line.split_once(' ').unwrap_or_default();
            nanoseconds.insert(domain, time.parse::<f64>().unwrap_or(f64::NAN));
        }
        let domains = [(Node::Host, "0")].into_iter();
        let domains = domains.chain((1..).map(Node::Guest).zip(self.domains.iter().map(String::as_str)));
        let time = |(node, domain)| {
            let failed = || Error::Failed {
                guest: dom0.name().to_owned(),
                reason: format!("the CPU time of domain {domain} ({node}) is not in Xen's account: {table}"),
            };
            let nanoseconds = nanoseconds.get(domain).filter(|time| time.is_finite()).ok_or_else(failed)?;
            Ok(CpuTime { node, seconds: nanoseconds / 1e9 })
        };
        domains.map(time).collect()
    }

    fn counters(&self, dom0: &Agent) -> Result<BTreeMap<String, Value>, Error> {
        match self.backend {
            Backend::Kernel => Ok(BTreeMap::new()),
            Backend::Fairlane => backend::counters(dom0),
        }
    }
}

fn facts(kind: MachineKind, pc: &Pc, topology: &Topology, kernel: &str) -> Result<BTreeMap<String, Value>, Error> {
    let info = xen(pc.host(), "xl info")?;
    let field = |name: &str| {
        let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(value).unwrap_or_default()
    };
    let priority = match topology.backend {
        Backend::Kernel => "netback's threads and ksoftirqd at nice 0".to_owned(),
        Backend::Fairlane => format!("Fairlane and ksoftirqd at nice {}", backend::PRIORITY),
    };
    Ok(BTreeMap::from([
        ("machine".to_owned(), json!(kind)),
        ("backend".to_owned(), json!(topology.backend)),
        ("priority".to_owned(), json!(priority)),
        ("early_ack".to_owned(), json!(topology.early_ack)),
        ("xen".to_owned(), json!(field("xen_version"))),
        ("scheduler".to_owned(), json!(field("xen_scheduler"))),
        ("slice_ms".to_owned(), json!(topology.slice_ms)),
        ("kernel".to_owned(), json!(kernel)),
        ("emulated_by".to_owned(), json!(pc::version()?)),
        ("external".to_owned(), json!(pc.external_place())),
    ]))
}
