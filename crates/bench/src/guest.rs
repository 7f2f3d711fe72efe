//! Part guest: TCP between two User-Mode Linux guests, through Fairlane and through the kernel's bridge.
//!
//! Both pairs of guests stay up, each with a stream that never ends, and are driven for a slice at a time, while the other pair's
//! CPUs are stopped. A slice is shorter than TCP's least time to retransmit. Threads are not pinned.

use crate::backend::{Backend, Uplink};
use crate::machine::{self, Favoured, Missing};
use crate::rounds::{Contestant, settle};
use crate::{Run, at_least, process};
use anyhow::{Context, Result, bail};
use fairlane_lab::{Command, CpuSwitch, Event, Guest, GuestSpec, Job, Kind, Nic, Tools, interrupt};
use fairlane_load::{ReceiveSpec, tcp};
use fairlane_report::Figure;
use nix::sched::{CloneFlags, unshare};
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const TITLE: &str = "TCP between two guests";

const PORT: u16 = 5001;

/// Seconds of an interval in which the receiver counts, and such intervals of a slice.
const INTERVAL: f64 = 0.02;
const INTERVALS: u32 = 3;

/// The first part of a slice, which is not measured.
const WARM: Duration = Duration::from_millis(15);

/// How long a stream runs before its first slice.
const GROWTH: Duration = Duration::from_millis(1000);

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
    // Longer than all slices take.
    let seconds = f64::from(run.seconds) + 60.0;
    let (ours, theirs) = (Stream::start(ours, seconds)?, Stream::start(theirs, seconds)?);
    let contestants = vec![Contestant::new("fairlane", || ours.slice()), Contestant::new("bridge", || theirs.slice())];
    let figures = settle(run, "guest", &[("fairlane", "bridge")], contestants)?;
    backend.check_drops()?;
    figures.add_to(run, "guest_tcp", 0, "bit/s", |name| format!("guest_tcp_{name}"));
    run.result.metric("guest_tcp_vs_bridge", &figures.ratios("bridge"), "");
    run.result.setting(
        "guest_tcp",
        "one stream of fairlane-agent between two User-Mode Linux guests, counted by the receiver; the pairs run in turn",
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

/// A stream from the first guest of a pair to the second, which stands still between slices.
struct Stream {
    receiver: Job,
    /// When the receiver began to count.
    started: Instant,
    /// The CPUs of both, the receiver's first.
    cpus: [CpuSwitch; 2],
    _sender: Job,
    _pair: Pair,
}

impl Stream {
    fn start(pair: Pair, seconds: f64) -> Result<Stream> {
        let [first, second] = &pair;
        let receiver =
            second.agent().start_job(Command::TcpReceive(ReceiveSpec { port: PORT, interval: INTERVAL, seconds }))?;
        let started = receiver.started()?;
        let to = (Ipv4Addr::new(10, 0, 0, 2), PORT).into();
        let sender = first.agent().start_job(Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds }))?;
        let stream =
            Stream { receiver, started, cpus: [second.switch()?, first.switch()?], _sender: sender, _pair: pair };
        // TCP's windows grow meanwhile.
        thread::sleep(GROWTH);
        stream.suspend()?;
        Ok(stream)
    }

    /// Drives it for a slice. Returns the payload that the receiver counted, in bits per second; not a number if it stood still.
    fn slice(&self) -> Result<f64> {
        self.cpus.iter().try_for_each(CpuSwitch::resume)?;
        // A guest's clock does not stop with its CPUs.
        let warm = (self.started.elapsed() + WARM).as_secs_f64();
        let (mut bytes, mut intervals) = (0, 0);
        while intervals < INTERVALS {
            match self.receiver.next()?.1 {
                Event::Sample(sample) if sample.t - INTERVAL >= warm => {
                    bytes += sample.bytes;
                    intervals += 1;
                }
                // Of the time before this slice, or its first part.
                Event::Sample(_) => {}
                other => bail!("a stream ended: {other:?}"),
            }
        }
        self.suspend()?;
        // On a busy machine TCP may take a long pause for a loss, and waits for its timer then.
        let measured = bytes > 0;
        Ok(if measured { bytes as f64 * 8.0 / (f64::from(INTERVALS) * INTERVAL) } else { f64::NAN })
    }

    fn suspend(&self) -> Result<()> {
        Ok(self.cpus.iter().try_for_each(CpuSwitch::suspend)?)
    }
}

/// A guest whose CPUs are stopped would not end.
impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.cpus.iter().try_for_each(CpuSwitch::resume);
    }
}
