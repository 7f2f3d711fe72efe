//! Part guest: TCP between two User-Mode Linux guests, through Fairlane and through the kernel's bridge.
//!
//! Both pairs of guests stay up, and each has a stream of its own in a slice, whose first part is not measured: windows grow.
//! A stream that stood still between slices would be slow for seconds after a loss. Threads are not pinned.

use crate::backend::{Backend, Uplink};
use crate::machine::{self, Favoured, Missing};
use crate::rounds::{Contestant, settle};
use crate::{Run, at_least, process};
use anyhow::{Context, Result, bail};
use fairlane_lab::{Command, Event, Guest, GuestSpec, Kind, Nic, Tools, interrupt};
use fairlane_load::{ReceiveSpec, tcp};
use fairlane_report::Figure;
use nix::sched::{CloneFlags, unshare};
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

const TITLE: &str = "TCP between two guests";

const PORT: u16 = 5001;

/// Seconds of an interval in which the receiver counts.
const INTERVAL: f64 = 0.015;

/// Intervals with bytes that are not measured, and those that are.
const WARM: usize = 2;
const MEASURED: usize = 4;

/// Seconds of a slice: both, and time for the stream to begin.
const SLICE: f64 = 0.12;

/// Measures both and adds the results.
///
/// # Errors
/// Missing programs or permissions, or guests that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    if !run.machine.root {
        return Err(Missing("only root can create a bridge and taps".to_owned()).into());
    }
    machine::find("ip", "iproute2")?;
    machine::find("linux.uml", "user-mode-linux")?;
    let home = tempfile::tempdir()?;
    run.show("guest: booting four guests".to_owned());
    let _favoured = Favoured::start();
    let sockets = [1, 2].map(|number| (home.path().join(format!("{number}.sock")), mac(number)));
    let backend = Backend::start(&sockets, Uplink::None, None)?;
    let ours = boot(home.path(), "fairlane", |number| fairlane_lab::Backend::VhostUser(sockets[number - 1].0.clone()))?;
    interrupt::check()?;
    let theirs = on_bridge(home.path())?;
    let contestants = vec![Contestant::new("fairlane", || slice(&ours)), Contestant::new("bridge", || slice(&theirs))];
    let figures = settle(run, "guest", &[("fairlane", "bridge")], contestants)?;
    backend.check_drops()?;
    figures.add_to(run, "guest_tcp", 0, "bit/s", |name| format!("guest_tcp_{name}"));
    run.result.metric("guest_tcp_vs_bridge", &figures.ratios("bridge"), "");
    run.result.setting(
        "guest_tcp",
        "one stream of fairlane-agent between two User-Mode Linux guests, counted by the receiver from the third interval of 15 ms on, for four",
    );
    run.result.figure(
        Figure::bars(TITLE)
            .caption("Through Fairlane: virtio over vhost-user. Through the kernel's bridge: two taps and the guests' vector driver, offloads on.")
            .y("payload received")
            .categories(["one stream"])
            .series(["guest_tcp/fairlane", "guest_tcp/bridge"]),
    );
    let text = "TCP between two guests is at least 1.2 times as fast as over the kernel's bridge and taps";
    run.claim("guest_tcp_vs_bridge", text, at_least(1.2), TITLE);
    Ok(())
}

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 1, number]
}

/// Two guests of the same network.
type Pair = [Guest; 2];

fn boot(home: &Path, name: &str, backend: impl Fn(usize) -> fairlane_lab::Backend) -> Result<Pair> {
    let guest = |number: u8| {
        let address = Ipv4Addr::new(10, 0, 0, number);
        boot_one(home, &format!("{name}-{number}"), Kind::Uml, backend(number.into()), mac(number), address)
    };
    Ok([guest(1)?, guest(2)?])
}

/// Boots a guest.
pub(crate) fn boot_one(
    home: &Path,
    name: &str,
    kind: Kind,
    backend: fairlane_lab::Backend,
    mac: [u8; 6],
    address: Ipv4Addr,
) -> Result<Guest> {
    let nic = Nic { backend, mac, address, prefix: 24, queues: 1, packed: false };
    let (name, log) = (name.to_owned(), home.join(format!("{name}.console")));
    // As in the papers. With 128 MiB, the kernel limits TCP's window to half a megabyte, so the round trip time would limit the rate.
    let (cpus, memory_mib, tools) = (1, 1024, Tools::default());
    let spec = GuestSpec { name, kind, cpus, memory_mib, tools, nic: Some(nic), monitor: None, log };
    match Guest::boot(&spec) {
        Err(fairlane_lab::Error::Missing(what)) => Err(Missing(what).into()),
        other => other.context("boot"),
    }
}

/// Boots two guests on a bridge in a new network namespace, which is removed with them.
fn on_bridge(home: &Path) -> Result<Pair> {
    let work = || {
        unshare(CloneFlags::CLONE_NEWNET).context("cannot create a network namespace")?;
        let ip = |line: &str| process::output(&[&["ip"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        ip("link add br0 type bridge")?;
        ip("link set br0 up")?;
        for number in [1, 2] {
            ip(&format!("tuntap add tap{number} mode tap vnet_hdr"))?;
            ip(&format!("link set tap{number} master br0 up"))?;
        }
        boot(home, "bridge", |number| fairlane_lab::Backend::Tap(format!("tap{number}")))
    };
    // Processes inherit the network namespace of the thread that starts them.
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(pair) => pair,
        Err(_) => bail!("the thread that boots guests on a bridge panicked"),
    })
}

/// The rate at which the second guest receives from the first in a slice, in bits per second; not a number if it did not receive for
/// as long as is measured, as on a busy machine.
fn slice([first, second]: &Pair) -> Result<f64> {
    let spec = ReceiveSpec { port: PORT, interval: INTERVAL, seconds: SLICE };
    let receiver = second.agent().start_job(Command::TcpReceive(spec))?;
    receiver.started()?;
    let to = (Ipv4Addr::new(10, 0, 0, 2), PORT).into();
    let sender = first.agent().start_job(Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds: SLICE }))?;
    let mut bytes = Vec::new();
    loop {
        match receiver.next()?.1 {
            Event::Sample(sample) => bytes.push(sample.bytes),
            Event::Done(_) => break,
            Event::Started => {}
            other => bail!("a stream ended: {other:?}"),
        }
    }
    // It is still sending when the receiver stops, which breaks its connection.
    let _ = sender.wait();
    let mut measured = bytes.into_iter().skip_while(|bytes| *bytes == 0).skip(WARM);
    let total = (0..MEASURED).map(|_| measured.next()).sum::<Option<u64>>();
    Ok(total.map_or(f64::NAN, |bytes| bytes as f64 * 8.0 / (MEASURED as f64 * INTERVAL)))
}
