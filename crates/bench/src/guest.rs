//! Part guest: TCP between two User-Mode Linux guests, through Fairlane and through the kernel's bridge.
//!
//! Both pairs of guests stay up and run alternately. The agent makes the stream; threads are not pinned.

use crate::backend::{Backend, Uplink};
use crate::machine::{self, Missing};
use crate::rounds::{Contestant, compete};
use crate::{Run, at_least, process};
use anyhow::{Context, Result, bail};
use fairlane_lab::{Command, Guest, GuestSpec, Kind, Nic, Outcome, Tools, interrupt};
use fairlane_load::{ReceiveSpec, tcp};
use fairlane_report::Figure;
use nix::sched::{CloneFlags, unshare};
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

const TITLE: &str = "TCP between two guests";

const PORT: u16 = 5001;

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
    let sockets = [1, 2].map(|number| (home.path().join(format!("{number}.sock")), mac(number)));
    let backend = Backend::start(&sockets, Uplink::None, None)?;
    let ours = boot(home.path(), "fairlane", |number| fairlane_lab::Backend::VhostUser(sockets[number - 1].0.clone()))?;
    interrupt::check()?;
    let theirs = on_bridge(home.path())?;
    let seconds = f64::from(run.seconds + 1);
    let contestants = vec![
        Contestant::new("fairlane", || stream(&ours, seconds)),
        Contestant::new("bridge", || stream(&theirs, seconds)),
    ];
    let figures = compete(run, "guest", run.rounds, contestants)?;
    backend.check_drops()?;
    figures.add_to(run, "guest_tcp", 0, "bit/s", |name| format!("guest_tcp_{name}"));
    run.result.metric("guest_tcp_vs_bridge", &figures.ratios("bridge"), "");
    run.result.setting(
        "guest_tcp",
        "one stream of fairlane-agent between two User-Mode Linux guests, counted by the receiver",
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
        boot_one(home, &format!("{name}-{number}"), backend(number.into()), mac(number), address)
    };
    Ok([guest(1)?, guest(2)?])
}

/// Boots a User-Mode Linux guest.
pub(crate) fn boot_one(
    home: &Path,
    name: &str,
    backend: fairlane_lab::Backend,
    mac: [u8; 6],
    address: Ipv4Addr,
) -> Result<Guest> {
    let nic = Nic { backend, mac, address, prefix: 24, queues: 1 };
    let (name, log) = (name.to_owned(), home.join(format!("{name}.console")));
    // As in the papers. With 128 MiB, the kernel limits TCP's window to half a megabyte, so the round trip time would limit the rate.
    let (cpus, memory_mib, tools) = (1, 1024, Tools::default());
    let spec = GuestSpec { name, kind: Kind::Uml, cpus, memory_mib, tools, nic: Some(nic), monitor: None, log };
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

/// The rate at which the second guest receives from the first, in bits per second.
fn stream([first, second]: &Pair, seconds: f64) -> Result<f64> {
    let receiver = second.agent().start_job(Command::TcpReceive(ReceiveSpec {
        port: PORT,
        interval: 1.0,
        seconds: seconds + 1.0,
    }))?;
    receiver.started()?;
    let to = (Ipv4Addr::new(10, 0, 0, 2), PORT).into();
    let sent = first.agent().run(Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds }))?;
    match (sent, receiver.wait()?) {
        (Outcome::Sent(sent), Outcome::Received(received)) => {
            let bytes: u64 = received.sources.iter().map(|total| total.bytes).sum();
            Ok(bytes as f64 * 8.0 / sent.seconds)
        }
        other => bail!("a stream ended as {other:?}"),
    }
}
