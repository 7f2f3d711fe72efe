//! The emulated PC: the same hardware for native Linux, KVM and Xen, so that these are compared on equal terms.
//!
//! QEMU emulates it by TCG. It has two serial lines (the first is the system's console, the second is the agent's) and an e1000
//! card as its link to the external machine. On the real clock the external machine is a process of this host, in a network
//! namespace, that uses none of the emulated CPUs. On the virtual clock (icount) nothing from outside may take part: the PC has
//! a second card at the link's other end and one more CPU, both for a network namespace of its own system.

use std::fs::{self, File};
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{self, Command as Program};
use std::time::Duration;

use fairlane_agent::Command;

use super::wiring::{self, CARD, UPLINK};
use super::{Clock, cpus};
use crate::console::last_lines;
use crate::error::{Error, IoContext};
use crate::guest::{ConsoleMode, Guest};
use crate::images::{GUEST_INITRAMFS, GUEST_KERNEL};
use crate::launch::{Launch, may_take_turns};
use crate::program::{find_qemu, output};
use crate::qemu::comma_doubled;
use crate::topology::{Node, Topology};
use crate::{Agent, image, script};

/// How long the emulated PC may take from its start until its agent is ready.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Where the external machine runs, in words.
const OUTSIDE: &str = "a process of the real host, connected by a tap, on none of the emulated CPUs";
/// The same on the virtual clock (icount).
const INSIDE: &str = "a process of the emulated PC's own system, with its own CPU and its own card";

/// The command line of a native Linux kernel. Without `no_timer_check` it expects timer ticks within a time measured by the CPU's
/// clock, and panics if this host is too busy to emulate them in time.
pub(super) const LINUX: &str = "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init";

/// The name of the external machine's card before it is moved into its namespace.
const FAR_CARD: &str = "eth1";

/// The name of the kernel's file in the emulator's directory.
const KERNEL: &str = "kernel";

/// The software that the PC boots.
pub(super) struct Software<'a> {
    /// The kernel.
    pub kernel: &'a Path,
    /// The kernel's command line.
    pub command_line: String,
    /// The files passed to the kernel, each with its command line; the initramfs is last. For Xen dom0's kernel comes before it.
    pub modules: Vec<(&'a Path, String)>,
    /// CPU features to disable, `,-feature` each.
    pub features: &'static str,
    /// Its memory, in MiB.
    pub memory_mib: usize,
    /// The external machine's CPU on the virtual clock (icount), as the PC's own system numbers it.
    pub external_cpu: usize,
}

/// The size of a disk, in bytes.
const DISK_BYTES: u64 = 1 << 30;

/// How many physical CPUs the topology needs.
pub(super) fn cpus(topology: &Topology) -> usize {
    let named = topology.guests.iter().flat_map(|guest| &guest.cpus).chain(&topology.host_cpus);
    1 + named.max().expect("a checked topology names CPUs")
}

