//! The emulated computer: one hardware, whatever system it is started as, so that systems are compared on the same.
//!
//! QEMU emulates it instruction by instruction. It has two serial lines (the first keeps what the system prints, the
//! second is the agent's) and an e1000 card, its link to the external machine. On the real clock that is a process of this
//! computer, in a network namespace, that uses none of the emulated CPUs. On the clock of instructions nothing from outside
//! may take part: then the computer has a second card at the link's other end, and a CPU more, which both belong to a
//! network namespace of its own system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use fairlane_agent::Command;

use super::Clock;
use super::wiring::{self, CARD, UPLINK};
use crate::console::last_lines;
use crate::error::{Error, IoContext};
use crate::guest::{ConsoleMode, Guest};
use crate::images::{GUEST_INITRAMFS, GUEST_KERNEL};
use crate::launch::Launch;
use crate::program::{find_qemu, output};
use crate::qemu::comma_doubled;
use crate::topology::{Node, Topology};
use crate::{Agent, image, script};

/// How long the emulated computer may take from its start until its agent serves.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Where the external machine runs, in words.
const OUTSIDE: &str = "a process of the real computer, joined by a tap: on none of the emulated CPUs";
/// The same on the clock of instructions.
const INSIDE: &str =
    "a process of the emulated computer's own system, on a CPU of its own and behind a card of its own";

/// What Linux is told that has the computer to itself. It would look for ticks of the timer in a time by the CPU's own clock,
/// and panic where this computer was too busy to let them come.
pub const LINUX: &str = "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init";

/// The name of the external machine's card before it has its place.
const FAR_CARD: &str = "eth1";

/// What the computer is started with.
pub struct Software<'a> {
    /// The kernel it loads.
    pub kernel: &'a Path,
    /// The kernel's command line.
    pub command_line: String,
    /// The files the kernel is given, each with its own words, the initramfs last: for Xen dom0's kernel stands before it.
    pub modules: Vec<(&'a Path, String)>,
    /// What it needs of the CPU's features: `,-feature` a feature it does not bear.
    pub features: &'static str,
    /// Its memory, in MiB.
    pub memory_mib: usize,
    /// Where the external machine is inside: its CPU, as the computer's own system counts them.
    pub external_cpu: usize,
}

/// The length of a disk, in bytes.
const DISK_BYTES: u64 = 1 << 30;

/// How many physical CPUs the topology needs.
pub fn cpus(topology: &Topology) -> usize {
    let named = topology.guests.iter().flat_map(|guest| &guest.cpus).chain(&topology.host_cpus);
    1 + named.max().expect("a topology that was checked names CPUs")
}

