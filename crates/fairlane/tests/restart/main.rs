//! Restarts of the backend under a [`Manager`] that stores descriptors, as systemd does, and successors that take over from a process
//! that runs: guests and the host do not notice them.
//!
//! `make restarts` sets `FAIRLANE_RESTARTS`, and measures the gap that a guest sees at as many restarts of each kind: the longest time
//! in which no answer to its pings arrives, while QEMU's guest pings the host over a tap in a bridge, beside a TCP stream. It writes
//! `out/restart/result.json` and `report.html`. Without that variable the measurement is ignored, as it takes minutes.
//!
//! Tests with guests need root, for a network namespace.

mod attack;
mod card;
#[path = "../daemon/mod.rs"]
mod daemon;
#[path = "../../../port/tests/frontend/guest.rs"]
mod frontend;
mod gap;
mod manager;
#[path = "../early_ack/namespace.rs"]
mod namespace;
#[path = "../../../lab/tests/support/mod.rs"]
mod support;

use fairlane_lab::{Backend, Command, Error, Guest, GuestSpec, Kind, Outcome};
use fairlane_load::{Sent, ping, tcp};
use fairlane_report::{Axis, Figure, ResultFile, Series};
use gap::summary;
use libtest_mimic::{Arguments, Failed, Trial};
use manager::Manager;
use namespace::Namespace;
use nix::sys::signal::Signal::{self, SIGKILL, SIGTERM};
use std::env;
use std::io::{Read, Write, copy, sink};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::thread::{JoinHandle, sleep};
use std::time::Duration;
use support::guest_test;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 92, 0, 1);
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 92, 0, 2);
const PORT: u16 = 5001;
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x92, 0, 2];

/// Pings around one restart: their number, and the time between two, in seconds.
const PINGS: u16 = 1000;
const INTERVAL: f64 = 0.002;

/// How one process follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It does not: what the guest sees then, as its host has other work too.
    Nothing,
    /// It starts once the former one has ended by a signal.
    Restart(Signal),
    /// It takes over from the former one.
    HandOver,
    /// It tries to, and fails.
    Failure,
}