/// QEMU's version, as it prints it.
pub(super) fn version() -> Result<String, Error> {
    let text = output(Program::new(find_qemu()?).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The running PC, and the external machine.
pub(super) struct Pc {
    host: Guest,
    external: Agent,
    /// The external machine, if it is a process of this host.
    outside: Option<Guest>,
    logs: PathBuf,
}

impl Pc {
    /// Starts the PC and the external machine, and waits until both agents are ready.
    pub(super) fn start(
        software: &Software,
        topology: &Topology,
        agent: &Path,
        clock: &Clock,
        logs: &Path,
    ) -> Result<Pc, Error> {
        // An earlier run may have left its files.
        for path in marks(logs) {
            fs::remove_file(&path).doing(|| path.display().to_string())?;
        }
        let logs = logs.to_owned();
        if *clock != Clock::Wall {
            let host = start(software, topology, clock, cpus(topology) + 1, agent, &logs, "any")?;
            let external = start_inside(host.agent(), software.external_cpu, topology)?;
            return Ok(Pc { host, external, outside: None, logs });
        }
        let outside = start_outside(agent, &logs, topology)?;
        let network = format!("inside={}", wiring::hello(outside.agent())?.1);
        let host = start(software, topology, clock, cpus(topology), agent, &logs, &network)?;
        Ok(Pc { host, external: outside.agent().clone(), outside: Some(outside), logs })
    }

    /// The agent of the PC's own system.
    pub(super) fn host(&self) -> &Agent {
        self.host.agent()
    }

    /// The external machine's agent.
    pub(super) fn external(&self) -> &Agent {
        &self.external
    }

    /// Where the external machine runs, in words.
    pub(super) fn external_place(&self) -> &'static str {
        if self.outside.is_some() { OUTSIDE } else { INSIDE }
    }

    /// The files of all marks so far.
    pub(super) fn marks(&self) -> Vec<PathBuf> {
        marks(&self.logs)
    }

    /// Powers it off.
    pub(super) fn stop(self) -> Result<(), Error> {
        let ends = [Some(self.host), self.outside].into_iter().flatten().map(Guest::stop);
        ends.collect()
    }
}

/// Starts the external machine on this host, with the tap for the emulated PC.
fn start_outside(agent: &Path, logs: &Path, topology: &Topology) -> Result<Guest, Error> {
    let launch = Launch::process(agent).placed(agent, "new", &[]);
    let log = logs.join(format!("{}.console", Node::External));
    let external = Guest::start(&Node::External.to_string(), &log, agent, launch)?;
    wiring::prepare_network(external.agent())?;
    wiring::ip(external.agent(), &format!("tuntap add {CARD} mode tap"))?;
    bring_up_external(external.agent(), topology)?;
    Ok(external)
}

/// Starts the external machine in the emulated PC, on its own CPU, to which its card's interrupt is bound as well.
fn start_inside(host: &Agent, cpu: usize, topology: &Topology) -> Result<Agent, Error> {
    let external = wiring::start_named(host, Node::External, &cpu.to_string())?;
    wiring::prepare_network(&external)?;
    wiring::ip(host, &format!("link set {FAR_CARD} netns {}", Node::External))?;
    wiring::ip(&external, &format!("link set {FAR_CARD} name {CARD}"))?;
    bring_up_external(&external, topology)?;
    // The line with the card's name starts with the interrupt's number and a colon. The host's own card is down.
    let interrupts = host.read("/proc/interrupts")?;
    let line = interrupts.lines().find(|line| line.split_whitespace().any(|word| word == CARD));
    let number = line.and_then(|line| line.split(':').next()).ok_or_else(|| Error::Failed {
        guest: host.name().to_owned(),
        reason: format!("/proc/interrupts has no line of the external machine's card:\n{interrupts}"),
    })?;
    let path = format!("/proc/irq/{}/smp_affinity_list", number.trim()).into();
    host.run(Command::Write { path, text: cpu.to_string() })?;
    Ok(external)
}

/// Brings the external machine's card up and limits its rate.
fn bring_up_external(external: &Agent, topology: &Topology) -> Result<(), Error> {
    wiring::bring_up(external, Node::External, CARD)?;
    topology.link.map_or(Ok(()), |rate| wiring::limit(external, CARD, rate))
}

/// Starts the PC in a network namespace of this host, and waits until its own agent is ready.
fn start(
    software: &Software,
    topology: &Topology,
    clock: &Clock,
    cpus: usize,
    agent: &Path,
    logs: &Path,
    network: &str,
) -> Result<Guest, Error> {
    let absolute = |name: &str| std::path::absolute(logs.join(name)).doing(|| logs.display().to_string());
    let log = log(logs)?;
    let (answers, with_script) = (absolute("host.answers")?, absolute("host.initramfs")?);
    let mut modules = software.modules.clone();
    let mode = match clock {
        Clock::Wall => ConsoleMode::Live,
        Clock::Record(script) => ConsoleMode::Record(script.clone()),
        Clock::Virtual(script) => {
            File::create(&answers).doing(|| answers.display().to_string())?;
            if let Some((initramfs, _)) = modules.last_mut() {
                script::append_script(initramfs, script, &with_script)?;
                *initramfs = &with_script;
            }
            ConsoleMode::Replay { script: script.clone(), answers: answers.clone() }
        }
    };
    let launch = Launch {
        program: find_qemu()?,
        arguments: [
            time(clock, software.features),
            serial_lines(clock, &log, &answers),
            cards(clock),
            memory_and_files(software, cpus, &modules),
            disks(topology, clock),
            if topology.count { counting(logs)? } else { Vec::new() },
        ]
        .concat(),
        links: links(software.kernel, &modules),
        system: version()?,
        image: files(software),
        limit: BOOT_LIMIT,
    };
    let launch = if network == "any" { launch } else { launch.placed(agent, network, &[]) };
    let launch = if matches!(clock, Clock::Virtual(_)) { in_turns(launch)? } else { launch };
    let host = Guest::start_for(&mode, &Node::Host.to_string(), &log, agent, launch);
    if matches!(clock, Clock::Virtual(_)) {
        // QEMU has loaded it.
        fs::remove_file(&with_script).doing(|| with_script.display().to_string())?;
    }
    host
}

/// The emulator on the virtual clock (icount), with its threads taking turns, if that is permitted. Otherwise its main loop, woken
/// by a card that has taken frames from its queue, may look whether all emulated CPUs sleep at the moment when one falls asleep,
/// whose last instructions are not yet counted. It then moves the clock to the next timer, and they are added to that.
fn in_turns(launch: Launch) -> Result<Launch, Error> {
    if !may_take_turns() {
        return Ok(launch);
    }
    let usable = cpus::usable()?;
    // Another emulator is likely to have another one.
    let cpu = usable.iter().nth(process::id() as usize % usable.len()).copied();
    Ok(launch.in_turns(cpu.unwrap_or_default()))
}

/// How the emulator's threads run on the virtual clock (icount), in words.
pub(super) fn turns() -> &'static str {
    if may_take_turns() {
        "one after the other, on one CPU, at a real-time priority"
    } else {
        "at the same time, as real-time priorities are not permitted: now and then a run differs"
    }
}

