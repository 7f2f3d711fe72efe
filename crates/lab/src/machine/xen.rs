//! The emulated computer as a Xen host: dom0 is the driver domain, guests are paravirtual.
//!
//! dom0's agent runs Xen's own tools; each guest's agent is reached over its console, which dom0's agent attaches.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fairlane_agent::Command;
use serde_json::{Value, json};

use super::computer::{self, Software};
use super::wiring;
use super::{Clock, CpuTime, Machine, Node, Scheduler, Topology};
use crate::error::Error;
use crate::guest::{Guest, last_lines};
use crate::images::{CPU_TIME, GUEST_INITRAMFS, GUEST_KERNEL, XEN_PROGRAMS, XenImages};
use crate::{Agent, Progress, image};

/// The memory of dom0 and of a guest, and what is left to the hypervisor, in MiB.
const DOM0_MIB: usize = 640;
const GUEST_MIB: usize = 128;
const XEN_MIB: usize = 128;

/// How long the toolstack's daemons may take until they serve.
const PATIENCE: Duration = Duration::from_secs(20);

/// Boots one.
pub fn boot(topology: &Topology, clock: Clock, logs: &Path, progress: Progress) -> Result<Box<dyn Machine>, Error> {
    if clock == Clock::Instructions {
        return Err(Error::Missing("machine xen has the wall clock only".to_owned()));
    }
    let agent = image::agent()?;
    let images = XenImages::build(&agent)?;
    progress("external machine");
    let external = computer::start_external(&agent, logs, topology)?;
    progress("Xen and dom0: booting");
    let software = software(&images, topology);
    let network = format!("inside={}", wiring::hello(external.agent())?.1);
    let host = computer::start(&software, computer::cpus(topology), &agent, logs, &network)?;
    let dom0 = host.agent();
    start_toolstack(dom0, topology)?;
    if topology.count {
        // What was executed until here was dom0's, and so are its pages.
        dom0.run(Command::Mark)?;
    }
    let guests: Vec<Agent> =
        (1..=topology.guests.len()).map(|number| dom0.behind(&Node::Guest(number).to_string())).collect();
    let mut machine = Xen {
        guests,
        domains: Vec::new(),
        external,
        host,
        facts: BTreeMap::new(),
        log: computer::log(logs)?,
        image: images.dom0,
        logs: logs.to_owned(),
    };
    machine.create_guests(topology, progress)?;
    computer::bring_up_link(machine.host.agent(), topology)?;
    wiring::join(machine.host.agent(), topology.join, topology.joined())?;
    machine.facts = facts(&machine, topology, &images.release)?;
    Ok(Box::new(machine))
}

fn software<'a>(images: &'a XenImages, topology: &Topology) -> Software<'a> {
    let scheduler = match (topology.scheduler, topology.slice_ms) {
        (Scheduler::Credit, Some(slice)) => format!("credit sched_credit_tslice_ms={slice}"),
        (Scheduler::Credit, None) => "credit".to_owned(),
        (Scheduler::Credit2, _) => "credit2".to_owned(),
    };
    Software {
        kernel: &images.hypervisor,
        command_line: format!(
            "console=com1 com1=115200 smap=0 dom0_mem={DOM0_MIB}M dom0_max_vcpus={} sched={scheduler}",
            topology.host_cpus.len()
        ),
        modules: vec![
            (&images.kernel, "console=hvc0 quiet rdinit=/init fairlane.console=ttyS1 fairlane.host=dom0".to_owned()),
            (&images.dom0, String::new()),
        ],
        // With SMAP, dom0 dies in Xen's create_bounce_frame.
        features: ",-smap",
        count: topology.count,
        memory_mib: DOM0_MIB + topology.guests.len() * GUEST_MIB + XEN_MIB,
    }
}

/// Runs one of Xen's own programs.
fn xen(dom0: &Agent, line: &str) -> Result<String, Error> {
    let words = format!("/{XEN_PROGRAMS}/{line}");
    dom0.output(&words.split(' ').collect::<Vec<_>>())
}

/// Does it again until it is done, or patience ends.
fn retry<T>(limit: Duration, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(Error::Failed { .. }) if start.elapsed() < limit => thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}

fn start_toolstack(dom0: &Agent, topology: &Topology) -> Result<(), Error> {
    xen(dom0, "xenstored --pid-file /run/xenstored.pid")?;
    // It goes to the background before it listens.
    retry(PATIENCE, || xen(dom0, "xen-init-dom0"))?;
    xen(dom0, "xenconsoled --pid-file=/run/xenconsoled.pid")?;
    for (vcpu, cpu) in topology.host_cpus.iter().enumerate() {
        xen(dom0, &format!("xl vcpu-pin 0 {vcpu} {cpu} {cpu}"))?;
    }
    Ok(())
}

/// A guest's configuration, as xl.cfg(5) has it.
fn configuration(topology: &Topology, number: usize) -> String {
    let node = Node::Guest(number);
    let plan = &topology.guests[number - 1];
    let cpus = plan.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let card = number <= topology.joined();
    let mac = wiring::mac(node).map(|byte| format!("{byte:02x}")).join(":");
    let rate = plan.rate.map(|rate| format!(",rate={rate:.0}b/s")).unwrap_or_default();
    let vif = if card { format!("vif = ['mac={mac}{rate}']\n") } else { String::new() };
    let address = wiring::address(node);
    let ip = format!(" fairlane.card=eth0 fairlane.mac={mac} fairlane.ip={address}/{}", wiring::PREFIX);
    let weight = plan.weight.map(|weight| format!("cpu_weight = {weight}\n")).unwrap_or_default();
    format!(
        "name = '{node}'\ntype = 'pv'\nkernel = '{GUEST_KERNEL}'\nramdisk = '{GUEST_INITRAMFS}'\nmemory = {GUEST_MIB}\n\
         vcpus = {}\ncpus = '{cpus}'\n{vif}{weight}\
         extra = 'console=hvc0 quiet rdinit=/init fairlane.console=hvc0 fairlane.host={node}{}'\n",
        plan.cpus.len(),
        if card { &ip } else { "" },
    )
}

