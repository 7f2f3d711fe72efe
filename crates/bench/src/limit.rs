//! Part limit: one TCP stream from outside toward a guest that may receive 20 or 200 Mbit/s, by Fairlane's `rx_max_rate`, by a
//! policer and by HTB on the guest's tap, and by the policer of Open vSwitch with DPDK.
//!
//! The sender is the kernel of a network namespace, at Fairlane's uplink, the kernel's bridge, or Open vSwitch's own interface.
//! Meanwhile it pings the guest. The policer is a token bucket of nftables at the tap's egress; `tc police` is such a bucket, too.

use crate::backend::{Backend, Uplink};
use crate::guest::boot_one;
use crate::machine::{self, Missing};
use crate::ovs::{BRIDGE, OpenVSwitch};
use crate::rounds::{Contestant, Figures, compete};
use crate::{Run, at_least, at_most, process};
use anyhow::{Context, Result, bail};
use fairlane_lab::{Command, Event, Guest, Job, Kind};
use fairlane_load::{ReceiveSpec, ping, tcp};
use fairlane_report::{Figure, stats};
use nix::sched::{CloneFlags, unshare};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, slice, thread};

const TITLE: &str = "TCP toward a limited guest: segments retransmitted";

const PORT: u16 = 5001;

/// Fairlane and its peers.
const NAMES: [&str; 4] = ["fairlane", "policer", "htb", "ovs"];

/// The limits, in Mbit/s.
const LIMITS: [u64; 2] = [20, 200];

/// Rounds: each stream needs seconds.
const ROUNDS: usize = 3;

/// Seconds of a stream that are not measured: the policer's bucket holds one second and its burst, which pass at once.
const WARM: f64 = 3.0;

/// Seconds that are measured. A multiple of [`WARM`], as the receiver counts in such intervals.
const SECONDS: f64 = 3.0;

/// Seconds between two pings; not a divisor of anything in the kernel or in Fairlane.
const PING_INTERVAL: f64 = 0.0073;

/// A guest, the address of the sender on its link, and the guest's own.
struct Link {
    guest: Guest,
    at: Ipv4Addr,
}

/// What one stream did.
#[derive(Clone, Copy)]
struct Stream {
    /// Payload that the guest received, in bits per second.
    goodput: f64,
    /// Segments that the sender retransmitted.
    retransmitted: f64,
    /// The 99th percentile of round trips meanwhile, in seconds.
    p99: f64,
}

/// Measures all and adds the results.
///
/// # Errors
/// Missing programs or permissions, or guests that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    if !run.machine.root {
        return Err(Missing("only root can create a bridge and taps".to_owned()).into());
    }
    for (program, package) in
        [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables"), ("linux.uml", "user-mode-linux")]
    {
        machine::find(program, package)?;
    }
    // A thread of its own, because it moves to another network namespace. The backend's and the sender's threads are its children.
    thread::scope(|scope| match scope.spawn(|| measure_in_namespace(run)).join() {
        Ok(result) => result,
        Err(_) => bail!("the thread in a network namespace panicked"),
    })
}