/// A kind of restart: its name, whether QEMU listens, and how the next process comes.
type Case = (&'static str, bool, Change);

const CASES: [Case; 8] = [
    ("no_restart", false, Change::Nothing),
    ("qemu_listens", true, Change::Restart(SIGTERM)),
    ("qemu_connects", false, Change::Restart(SIGTERM)),
    ("qemu_listens_killed", true, Change::Restart(SIGKILL)),
    ("qemu_connects_killed", false, Change::Restart(SIGKILL)),
    ("qemu_listens_handed_over", true, Change::HandOver),
    ("qemu_connects_handed_over", false, Change::HandOver),
    ("successor_fails", false, Change::Failure),
];

/// Carries out a change.
fn change(service: &mut Manager, change: Change) {
    match change {
        Change::Nothing => {}
        Change::Restart(signal) => {
            let status = service.restart(signal);
            assert!(signal == SIGKILL || status.success(), "{status}\n{}", service.daemon.log());
        }
        Change::HandOver => assert!(service.hand_over(), "{}", service.daemon.log()),
        Change::Failure => attack::takes_all_and_leaves(&service.daemon).expect("a connection"),
    }
}

fn main() -> ExitCode {
    let restarts = env::var("FAIRLANE_RESTARTS").ok().map(|text| text.parse().expect("FAIRLANE_RESTARTS is a number"));
    let measurement = guest_test("the_gap_at_a_restart", move || measure(restarts.unwrap_or(1)));
    let tests = vec![
        Trial::test("what_is_kept_is_used_or_closed", used_or_closed),
        Trial::test("a_successor_that_fails_leaves_the_former_process_serving", attack::serves_on),
        guest_test("a_guest_does_not_notice_a_restart", not_noticed),
        guest_test("no_frame_of_a_card_is_lost_at_a_restart", || card::loses_nothing("card")),
        guest_test("no_frame_of_a_card_through_af_xdp_is_lost_at_a_restart", || card::loses_nothing("xdp")),
        guest_test("a_card_outlives_kills", || card::outlives_kills("card")),
        guest_test("a_card_through_af_xdp_outlives_kills", || card::outlives_kills("xdp")),
        guest_test("a_card_that_has_changed_is_opened_anew", card::is_opened_anew),
        guest_test("a_successor_goes_on_with_a_capture", card::is_captured),
        measurement.with_ignored_flag(restarts.is_none()),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// A frontend keeps its connection while the policy has its vif. All is given back to the manager once nobody uses it.
fn used_or_closed() -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    let vifs = ["one", "two"].map(|name| format!("[[vif]]\nname = \"{name}\"\nsocket = \"DIR/{name}.sock\"\n"));
    let of = |vifs: &[String]| format!("control = \"DIR/control.sock\"\n[[link]]\nname = \"lan\"\n{}", vifs.concat());
    let mut service = Manager::start(home.path(), &of(&vifs));
    assert_eq!(service.held(), ["vif one", "vif one", "vif two", "vif two"]);
    let connect = |name: &str| UnixStream::connect(home.path().join(name));
    let mut frontends = [connect("one.sock")?, connect("two.sock")?];
    for signal in [SIGKILL, SIGTERM, SIGKILL] {
        frontends.iter_mut().try_for_each(queues)?;
        service.wait_until_kept();
        service.restart(signal);
    }
    frontends.iter_mut().try_for_each(queues)?;
    assert!(
        service
            .daemon
            .ctl(&["add", "vif", "three", &format!("socket={}/three.sock", home.path().display())])
            .status
            .success()
    );
    assert!(service.held().contains(&"vif three"));
    assert!(service.daemon.ctl(&["remove", "vif", "three"]).status.success());
    assert!(service.daemon.ctl(&["remove", "vif", "two"]).status.success());
    assert_eq!(service.held(), ["vif one", "vif one"]);
    assert!(service.sees_end(&mut frontends[1])?, "the connection of a vif that is gone ends");
    daemon::write_policy(home.path(), &of(&vifs[1..]));
    service.restart(SIGTERM);
    assert_eq!(service.held(), ["vif two", "vif two"]);
    assert!(service.sees_end(&mut frontends[0])?, "the connection of a vif that is gone ends");
    Ok(())
}

/// Asks over a vhost-user connection for the number of queues (GET_QUEUE_NUM).
fn queues(frontend: &mut UnixStream) -> Result<(), Failed> {
    frontend.write_all(&[17u32, 1, 0].map(u32::to_ne_bytes).concat())?;
    let mut reply = [0; 20];
    frontend.read_exact(&mut reply)?;
    assert_eq!(reply[12..], 1u64.to_ne_bytes());
    Ok(())
}

fn not_noticed() -> Result<(), Error> {
    host()?.run(|| {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut service = Manager::start(home.path(), &policy(false));
        let guest = Guest::boot(&GuestSpec::served(Kind::Uml, "guest", home.path(), MAC, GUEST))?;
        let received = receiver();
        let stream = Command::TcpSend(tcp::SendSpec { to: (HOST, PORT).into(), connections: 1, seconds: 4.0 });
        let stream = guest.agent().start_job(stream)?;
        use Change::{Failure, HandOver, Restart};
        for next in [Restart(SIGTERM), HandOver, Failure, HandOver, Restart(SIGKILL)] {
            let pings = guest.agent().start_job(pings(200))?;
            sleep(Duration::from_millis(100));
            change(&mut service, next);
            let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("round trips") };
            // What is in the process when it is killed is lost with it.
            let most = if next == Restart(SIGKILL) { 100 } else { 0 };
            assert!(trips.lost() <= most, "{next:?}: {} of 200 pings were lost", trips.lost());
        }
        let Outcome::Sent(Sent { bytes, .. }) = stream.wait()? else { panic!("sent") };
        assert_eq!(received.join().expect("the receiver"), bytes, "the stream");
        guest.stop()
    })
}

/// Measures all kinds, and writes the result.
fn measure(restarts: usize) -> Result<(), Error> {
    let mut result = ResultFile::new("restart");
    result.setting("restarts", restarts).setting("ping_interval_ms", INTERVAL * 1000.0);
    for case in CASES {
        let (gaps, name) = (gaps(case, restarts)?, case.0);
        println!("{name}: {}", summary(&gaps));
        let gaps: Vec<f64> = gaps.iter().map(|gap| gap * 1000.0).collect();
        let points = gaps.iter().enumerate().map(|(number, gap)| [number as f64, *gap]);
        result.series(Series::new(name, "ms", Axis::new("restart", "")).points(points));
        result.metric(&format!("{name}_gap"), &gaps, "ms");
        result.value(&format!("{name}_worst"), gaps.iter().copied().fold(0.0, f64::max), "ms");
    }
    let caption =
        "The longest time without an answer to a guest that pings every 2 ms, while the backend is stopped and started";
    result.figure(Figure::cdf("Gap at a restart").caption(caption).series(CASES.map(|case| case.0)));
    let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../out/restart");
    result.write(&out).expect("the result is written");
    Ok(())
}

/// The gap of each restart, in seconds.
fn gaps((_, connect, next): Case, restarts: usize) -> Result<Vec<f64>, Error> {
    host()?.run(move || {
        let home = tempfile::tempdir().expect("a temporary directory");
        let mut service = Manager::start(home.path(), &policy(connect));
        let mut spec = GuestSpec::served(Kind::Qemu, "guest", home.path(), MAC, GUEST);
        if let (Some(nic), true) = (&mut spec.nic, connect) {
            nic.backend = Backend::VhostUserClient(home.path().join("guest.sock"));
        }
        let guest = Guest::boot(&spec)?;
        let received = receiver();
        let seconds = restarts as f64 * 3.0 + 2.0;
        let stream = Command::TcpSend(tcp::SendSpec { to: (HOST, PORT).into(), connections: 1, seconds });
        let stream = guest.agent().start_job(stream)?;
        let mut gaps = Vec::new();
        for _ in 0..restarts {
            let pings = guest.agent().start_job(pings(PINGS))?;
            sleep(Duration::from_millis(500));
            change(&mut service, next);
            let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("round trips") };
            gaps.push(trips.gap(INTERVAL, 0.0..f64::INFINITY));
        }
        let Outcome::Sent(Sent { bytes, .. }) = stream.wait()? else { panic!("sent") };
        assert_eq!(received.join().expect("the receiver"), bytes, "the stream");
        guest.stop()?;
        Ok(gaps)
    })
}

