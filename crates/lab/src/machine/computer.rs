//! The emulated computer: one hardware, whatever system it is started as, so that systems are compared on the same.
//!
//! QEMU emulates it instruction by instruction. It has two serial lines (the first keeps what the system prints, the
//! second is the agent's) and an e1000 card, its link to the external machine: a process of this computer, in a network
//! namespace, that uses none of the emulated CPUs.

use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::time::Duration;

use super::wiring::{self, CARD, UPLINK};
use super::{Node, Topology};
use crate::error::{Error, IoContext};
use crate::guest::{Guest, Launch, output};
use crate::images::find_qemu;
use crate::qemu::comma_doubled;
use crate::{Agent, image};

/// How long the emulated computer may take from its start until its agent serves.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Where the external machine runs, in words.
pub const EXTERNAL: &str = "a process of the real computer, joined by a tap: on none of the emulated CPUs";

/// What the computer is started with.
pub struct Software<'a> {
    /// The kernel it loads.
    pub kernel: &'a Path,
    /// The kernel's command line.
    pub command_line: String,
    /// The files the kernel is given, each with its own words: for Linux the initramfs, for Xen dom0's kernel and initramfs.
    pub modules: Vec<(&'a Path, String)>,
    /// What it needs of the CPU's features: `,-feature` a feature it does not bear.
    pub features: &'static str,
    /// Its memory, in MiB.
    pub memory_mib: usize,
    /// Whether its instructions are counted.
    pub count: bool,
}

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

/// Starts the external machine, with the tap the computer is to be joined to.
pub fn start_external(agent: &Path, logs: &Path, topology: &Topology) -> Result<Guest, Error> {
    let launch = Launch {
        program: agent.to_owned(),
        arguments: vec!["serve".to_owned()],
        system: "a process of this computer, in a network namespace".to_owned(),
        image: agent.display().to_string(),
        limit: Duration::from_secs(20),
    };
    let log = logs.join(format!("{}.console", Node::External));
    let external = Guest::start(&Node::External.to_string(), &log, agent, launch.placed(agent, "new", &[]))?;
    wiring::quieten(external.agent())?;
    wiring::ip(external.agent(), &format!("tuntap add {CARD} mode tap"))?;
    wiring::bring_up(external.agent(), Node::External, CARD)?;
    if let Some(rate) = topology.link {
        wiring::limit(external.agent(), CARD, rate)?;
    }
    Ok(external)
}

/// Starts the computer, joined to the tap of the network namespace `network` (`inside=PID`), and waits until the agent
/// of its own system serves.
pub fn start(software: &Software, cpus: usize, agent: &Path, logs: &Path, network: &str) -> Result<Guest, Error> {
    let log = log(logs)?;
    let launch = Launch {
        program: find_qemu()?,
        arguments: [arguments(software, cpus, &log), counting(software, logs)?].concat(),
        system: version()?,
        image: files(software),
        limit: BOOT_LIMIT,
    };
    Guest::start(&Node::Host.to_string(), &log, agent, launch.placed(agent, network, &[]))
}

/// Names and limits the host's end of the link; it stays down until it is joined.
pub fn bring_up_link(host: &Agent, topology: &Topology) -> Result<(), Error> {
    wiring::quieten(host)?;
    wiring::ip(host, &format!("link set {CARD} name {UPLINK}"))?;
    topology.link.map_or(Ok(()), |rate| wiring::limit(host, UPLINK, rate))
}

/// The file that keeps what the computer prints.
pub fn log(logs: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(logs.join(format!("{}.console", Node::Host))).doing(|| logs.display().to_string())
}

/// What loads the plugin that counts instructions.
fn counting(software: &Software, logs: &Path) -> Result<Vec<String>, Error> {
    if !software.count {
        return Ok(Vec::new());
    }
    let out = counts(logs, 0)?.with_extension("");
    let plugin = format!("{},out={}", comma_doubled(&image::plugin()?), comma_doubled(&out));
    Ok(vec!["-plugin".to_owned(), plugin])
}

/// The file that the plugin writes at a mark, counted from 1.
fn counts(logs: &Path, mark: usize) -> Result<PathBuf, Error> {
    std::path::absolute(logs.join(format!("counts.{mark}"))).doing(|| logs.display().to_string())
}

/// The files of all marks so far.
pub fn marks(logs: &Path) -> Vec<PathBuf> {
    (1..).map_while(|mark| counts(logs, mark).ok().filter(|path| path.exists())).collect()
}

/// What is loaded, in words.
fn files(software: &Software) -> String {
    let modules = software.modules.iter().map(|(path, _)| format!(", {}", path.display()));
    [software.kernel.display().to_string()].into_iter().chain(modules).collect()
}

fn arguments(software: &Software, cpus: usize, log: &Path) -> Vec<String> {
    let module = |(path, words): &(&Path, String)| {
        format!("{} {}", comma_doubled(path), words.replace(',', ",,")).trim_end().to_owned()
    };
    let modules: Vec<String> = software.modules.iter().map(module).collect();
    let mac = wiring::mac(Node::Host).map(|byte| format!("{byte:02x}")).join(":");
    [
        "-nodefaults -no-user-config -display none -no-reboot -machine pc -accel tcg,thread=multi",
        &format!("-cpu max{} -smp {cpus} -m {}", software.features, software.memory_mib),
        &format!("-netdev tap,id=link,ifname={CARD},script=no,downscript=no -device e1000,netdev=link,mac={mac}"),
        // Standard input is a socket that is connected already.
        "-chardev socket,id=agent,fd=0 -chardev",
    ]
    .iter()
    .flat_map(|words| words.split(' '))
    .chain([
        format!("file,id=console,append=on,path={}", comma_doubled(log)).as_str(),
        "-device",
        "isa-serial,chardev=console",
        "-device",
        "isa-serial,chardev=agent",
        "-kernel",
        &software.kernel.display().to_string(),
        "-append",
        &software.command_line,
        "-initrd",
        &modules.join(","),
    ])
    .map(str::to_owned)
    .collect()
}
