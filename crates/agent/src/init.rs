//! The setup of process 1: mounts, modules, host name, network.
//!
//! The arguments are on the kernel's command line: `fairlane.console=ttyS0` (the console with the requests),
//! `fairlane.host=NAME`, and for a network card `fairlane.card=NAME`, `fairlane.mac=MAC` and
//! `fairlane.ip=ADDRESS/PREFIX`. Kernel modules are in `/modules`; the file `order` there names them, one per line, in load
//! order. With a file `/script` the agent replays the script and reads nothing from its console.

use std::{
    convert::Infallible,
    fs::{self, File},
    io::{BufReader, Write},
    net::Ipv4Addr,
    path::Path,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fairlane_agent::{Event, Message, encode, open_raw, read_script, replay, serve};
use nix::{
    errno::Errno,
    kmod::{ModuleInitFlags, finit_module},
    mount::{MsFlags, mount},
    net::if_::if_nametoindex,
    sys::{
        reboot::{RebootMode, reboot},
        termios::tcdrain,
    },
};

use crate::network;

/// How long the network card may take to appear after its driver is loaded.
const CARD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the card may take to detect its carrier.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// The path of the script that the agent replays, if there is one; it reads no requests then.
const SCRIPT: &str = "/script";

/// Prepares the guest, serves requests, and powers the guest off. Does not return if that succeeds.
pub(crate) fn run() -> ExitCode {
    if let Err(error) = prepare_and_serve() {
        eprintln!("fairlane-agent: {error:#}");
    }
    let Err(error): Result<Infallible, Errno> = reboot(RebootMode::RB_POWER_OFF);
    eprintln!("fairlane-agent: power off: {error}");
    ExitCode::FAILURE
}

fn prepare_and_serve() -> anyhow::Result<()> {
    mount_all()?;
    let arguments = Arguments::read(&fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?)?;
    let mut console = open_raw(&Path::new("/dev").join(&arguments.console))?;
    if let Err(error) = prepare(&arguments) {
        console.write_all(&encode(&Message { id: 0, event: Event::Failed(format!("{error:#}")) }))?;
        tcdrain(&console)?;
        return Err(error);
    }
    let output = console.try_clone()?;
    let ended = match File::open(SCRIPT) {
        Ok(script) => read_script(BufReader::new(script)).and_then(|script| replay(script, output)),
        Err(_) => serve(BufReader::new(console.try_clone()?), output),
    };
    let _ = tcdrain(&console);
    ended.map(|_| ()).context("the console")
}

fn mount_all() -> anyhow::Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount_on(kind, place)?;
    }
    Ok(())
}

fn mount_on(kind: &str, place: &str) -> anyhow::Result<()> {
    mount(Some(kind), place, Some(kind), MsFlags::empty(), None::<&str>)
        .with_context(|| format!("mount {kind} on {place}"))
}

/// The agent's arguments on the kernel's command line.
#[derive(Debug, PartialEq)]
struct Arguments {
    console: String,
    host: Option<String>,
    card: Option<Card>,
}

#[derive(Debug, PartialEq)]
struct Card {
    name: String,
    mac: [u8; 6],
    address: Ipv4Addr,
    prefix: u8,
}

impl Arguments {
    fn read(line: &str) -> anyhow::Result<Arguments> {
        let find = |key: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix("fairlane.")?.strip_prefix(key)?.strip_prefix('='))
        };
        let card = match (find("card"), find("mac"), find("ip")) {
            (None, None, None) => None,
            (Some(name), Some(mac), Some(ip)) => Some(Card::read(name, mac, ip)?),
            _ => bail!("fairlane.card, fairlane.mac and fairlane.ip go together, but not all are given"),
        };
        Ok(Arguments {
            console: find("console").context("fairlane.console is not given: the name of a tty is needed")?.to_owned(),
            host: find("host").map(str::to_owned),
            card,
        })
    }
}