fn measure_in_namespace(run: &mut Run) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("cannot create a network namespace")?;
    let home = tempfile::tempdir()?;
    run.show("limit: booting the guests".to_owned());
    let (ours, theirs) = ([10, 0, 0, 1], [10, 0, 1, 1]);
    let socket = home.path().join("1.sock");
    let backend = Backend::start(&[(socket.clone(), mac(1))], Uplink::Tap("up0"), None)?;
    ip("address add 10.0.0.254/24 dev up0")?;
    let lab_backend = fairlane_lab::Backend::VhostUser(socket);
    let ours =
        Link { guest: boot_one(home.path(), "limited", Kind::Uml, lab_backend, mac(1), ours.into())?, at: ours.into() };
    for line in [
        "link add br0 type bridge",
        "link set br0 up",
        "address add 10.0.1.254/24 dev br0",
        "tuntap add tap0 mode tap vnet_hdr",
        "link set tap0 master br0 up",
    ] {
        ip(line)?;
    }
    let lab_backend = fairlane_lab::Backend::Tap("tap0".to_owned());
    let theirs = Link {
        guest: boot_one(home.path(), "tapped", Kind::Uml, lab_backend, mac(2), theirs.into())?,
        at: theirs.into(),
    };
    let mut switched = match switched(home.path()) {
        Ok(switched) => Some(switched),
        Err(error) if error.is::<Missing>() => {
            run.skip(&format!("limit: Open vSwitch: {error}"));
            None
        }
        Err(error) => return Err(error.context("limit: Open vSwitch")),
    };
    for (case, limit) in LIMITS.into_iter().enumerate() {
        let mut contestants = vec![
            Contestant::new("fairlane", || {
                backend.limit_receiver(limit * 1_000_000)?;
                stream(&ours)
            }),
            Contestant::new("policer", || {
                police(limit)?;
                stream(&theirs)
            }),
            Contestant::new("htb", || {
                shape(limit)?;
                stream(&theirs)
            }),
        ];
        if let Some(Switched { switch, socket, link }) = &mut switched {
            // It polls, and would disturb the others.
            contestants.push(Contestant::new("ovs", || {
                let (rate, burst) = bucket(limit);
                switch.switch_mut().resume()?;
                switch.police(socket, rate, burst)?;
                let streamed = stream(link);
                switch.switch_mut().suspend()?;
                streamed
            }));
        }
        let streams = compete(run, &format!("limit of {limit} Mbit/s"), ROUNDS, contestants)?;
        add(run, limit, case, &streams);
    }
    run.result.figure(
        Figure::bars(TITLE)
            .caption(
                "One stream, after three seconds to settle, for three seconds. Policer: nftables, burst of a tenth of a second. HTB: a queue of 1,000 packets. OVS: its egress policer, DPDK, the same burst, toward a guest in QEMU.",
            )
            .y("segments")
            .categories(LIMITS.map(|limit| format!("{limit} Mbit/s")))
            .series(NAMES.map(|name| format!("limit_retransmitted/{name}"))),
    );
    for limit in LIMITS {
        let text = format!(
            "At {limit} Mbit/s, a limited guest's sender retransmits at most a twentieth of what it does to a policer"
        );
        run.claim(&format!("limit_{limit}_retransmitted_vs_policer"), &text, at_most(0.05), TITLE);
        let text =
            format!("At {limit} Mbit/s, a limited guest receives 0.95 of what it does behind a policer, or more");
        run.claim(&format!("limit_{limit}_goodput_vs_policer"), &text, at_least(0.95), TITLE);
    }
    Ok(())
}

/// Adds the figures of one limit.
fn add(run: &mut Run, limit: u64, case: usize, streams: &Figures<Stream>) {
    type Of = fn(&Stream) -> f64;
    let figures: [(&str, &str, Of); 3] = [
        ("goodput", "bit/s", |stream| stream.goodput),
        ("retransmitted", "segments", |stream| stream.retransmitted),
        ("p99", "s", |stream| stream.p99),
    ];
    for (what, unit, of) in figures {
        let figures = streams.map(of);
        figures.add_to(run, &format!("limit_{what}"), case, unit, |name| format!("limit_{limit}_{what}_{name}"));
        for peer in &NAMES[1..] {
            let ratios = figures.ratios(peer);
            if !ratios.is_empty() {
                run.result.metric(&format!("limit_{limit}_{what}_vs_{peer}"), &ratios, "");
            }
        }
    }
}

/// A guest behind Open vSwitch, in QEMU: User-Mode Linux does not come up with DPDK's vhost library.
struct Switched {
    switch: OpenVSwitch,
    socket: PathBuf,
    link: Link,
}

fn switched(home: &Path) -> Result<Switched> {
    let socket = home.join("ovs1");
    let mut switch = OpenVSwitch::start_under(&[], &[], home, slice::from_ref(&socket))?;
    ip(&format!("address add 10.0.2.254/24 dev {BRIDGE}"))?;
    ip(&format!("link set {BRIDGE} up"))?;
    let (at, backend) = (Ipv4Addr::new(10, 0, 2, 1), fairlane_lab::Backend::VhostUser(socket.clone()));
    let guest = boot_one(home, "switched", Kind::Qemu, backend, mac(3), at)?;
    switch.switch_mut().suspend()?;
    Ok(Switched { switch, socket, link: Link { guest, at } })
}

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 2, number]
}

