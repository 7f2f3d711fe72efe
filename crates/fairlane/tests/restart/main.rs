//! The gap that a guest sees while the backend is stopped and started again, as `systemctl restart fairlane` does: QEMU's guest pings
//! the host over a tap in a bridge, beside a TCP stream. The gap is the longest time in which no answer reaches the guest. What the
//! guest sends meanwhile waits in its ring, but answers are lost while nobody has the tap open.
//! The stream must arrive as a whole, over its one connection, so the guest is served after each restart.
//!
//! `make restarts` sets `FAIRLANE_RESTARTS`, the number of restarts for each side that may listen, and writes `out/restart/result.json`
//! and `report.html`. Without that variable it is ignored, as a measurement takes minutes. Needs root, for a network namespace.

#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../early_ack/namespace.rs"]
mod namespace;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;

use daemon::Daemon;
use fairlane_lab::{Backend, Command, Error, Guest, GuestSpec, Kind, Outcome};
use fairlane_load::{Sent, ping, tcp};
use fairlane_report::{Axis, Figure, ResultFile, Series};
use libtest_mimic::Arguments;
use namespace::Namespace;
use nix::sys::signal::Signal;
use std::env;
use std::io::{copy, sink};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;
use support::guest_test;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 92, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 92, 0, 2);
const PORT: u16 = 5001;

/// Pings around one restart: their number, and the time between two, in seconds.
const PINGS: u16 = 1000;
const INTERVAL: f64 = 0.002;

/// Which side of the vhost-user socket listens.
#[derive(Clone, Copy, PartialEq)]
enum Listens {
    Qemu,
    Fairlane,
}

fn main() -> ExitCode {
    let restarts = env::var("FAIRLANE_RESTARTS").ok().map(|text| text.parse().expect("FAIRLANE_RESTARTS is a number"));
    let test = guest_test("a_restart_loses_no_connection", move || measure(restarts.unwrap_or(1)));
    let test = test.with_ignored_flag(restarts.is_none());
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}

/// Measures both kinds, and writes the result.
fn measure(restarts: usize) -> Result<(), Error> {
    let mut result = ResultFile::new("restart");
    result.setting("restarts", restarts).setting("ping_interval_ms", INTERVAL * 1000.0);
    for (name, listens) in [("qemu_listens", Listens::Qemu), ("qemu_connects", Listens::Fairlane)] {
        let gaps = gaps(listens, restarts)?;
        let mut sorted = gaps.clone();
        sorted.sort_by(f64::total_cmp);
        let worst = sorted.last().copied().unwrap_or_default();
        println!("{name}: p50 {:.1} ms, worst {worst:.1} ms of {restarts}", sorted[restarts / 2]);
        let points = gaps.iter().enumerate().map(|(number, gap)| [number as f64, *gap]);
        result.series(Series::new(name, "ms", Axis::new("restart", "")).points(points));
        result.metric(&format!("{name}_gap"), &gaps, "ms");
        result.value(&format!("{name}_worst"), worst, "ms");
    }
    let caption =
        "The longest time without an answer to a guest that pings every 2 ms, while the backend is stopped and started";
    result.figure(Figure::cdf("Gap at a restart").caption(caption).series(["qemu_listens", "qemu_connects"]));
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/restart");
    result.write(&out).expect("the result is written");
    Ok(())
}

/// The longest time between two answers, in seconds.
fn gap(trips: &ping::RoundTrips) -> f64 {
    let arrival = |(number, trip): (usize, &Option<f64>)| trip.map(|trip| number as f64 * INTERVAL + trip);
    let mut arrivals: Vec<f64> = trips.seconds.iter().enumerate().filter_map(arrival).collect();
    arrivals.sort_by(f64::total_cmp);
    arrivals.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

/// The gap of each restart, in milliseconds.
fn gaps(listens: Listens, restarts: usize) -> Result<Vec<f64>, Error> {
    let namespace = Namespace::new()?;
    // As on a host: the tap is in a bridge, beside a card. Alone it would leave the host without a carrier while nobody has it open, so
    // that the host forgets the guest's address, asks for it before the guest is back, and again a second later.
    for step in [
        "link add br0 type bridge",
        "link add eth0 type veth peer name far0",
        "tuntap add dev fl0 mode tap",
        "link set eth0 master br0 up",
        "link set far0 up",
        "link set fl0 master br0 up",
        "link set br0 up",
    ] {
        namespace.ip(step);
    }
    namespace.ip(&format!("address add {HOST}/24 dev br0"));
    namespace.run(move || run(listens, restarts))
}

fn run(listens: Listens, restarts: usize) -> Result<Vec<f64>, Error> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let connect = listens == Listens::Qemu;
    let policy = format!(
        "control = \"DIR/control.sock\"\n[[link]]\nname = \"lan\"\nrate = \"50Mbit/s\"\nuplink = {{ tap = \"fl0\" }}\n\
         [[vif]]\nname = \"guest\"\nsocket = \"DIR/guest.sock\"\nconnect = {connect}\n"
    );
    let mut daemon = Daemon::start(home.path(), &policy, |mut command| command.spawn());
    let mut spec = GuestSpec::served(Kind::Qemu, "guest", home.path(), [0x52, 0x54, 0, 0x92, 0, 2], GUEST);
    if let (Some(nic), true) = (&mut spec.nic, connect) {
        nic.backend = Backend::VhostUserClient(home.path().join("guest.sock"));
    }
    let guest = Guest::boot(&spec)?;
    let listener = TcpListener::bind((HOST, PORT)).expect("an address of the host");
    let received = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the guest connects");
        copy(&mut stream, &mut sink()).expect("the connection holds")
    });
    let seconds = restarts as f64 * 3.0 + 2.0;
    let stream = Command::TcpSend(tcp::SendSpec { to: (HOST, PORT).into(), connections: 1, seconds });
    let stream = guest.agent().start_job(stream)?;
    let mut gaps = Vec::new();
    for _ in 0..restarts {
        let spec = ping::Spec { to: HOST, count: PINGS, interval: INTERVAL, patience: 5.0 };
        let pings = guest.agent().start_job(Command::Ping(spec))?;
        sleep(Duration::from_millis(500));
        let status = daemon.end(Signal::SIGTERM);
        assert!(status.success(), "{status}\n{}", daemon.log());
        daemon = Daemon::serve(home.path(), |mut command| command.spawn());
        let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("round trips") };
        gaps.push(gap(&trips) * 1000.0);
    }
    let Outcome::Sent(Sent { bytes, .. }) = stream.wait()? else { panic!("sent") };
    assert_eq!(received.join().expect("the receiver"), bytes, "the stream");
    guest.stop()?;
    Ok(gaps)
}