impl Card {
    fn read(name: &str, mac: &str, ip: &str) -> anyhow::Result<Card> {
        let bytes: Option<Vec<u8>> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
        let mac = bytes
            .and_then(|bytes| bytes.try_into().ok())
            .with_context(|| format!("fairlane.mac={mac}: six bytes like 02:00:00:00:00:01 are needed"))?;
        let (address, prefix) = ip
            .split_once('/')
            .and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)))
            .filter(|(_, prefix)| *prefix <= 32)
            .with_context(|| format!("fairlane.ip={ip}: an address and prefix like 10.0.0.1/24 are needed"))?;
        Ok(Card { name: name.to_owned(), mac, address, prefix })
    }
}

fn prepare(arguments: &Arguments) -> anyhow::Result<()> {
    // IPv6's own frames would be measured too. A kernel without IPv6 has no such file.
    let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    // Frames wait in this queue until ARP has resolved the address. It is larger than a socket's buffer, so none are dropped.
    fs::write("/proc/sys/net/ipv4/neigh/default/unres_qlen_bytes", "16777216").context("room for ARP's queue")?;
    load_modules()?;
    if fs::read_to_string("/proc/filesystems").context("/proc/filesystems")?.contains("xenfs") {
        prepare_xen_host()?;
    }
    if let Some(host) = &arguments.host {
        fs::write("/proc/sys/kernel/hostname", host).context("set the host name")?;
    }
    network::bring_up(if_nametoindex("lo")?, None).context("lo")?;
    if let Some(card) = &arguments.card {
        let name = &card.name;
        let index = await_card(name)?;
        network::bring_up(index, Some(card.mac)).with_context(|| format!("{name}: MAC address and link up"))?;
        network::add_address(index, card.address, card.prefix).with_context(|| format!("{name}: address"))?;
        await_carrier(name);
    }
    Ok(())
}

/// Waits until a card has a carrier, as frames sent before are lost; an e1000 takes a second or two. Gives up without an error, as
/// the other end may come up later.
fn await_carrier(name: &str) {
    let start = Instant::now();
    let carries = || fs::read_to_string(format!("/sys/class/net/{name}/carrier")).is_ok_and(|text| text.trim() == "1");
    while !carries() && start.elapsed() < CARRIER_TIMEOUT {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Mounts what Xen's tools need: xenfs, and devpts for the guests' consoles.
fn prepare_xen_host() -> anyhow::Result<()> {
    fs::create_dir_all("/dev/pts").context("/dev/pts")?;
    mount_on("devpts", "/dev/pts")?;
    mount_on("xenfs", "/proc/xen")
}

fn load_modules() -> anyhow::Result<()> {
    let order = fs::read_to_string("/modules/order").context("/modules/order")?;
    for name in order.lines() {
        let path = format!("/modules/{name}");
        let file = File::open(&path).with_context(|| path.clone())?;
        match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => (),
            Err(error) => return Err(error).with_context(|| format!("load {path}")),
        }
    }
    Ok(())
}

/// Waits for an interface; returns its index.
fn await_card(name: &str) -> anyhow::Result<u32> {
    let start = Instant::now();
    loop {
        match if_nametoindex(name) {
            Ok(index) => return Ok(index),
            Err(_) if start.elapsed() < CARD_TIMEOUT => thread::sleep(Duration::from_millis(10)),
            Err(_) => bail!("no network card {name} appeared within {} s", CARD_TIMEOUT.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed() {
        let line = "mem=64M fairlane.console=ttyS0 fairlane.host=red fairlane.card=eth0 \
                    fairlane.mac=02:00:00:00:00:0a fairlane.ip=10.0.0.1/24\n";
        let name = "eth0".to_owned();
        let card = Card { name, mac: [2, 0, 0, 0, 0, 10], address: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 };
        let arguments = Arguments { console: "ttyS0".to_owned(), host: Some("red".to_owned()), card: Some(card) };
        assert_eq!(Arguments::read(line).unwrap(), arguments);
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (arguments, named) in [
            ("quiet", "fairlane.console"),
            ("console=t ip=10.0.0.1/24", "go together"),
            ("console=t card=eth0 mac=02:00 ip=10.0.0.1/24", "02:00"),
            ("console=t card=eth0 mac=02:00:00:00:00:01 ip=10.0.0.1/33", "10.0.0.1/33"),
        ] {
            let line: String = arguments.split(' ').map(|word| format!("fairlane.{word} ")).collect();
            let error = Arguments::read(&line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