/// Renames the host's end of the link and limits it to a rate in bits per second. It stays down until the cards are connected.
pub(super) fn bring_up_link(host: &Agent, rate: Option<f64>) -> Result<(), Error> {
    wiring::prepare_network(host)?;
    wiring::ip(host, &format!("link set {CARD} name {UPLINK}"))?;
    rate.map_or(Ok(()), |rate| wiring::limit(host, UPLINK, rate))
}

/// The error of a host's guest that does not come up. The guest's kernel is in the host's initramfs `image`.
pub(super) fn boot_error(guest: &Agent, error: Error, image: &Path, log: &Path) -> Error {
    // The host's agent prints the guests' console output with the guest's name before each line.
    let printed = last_lines(log, &format!("{}: ", guest.name()));
    let silent = matches!(error, Error::Silent { .. });
    let reason = match error {
        Error::Interrupted => return error,
        Error::Silent { .. } => "did not come up in time".to_owned(),
        Error::Failed { reason, .. } => format!("could not be started or prepare itself: {reason}"),
        Error::Gone { how, .. } => format!("ended: {how}"),
        _ => "was lost with its host".to_owned(),
    };
    Error::Boot {
        guest: guest.name().to_owned(),
        image: format!("{GUEST_KERNEL} and {GUEST_INITRAMFS} in {}", image.display()).into(),
        reason,
        silent,
        log: log.to_owned(),
        console: if printed.is_empty() { last_lines(log, "") } else { printed },
    }
}

/// The log of the PC's console.
pub(super) fn log(logs: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(logs.join(format!("{}.console", Node::Host))).doing(|| logs.display().to_string())
}

/// The host's disk for a guest that has one. On the real clock each guest has an NVMe disk, in order. The emulator completes requests
/// to these at times that depend on this host's load, so on the virtual clock (icount) all share a null_blk disk of the host's
/// kernel. Either completes requests at once and discards data: only the path to the disk is measured.
pub(super) fn disk(topology: &Topology, clock: &Clock, guest: usize) -> String {
    match clock {
        Clock::Wall => {
            let before = topology.guests[..guest - 1].iter().filter(|guest| guest.disk).count();
            format!("/dev/nvme{before}n1")
        }
        Clock::Record(_) | Clock::Virtual(_) => "/dev/nullb0".to_owned(),
    }
}

/// The NVMe disks' options; see [`disk`].
fn disks(topology: &Topology, clock: &Clock) -> Vec<String> {
    if *clock != Clock::Wall {
        return Vec::new();
    }
    let disk = |number| {
        let back = format!("driver=null-co,node-name=disk{number},size={DISK_BYTES},read-zeroes=on");
        let front = format!("nvme,drive=disk{number},serial=disk{number}");
        ["-blockdev".to_owned(), back, "-device".to_owned(), front]
    };
    (0..topology.guests.iter().filter(|guest| guest.disk).count()).flat_map(disk).collect()
}

/// The options that load the plugin that counts instructions.
fn counting(logs: &Path) -> Result<Vec<String>, Error> {
    let out = counts(logs, 0)?.with_extension("");
    let plugin = format!("{},out={}", comma_doubled(&image::plugin()?), comma_doubled(&out));
    Ok(vec!["-plugin".to_owned(), plugin])
}

