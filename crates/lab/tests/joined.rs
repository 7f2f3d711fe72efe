//! Real guests whose network cards Fairlane serves.

mod alone;
mod support;

use std::{
    env,
    net::Ipv4Addr,
    path::Path,
    process::{Child, Command as Process, ExitCode},
    thread,
    time::Duration,
};

use alone::{boot, spec};
use fairlane_engine::Engine;
use fairlane_engine::snapshot::{State, VifState};
use fairlane_lab::{Backend, Command, Error, Guest, GuestSpec, Kind, Nic, Outcome};
use fairlane_load::{ReceiveSpec, Received, Sent, ping, tcp, udp};
use fairlane_policy::Policy;
use libtest_mimic::Arguments;
use support::guest_test;

/// Makes this program a backend with its sockets in this directory, and with packed rings if there is an argument.
const BACKEND: &str = "FAIRLANE_JOINED_BACKEND";

fn main() -> ExitCode {
    if let Some(sockets) = env::var_os(BACKEND) {
        let _engine = engine(Path::new(&sockets), env::args().len() > 1);
        loop {
            thread::park();
        }
    }
    let tests = vec![
        guest_test("two_uml_guests_exchange_datagrams_and_streams", || exchange(Kind::Uml, Kind::Uml)),
        guest_test("a_qemu_guest_and_a_uml_guest_exchange_datagrams_and_streams", || exchange(Kind::Qemu, Kind::Uml)),
        guest_test("a_backend_and_a_guest_restart_and_the_other_guest_carries_on", || restart(false)),
        guest_test("a_backend_and_a_guest_with_packed_rings_restart_and_the_other_carries_on", || restart(true)),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn guest(kind: Kind, packed: bool, number: u8, sockets: &Path) -> Result<Guest, Error> {
    let nic = Nic {
        backend: Backend::VhostUser(sockets.join(format!("{number}.sock"))),
        mac: [2, 0, 0, 0, 0, number],
        address: Ipv4Addr::new(10, 0, 0, number),
        prefix: 24,
        queues: 1,
        packed,
    };
    boot(&GuestSpec { nic: Some(nic), ..spec(kind, &format!("joined-{number}")) })
}

fn engine(sockets: &Path, packed: bool) -> Engine {
    let place = sockets.display();
    let policy = format!(
        r#"
        control = "{place}/control.sock"
        [[link]]
        name = "lan"
        [[vif]]
        name = "first"
        socket = "{place}/1.sock"
        packed = {packed}
        mac = "02:00:00:00:00:01"
        addresses = ["10.0.0.1"]
        [[vif]]
        name = "second"
        socket = "{place}/2.sock"
        packed = {packed}
        mac = "02:00:00:00:00:02"
        addresses = ["10.0.0.2"]
        "#
    );
    Engine::start(Policy::parse("policy.toml", &policy).unwrap()).unwrap()
}

fn exchange(first: Kind, second: Kind) -> Result<(), Error> {
    let sockets = tempfile::tempdir().unwrap();
    let _engine = engine(sockets.path(), false);
    let first = guest(first, false, 1, sockets.path())?;
    let second = guest(second, false, 2, sockets.path())?;
    traffic(&first, &second)?;
    first.stop()?;
    second.stop()
}

/// A backend that is a process of its own, killed on drop.
struct Daemon(Child);

impl Daemon {
    fn start(sockets: &Path, packed: bool) -> Daemon {
        let mut process = Process::new(env::current_exe().unwrap());
        let mut daemon = Daemon(process.env(BACKEND, sockets).args(packed.then_some("packed")).spawn().unwrap());
        while !sockets.join("control.sock").exists() {
            assert!(daemon.0.try_wait().unwrap().is_none(), "the backend ended");
            thread::sleep(Duration::from_millis(10));
        }
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// QEMU reconnects when its backend is back, and its guest, which sends while the backend is killed, sees only a pause. User-Mode
/// Linux does not reconnect, so that guest restarts.
fn restart(packed: bool) -> Result<(), Error> {
    let sockets = tempfile::tempdir().unwrap();
    let before = Daemon::start(sockets.path(), packed);
    let first = guest(Kind::Qemu, packed, 1, sockets.path())?;
    let second = guest(Kind::Uml, packed, 2, sockets.path())?;
    traffic(&first, &second)?;
    let to = (Ipv4Addr::new(10, 0, 0, 2), 5002).into();
    let flood = Command::UdpSend(udp::SendSpec { to, size: 1000, rate: None, seconds: 1.0 });
    let flood = first.agent().start_job(flood)?;
    thread::sleep(Duration::from_millis(300));
    drop(before);
    second.stop()?;
    flood.wait()?;
    let after = engine(sockets.path(), packed);
    let second = guest(Kind::Uml, packed, 2, sockets.path())?;
    let served = |vif: &VifState| vif.port.state == State::Up;
    for _ in 0..100 {
        if after.snapshot().unwrap().vifs.iter().all(served) {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    // The guest may notice a little later that its link is up.
    let to = Ipv4Addr::new(10, 0, 0, 2);
    let ping = ping::Spec { to, count: 20, interval: 0.1, patience: 2.0 };
    let Outcome::RoundTrips(trips) = first.agent().run(Command::Ping(ping))? else { panic!("round trips") };
    assert!(trips.lost() < 20, "the guest does not reach the other again");
    traffic(&first, &second)?;
    first.stop()?;
    second.stop()
}

/// Streams in one direction and datagrams in the other: everything sent arrives.
fn traffic(first: &Guest, second: &Guest) -> Result<(), Error> {
    // The stream comes first: with it each guest learns the other's MAC address.
    let run = |to| Command::TcpSend(tcp::SendSpec { to, connections: 2, seconds: 0.5 });
    // The last bytes in the socket's buffer arrive after the sender is done.
    let (sent, received) = one_way(first, second, 2.5, Command::TcpReceive, run)?;
    assert_eq!(received.sources.len(), 2);
    assert_eq!(received.sources.iter().map(|total| total.bytes).sum::<u64>(), sent.bytes);
    eprintln!("streams: {:.0} Mbit/s", sent.bytes as f64 * 8e-6 / sent.seconds);

    let run = |to| Command::UdpSend(udp::SendSpec { to, size: 1000, rate: Some(5e6), seconds: 1.0 });
    let (sent, received) = one_way(second, first, 1.5, Command::UdpReceive, run)?;
    let [total] = &received.sources[..] else { panic!("{received:?}") };
    assert_eq!((total.datagrams, total.lost()), (sent.datagrams, 0));
    assert_eq!(total.source.ip(), Ipv4Addr::new(10, 0, 0, 2));

    let Outcome::Counters(counters) = second.agent().run(Command::Counters)? else { panic!("counters") };
    let card = counters.interfaces.iter().find(|interface| interface.name == "eth0").expect("eth0");
    assert!(card.sent_frames >= sent.datagrams && card.received_bytes > 0);
    Ok(())
}

/// Starts a receiver in one guest and, once it is ready, a sender in the other.
fn one_way(
    from: &Guest,
    to: &Guest,
    seconds: f64,
    receive: fn(ReceiveSpec) -> Command,
    send: impl Fn(std::net::SocketAddr) -> Command,
) -> Result<(Sent, Received), Error> {
    let number = if to.agent().name().starts_with("joined-1") { 1 } else { 2 };
    let receiver = to.agent().start_job(receive(ReceiveSpec { port: 5001, interval: 0.1, seconds }))?;
    receiver.started()?;
    let Outcome::Sent(sent) = from.agent().run(send((Ipv4Addr::new(10, 0, 0, number), 5001).into()))? else {
        panic!("sent")
    };
    let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
    Ok((sent, received))
}