/// QEMU's version, in its words.
pub fn version() -> Result<String, Error> {
    let text = output(Program::new(find_qemu()?).arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// The computer, up, and the external machine.
pub struct Computer {
    host: Guest,
    external: Agent,
    /// The external machine, where it is a process of this computer.
    outside: Option<Guest>,
    logs: PathBuf,
}

impl Computer {
    /// Starts the computer and the external machine, and waits until both their agents serve.
    pub fn start(
        software: &Software,
        topology: &Topology,
        agent: &Path,
        clock: &Clock,
        logs: &Path,
    ) -> Result<Computer, Error> {
        // Another computer may have left its own.
        for path in marks(logs) {
            fs::remove_file(&path).doing(|| path.display().to_string())?;
        }
        let logs = logs.to_owned();
        if *clock != Clock::Wall {
            let host = start(software, topology, clock, cpus(topology) + 1, agent, &logs, "any")?;
            let external = start_inside(host.agent(), software.external_cpu, topology)?;
            return Ok(Computer { host, external, outside: None, logs });
        }
        let outside = start_outside(agent, &logs, topology)?;
        let network = format!("inside={}", wiring::hello(outside.agent())?.1);
        let host = start(software, topology, clock, cpus(topology), agent, &logs, &network)?;
        Ok(Computer { host, external: outside.agent().clone(), outside: Some(outside), logs })
    }

    /// The agent of its own system.
    pub fn host(&self) -> &Agent {
        self.host.agent()
    }

    /// The external machine's agent.
    pub fn external(&self) -> &Agent {
        &self.external
    }

    /// Where the external machine runs, in words.
    pub fn external_place(&self) -> &'static str {
        if self.outside.is_some() { OUTSIDE } else { INSIDE }
    }

    /// The files of all marks so far.
    pub fn marks(&self) -> Vec<PathBuf> {
        marks(&self.logs)
    }

    /// Powers it off.
    pub fn stop(self) -> Result<(), Error> {
        let ends = [Some(self.host), self.outside].into_iter().flatten().map(Guest::stop);
        ends.collect()
    }
}

/// Starts the external machine on this computer, with the tap the emulated one is to be joined to.
fn start_outside(agent: &Path, logs: &Path, topology: &Topology) -> Result<Guest, Error> {
    let launch = Launch::process(agent).placed(agent, "new", &[]);
    let log = logs.join(format!("{}.console", Node::External));
    let external = Guest::start(&Node::External.to_string(), &log, agent, launch)?;
    wiring::quieten(external.agent())?;
    wiring::ip(external.agent(), &format!("tuntap add {CARD} mode tap"))?;
    bring_up_external(external.agent(), topology)?;
    Ok(external)
}

/// Starts the external machine in the emulated computer, on a CPU that its card interrupts as well.
fn start_inside(host: &Agent, cpu: usize, topology: &Topology) -> Result<Agent, Error> {
    let external = wiring::start_named(host, Node::External, &cpu.to_string())?;
    wiring::quieten(&external)?;
    wiring::ip(host, &format!("link set {FAR_CARD} netns {}", Node::External))?;
    wiring::ip(&external, &format!("link set {FAR_CARD} name {CARD}"))?;
    bring_up_external(&external, topology)?;
    // The line of the interrupt that bears the card's name: its number, a colon, and more. The host's own card is down.
    let interrupts = host.read("/proc/interrupts")?;
    let line = interrupts.lines().find(|line| line.split_whitespace().any(|word| word == CARD));
    let number = line.and_then(|line| line.split(':').next()).ok_or_else(|| Error::Failed {
        guest: host.name().to_owned(),
        reason: format!("the external machine's card has no line in /proc/interrupts:\n{interrupts}"),
    })?;
    let path = format!("/proc/irq/{}/smp_affinity_list", number.trim()).into();
    host.run(Command::Write { path, text: cpu.to_string() })?;
    Ok(external)
}

/// Brings the external machine's card up, and limits it.
fn bring_up_external(external: &Agent, topology: &Topology) -> Result<(), Error> {
    wiring::bring_up(external, Node::External, CARD)?;
    topology.link.map_or(Ok(()), |rate| wiring::limit(external, CARD, rate))
}

/// Starts the computer in a network of this one's, and waits until the agent of its own system serves.
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
    let (answers, scripted) = (absolute("host.answers")?, absolute("host.initramfs")?);
    let mut modules = software.modules.clone();
    let talk = match clock {
        Clock::Wall => ConsoleMode::Live,
        Clock::Record(script) => ConsoleMode::Record(script.clone()),
        Clock::Virtual(script) => {
            File::create(&answers).doing(|| answers.display().to_string())?;
            if let Some((initramfs, _)) = modules.last_mut() {
                script::append_script(initramfs, script, &scripted)?;
                *initramfs = &scripted;
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
        system: version()?,
        image: files(software),
        limit: BOOT_LIMIT,
    };
    let launch = if network == "any" { launch } else { launch.placed(agent, network, &[]) };
    let host = Guest::start_for(&talk, &Node::Host.to_string(), &log, agent, launch);
    if matches!(clock, Clock::Virtual(_)) {
        // It has been loaded.
        fs::remove_file(&scripted).doing(|| scripted.display().to_string())?;
    }
    host
}

/// Names the host's end of the link, and limits it to a rate in bits per second; it stays down until it is joined.
pub fn bring_up_link(host: &Agent, rate: Option<f64>) -> Result<(), Error> {
    wiring::quieten(host)?;
    wiring::ip(host, &format!("link set {CARD} name {UPLINK}"))?;
    rate.map_or(Ok(()), |rate| wiring::limit(host, UPLINK, rate))
}

/// What is said of a guest of the host's that does not come up: it was started from the host's initramfs `image`.
pub fn lost(guest: &Agent, error: Error, image: &Path, log: &Path) -> Error {
    // The host's agent puts a guest's name before what its kernel prints.
    let printed = last_lines(log, &format!("{}: ", guest.name()));
    let silent = matches!(error, Error::Silent { .. });
    let reason = match error {
        Error::Interrupted => return error,
        Error::Silent { .. } => "did not come up in time".to_owned(),
        Error::Failed { reason, .. } => format!("could not be made or prepare itself: {reason}"),
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

/// The file that keeps what the computer prints.
pub fn log(logs: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(logs.join(format!("{}.console", Node::Host))).doing(|| logs.display().to_string())
}

/// The host's disk that a guest is to have which wants one. On the real clock each has an NVMe disk, in order; when the emulator
/// finishes what such a disk is asked depends on what else this computer does, so on the clock of instructions the host's kernel
/// has one, which all share. Either answers at once and forgets what is written: only the way to it is measured.
pub fn disk(topology: &Topology, clock: &Clock, guest: usize) -> String {
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

/// What loads the plugin that counts instructions.
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

/// What is loaded, in words.
fn files(software: &Software) -> String {
    let modules = software.modules.iter().map(|(path, _)| format!(", {}", path.display()));
    [software.kernel.display().to_string()].into_iter().chain(modules).collect()
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// What time is on the computer, and what else would differ from run to run. On the real clock each CPU is a thread: where one
/// thread ran all in turn, Linux would take the CPUs' clocks for good ones, and guests of its KVM would wait for ever for timers.
fn time(clock: &Clock, features: &str) -> Vec<String> {
    const REPEATABLE: &str = "-seed 1 -rtc clock=vm,base=2026-01-01";
    // With XSAVE, programs of Xen's guests find other values in vector registers than they had there, in two of a thousand changes
    // of context under load (QEMU 7.2, Xen 4.17): a daemon in a guest died of it now and then. All systems have the same CPU.
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

/// The first serial line keeps what the computer prints, the second is the agent's.
fn serial_lines(clock: &Clock, log: &Path, answers: &Path) -> Vec<String> {
    let file = |id: &str, path: &Path, append: &str| format!("file,id={id}{append},path={}", comma_doubled(path));
    let agent = match clock {
        // Standard input is a socket that is connected already.
        Clock::Wall | Clock::Record(_) => "socket,id=agent,fd=0".to_owned(),
        Clock::Virtual(_) => file("agent", answers, ""),
    };
    let chardevs = ["-chardev".to_owned(), file("console", log, ",append=on"), "-chardev".to_owned(), agent];
    let devices = words("-device isa-serial,chardev=console -device isa-serial,chardev=agent");
    [&chardevs[..], &devices].concat()
}

/// The card of the computer's own system, and what is at the other end of its link.
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

fn memory_and_files(software: &Software, cpus: usize, modules: &[(&Path, String)]) -> Vec<String> {
    let module = |(path, words): &(&Path, String)| {
        format!("{} {}", comma_doubled(path), words.replace(',', ",,")).trim_end().to_owned()
    };
    let modules: Vec<String> = modules.iter().map(module).collect();
    let mut arguments = words("-nodefaults -no-user-config -display none -no-reboot -machine pc");
    arguments.extend(words(&format!("-smp {cpus} -m {}", software.memory_mib)));
    arguments.extend(["-kernel".to_owned(), software.kernel.display().to_string()]);
    arguments.extend(["-append".to_owned(), software.command_line.clone()]);
    arguments.extend(["-initrd".to_owned(), modules.join(",")]);
    arguments
}