/// A host with a tap in a bridge, beside a card.
fn host() -> Result<Namespace, Error> {
    let namespace = Namespace::new()?;
    for step in [
        "link add br0 type bridge",
        "link add eth0 type veth peer name far0",
        "tuntap add dev fl0 mode tap multi_queue",
        "link set eth0 master br0 up",
        "link set far0 up",
        "link set fl0 master br0 up",
        "link set br0 up",
    ] {
        namespace.ip(step);
    }
    namespace.ip(&format!("address add {HOST}/24 dev br0"));
    Ok(namespace)
}

fn policy(connect: bool) -> String {
    format!(
        "control = \"DIR/control.sock\"\n[[link]]\nname = \"lan\"\nrate = \"50Mbit/s\"\nuplink = {{ tap = \"fl0\" }}\n\
         [[vif]]\nname = \"guest\"\nsocket = \"DIR/guest.sock\"\nconnect = {connect}\n"
    )
}

/// A server that counts the bytes of one stream to its end.
fn receiver() -> JoinHandle<u64> {
    let listener = TcpListener::bind((HOST, PORT)).expect("an address of the host");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the guest connects");
        copy(&mut stream, &mut sink()).expect("the connection holds")
    })
}

fn pings(count: u16) -> Command {
    Command::Ping(ping::Spec { to: HOST, count, interval: INTERVAL, patience: 5.0 })
}