/// A Xen host that is up. The guests' agents are reached over dom0's.
struct Xen {
    guests: Vec<Agent>,
    /// The guests' numbers, as Xen counts domains.
    domains: Vec<String>,
    host: Guest,
    external: Guest,
    facts: BTreeMap<String, Value>,
    log: PathBuf,
    image: PathBuf,
    logs: PathBuf,
}

impl Xen {
    /// Creates the guests one after the other, as the toolstack does, and then waits for all.
    fn create_guests(&mut self, topology: &Topology, progress: Progress) -> Result<(), Error> {
        let dom0 = self.host.agent();
        let (mut attaching, mut domains) = (Vec::new(), Vec::new());
        for (number, guest) in (1..).zip(&self.guests) {
            progress(&format!("{}: booting", guest.name()));
            let path = format!("/etc/xen/{}.cfg", guest.name());
            dom0.run(Command::Write { path: path.clone().into(), text: configuration(topology, number) })?;
            xen(dom0, &format!("xl create -q {path}")).map_err(|error| self.lost(guest, error))?;
            let domain = xen(dom0, &format!("xl domid {}", guest.name()))?;
            let domain = domain.trim();
            domains.push(domain.to_owned());
            if number <= topology.joined() {
                // Xen's own hotplug script would name it.
                wiring::ip(dom0, &format!("link set vif{}.0 name {}", domain, wiring::vif(number)))?;
            }
            let tty = format!("/local/domain/{}/console/tty", domain);
            let console = retry(PATIENCE, || dom0.output(&["xenstore-read", &tty]))?;
            let attach = Command::Attach { name: guest.name().to_owned(), console: console.trim().into() };
            attaching.push((guest, dom0.start_job(attach)?));
        }
        for (guest, job) in attaching {
            job.wait().map_err(|error| self.lost(guest, error))?;
        }
        self.domains = domains;
        Ok(())
    }

    /// What is said of a guest that does not come up.
    fn lost(&self, guest: &Agent, error: Error) -> Error {
        // dom0's agent puts a guest's name before what its kernel prints.
        let printed = last_lines(&self.log, &format!("{}: ", guest.name()));
        Error::Boot {
            guest: guest.name().to_owned(),
            image: format!("{GUEST_KERNEL} and {GUEST_INITRAMFS} in {}", self.image.display()),
            reason: match error {
                Error::Silent { .. } => "did not come up in time".to_owned(),
                Error::Failed { reason, .. } => format!("could not be made or prepare itself: {reason}"),
                _ => "was lost with its host".to_owned(),
            },
            log: self.log.clone(),
            console: if printed.is_empty() { last_lines(&self.log, "") } else { printed },
        }
    }
}

impl Machine for Xen {
    fn agent(&self, node: Node) -> &Agent {
        match node {
            Node::External => self.external.agent(),
            Node::Host => self.host.agent(),
            Node::Guest(number) => &self.guests[number - 1],
        }
    }

    fn address(&self, node: Node) -> Ipv4Addr {
        wiring::address(node)
    }

    /// In whole nanoseconds; dom0's has the few milliseconds in it that the asking takes.
    fn cpu_time(&self) -> Result<Vec<CpuTime>, Error> {
        let table = self.host.agent().output(&["/usr/bin/python3.11", "-I", "-S", CPU_TIME])?;
        let mut nanoseconds = BTreeMap::new();
        for line in table.lines() {
            let (domain, time) = line.split_once(' ').unwrap_or_default();
            nanoseconds.insert(domain, time.parse::<f64>().unwrap_or(f64::NAN));
        }
        let domains = [(Node::Host, "0")].into_iter();
        let domains = domains.chain((1..).map(Node::Guest).zip(self.domains.iter().map(String::as_str)));
        let time = |(node, domain)| {
            let failed = || Error::Failed {
                guest: self.host.agent().name().to_owned(),
                reason: format!("the CPU time of domain {domain} ({node}) is not in Xen's account: {table}"),
            };
            let nanoseconds = nanoseconds.get(domain).filter(|time| time.is_finite()).ok_or_else(failed)?;
            Ok(CpuTime { node, seconds: nanoseconds / 1e9 })
        };
        domains.map(time).collect()
    }

    fn marks(&self) -> Vec<PathBuf> {
        computer::marks(&self.logs)
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        self.facts.clone()
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let Xen { host, external, .. } = *self;
        // Guests end with their host.
        let ends = [host, external].map(Guest::stop);
        ends.into_iter().collect()
    }
}

fn facts(machine: &Xen, topology: &Topology, kernel: &str) -> Result<BTreeMap<String, Value>, Error> {
    let info = xen(machine.host.agent(), "xl info")?;
    let told = |name: &str| {
        let value = |line: &str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(value).unwrap_or_default()
    };
    Ok(BTreeMap::from([
        ("machine".to_owned(), json!("xen")),
        ("xen".to_owned(), json!(told("xen_version"))),
        ("scheduler".to_owned(), json!(told("xen_scheduler"))),
        ("slice_ms".to_owned(), json!(topology.slice_ms)),
        ("kernel".to_owned(), json!(kernel)),
        ("emulated_by".to_owned(), json!(computer::version()?)),
        ("external".to_owned(), json!(computer::EXTERNAL)),
    ]))
}