/// The file that the plugin writes at a mark, counted from 1.
fn counts(logs: &Path, mark: usize) -> Result<PathBuf, Error> {
    std::path::absolute(logs.join(format!("counts.{mark}"))).doing(|| logs.display().to_string())
}

/// The files of all marks so far.
fn marks(logs: &Path) -> Vec<PathBuf> {
    (1..).map_while(|mark| counts(logs, mark).ok().filter(|path| path.exists())).collect()
}

/// The loaded files, in words.
fn files(software: &Software) -> String {
    let modules = software.modules.iter().map(|(path, _)| format!(", {}", path.display()));
    [software.kernel.display().to_string()].into_iter().chain(modules).collect()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Options of the clock, and of what else would differ from run to run. On the real clock each CPU is a thread: with one thread for
/// all, Linux would take the CPUs' time stamp counters for stable, and KVM's guests would wait forever for timers.
fn time(clock: &Clock, features: &str) -> Vec<String> {
    const REPEATABLE: &str = "-seed 1 -rtc clock=vm,base=2026-01-01";
    // With XSAVE, two of a thousand context switches of Xen's guests under load corrupt vector registers (QEMU 7.2, Xen 4.17), and
    // daemons in guests crash now and then. It is disabled for all systems, so that they have the same CPU.
    const CPU: &str = "-cpu max,-xsave";
    words(&match clock {
        Clock::Wall => format!("-accel tcg,thread=multi {CPU}{features}"),
        Clock::Record(_) => {
            format!("-accel tcg,thread=multi {CPU}{features},-rdrand,-rdseed {REPEATABLE}")
        }
        Clock::Virtual(_) => {
            format!("-accel tcg,thread=single -icount shift=0,sleep=off {CPU}{features},-rdrand,-rdseed {REPEATABLE}")
        }
    })
}

/// The first serial line is the system's console, the second is the agent's.
fn serial_lines(clock: &Clock, log: &Path, answers: &Path) -> Vec<String> {
    let file = |id: &str, path: &Path, append: &str| format!("file,id={id}{append},path={}", comma_doubled(path));
    let agent = match clock {
        // Standard input is a connected socket.
        Clock::Wall | Clock::Record(_) => "socket,id=agent,fd=0".to_owned(),
        Clock::Virtual(_) => file("agent", answers, ""),
    };
    let chardevs = ["-chardev".to_owned(), file("console", log, ",append=on"), "-chardev".to_owned(), agent];
    let devices = words("-device isa-serial,chardev=console -device isa-serial,chardev=agent");
    [&chardevs[..], &devices].concat()
}

/// The card of the PC's own system, and the other end of its link.
fn cards(clock: &Clock) -> Vec<String> {
    let card = |netdev: &str, node: Node| format!("-device e1000,netdev={netdev},mac={}", node.mac());
    words(&match clock {
        Clock::Wall => {
            format!("-netdev tap,id=link,ifname={CARD},script=no,downscript=no {}", card("link", Node::Host))
        }
        Clock::Record(_) | Clock::Virtual(_) => format!(
            "-netdev hubport,id=link,hubid=0 -netdev hubport,id=far,hubid=0 {} {}",
            card("link", Node::Host),
            card("far", Node::External)
        ),
    })
}

/// The name of a file that is passed to the kernel.
fn module_name(number: usize) -> String {
    format!("module{number}")
}

/// The files to boot, under names that are the same each time: the emulator passes them to Xen, which would take its instructions
/// to read longer ones.
fn links(kernel: &Path, modules: &[(&Path, String)]) -> Vec<(String, PathBuf)> {
    let modules = modules.iter().enumerate().map(|(number, (path, _))| (module_name(number), path.to_path_buf()));
    iter::once((KERNEL.to_owned(), kernel.to_owned())).chain(modules).collect()
}

fn memory_and_files(software: &Software, cpus: usize, modules: &[(&Path, String)]) -> Vec<String> {
    let module = |(number, (_, words)): (usize, &(&Path, String))| {
        format!("{} {}", module_name(number), words.replace(',', ",,")).trim_end().to_owned()
    };
    let modules: Vec<String> = modules.iter().enumerate().map(module).collect();
    let mut arguments = words("-nodefaults -no-user-config -display none -no-reboot -machine pc");
    arguments.extend(words(&format!("-smp {cpus} -m {}", software.memory_mib)));
    arguments.extend(["-kernel".to_owned(), KERNEL.to_owned()]);
    arguments.extend(["-append".to_owned(), software.command_line.clone()]);
    arguments.extend(["-initrd".to_owned(), modules.join(",")]);
    arguments
}