fn ip(line: &str) -> Result<()> {
    tool("ip", line)
}

/// Removes the limit of the tap.
fn lift() -> Result<()> {
    tool("nft", "flush ruleset")?;
    // There may be none.
    let _ = tool("tc", "qdisc del dev tap0 root");
    Ok(())
}

fn tool(program: &str, line: &str) -> Result<()> {
    process::output(&[&[program], &line.split(' ').collect::<Vec<_>>()[..]].concat()).map(drop)
}

/// Bytes a second, and of a tenth of a second.
fn bucket(limit: u64) -> (u64, u64) {
    (limit * 1_000_000 / 8, limit * 100_000 / 8)
}

/// Polices what is sent to the tap.
fn police(limit: u64) -> Result<()> {
    lift()?;
    tool("nft", "add table netdev bench")?;
    tool("nft", "add chain netdev bench out { type filter hook egress device tap0 priority 0 ; }")?;
    let (rate, burst) = bucket(limit);
    tool("nft", &format!("add rule netdev bench out limit rate over {rate} bytes/second burst {burst} bytes drop"))
}

/// Shapes what is sent to the tap.
fn shape(limit: u64) -> Result<()> {
    lift()?;
    tool("tc", "qdisc add dev tap0 root handle 1: htb default 1")?;
    tool("tc", &format!("class add dev tap0 parent 1: classid 1:1 htb rate {limit}mbit"))
}

/// A stream to the guest, and pings meanwhile.
fn stream(link: &Link) -> Result<Stream> {
    let all = WARM + SECONDS;
    let receiver =
        link.guest.agent().start_job(Command::TcpReceive(ReceiveSpec { port: PORT, interval: WARM, seconds: all }))?;
    receiver.started()?;
    // The sender is still sending when the receiver stops, which breaks its connection.
    let send = tcp::SendSpec { to: (link.at, PORT).into(), connections: 1, seconds: all + 1.0 };
    let count = (SECONDS / PING_INTERVAL) as u16;
    let echo = ping::Spec { to: link.at, count, interval: PING_INTERVAL, patience: 1.0 };
    let (measured, trips) = thread::scope(|scope| {
        let sender = scope.spawn(|| tcp::send(&send));
        let measured = warmed_up(&receiver).and_then(|before| {
            let pings = scope.spawn(|| ping::run(&echo));
            let bytes = received(&receiver)?;
            Ok((bytes, retransmitted()? - before, pings.join()))
        });
        let _ = sender.join();
        measured.map(|(bytes, segments, trips)| ((bytes, segments), trips))
    })?;
    let Ok(trips) = trips else { bail!("the thread that pings panicked") };
    let mut trips: Vec<f64> = trips?.seconds.into_iter().map(|trip| trip.unwrap_or(f64::INFINITY)).collect();
    trips.sort_by(f64::total_cmp);
    let (bytes, segments) = measured;
    // The next stream begins with an empty queue.
    thread::sleep(Duration::from_millis(500));
    Ok(Stream {
        goodput: bytes as f64 * 8.0 / SECONDS,
        retransmitted: segments as f64,
        p99: stats::quantile(&trips, 0.99).unwrap_or(f64::NAN),
    })
}

/// Waits until the first interval is over, when the limits' bursts are used. Returns the segments retransmitted until then.
fn warmed_up(receiver: &Job) -> Result<u64> {
    loop {
        match receiver.next()?.1 {
            Event::Sample(_) => return retransmitted(),
            Event::Done(_) => bail!("no byte arrived in {WARM} s"),
            _ => {}
        }
    }
}

/// The bytes of all further intervals.
fn received(receiver: &Job) -> Result<u64> {
    let mut bytes = 0;
    loop {
        match receiver.next()?.1 {
            Event::Sample(sample) => bytes += sample.bytes,
            Event::Done(_) => return Ok(bytes),
            _ => {}
        }
    }
}

/// Segments retransmitted in this thread's network namespace (`RetransSegs`, RFC 4022).
fn retransmitted() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/snmp").context("/proc/thread-self/net/snmp")?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "RetransSegs");
    let (_, value) = found.context("/proc/thread-self/net/snmp has no Tcp: RetransSegs")?;
    value.parse().with_context(|| format!("RetransSegs: {value:?} is no number"))
}
