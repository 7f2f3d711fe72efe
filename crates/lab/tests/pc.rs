//! Boots the emulated PC as a Xen host, as a KVM host and with native Linux, uses it and ends it.

mod hostile;
mod restored;
mod support;

use std::{
    env, fs, process, thread,
    time::{Duration, Instant},
};

use fairlane_agent::mpi;
use fairlane_engine::snapshot::{Snapshot, VifState};
use fairlane_lab::{
    Agent, Clock, Command, Error, Event, GuestPlan, Job, Machine, MachineKind, Node, Outcome, Topology, images,
    machine::{self, Backend, Replacement},
};
use fairlane_load::digest::{self, Reader};
use fairlane_load::{ReceiveSpec, ServeSpec, disk, ping, udp};
use libtest_mimic::Arguments;
use support::guest_test;

fn main() -> process::ExitCode {
    let tests = vec![
        guest_test("xen_guests_and_external_machine_exchange_traffic", xen),
        guest_test("fairlane_serves_unchanged_xen_guests", fairlane),
        guest_test("kvm_guests_and_external_machine_exchange_traffic", kvm),
        guest_test("native_linux_and_external_machine_exchange_traffic", bare),
    ];
    // Each emulated PC has at most as many CPUs as this host, and boots on one of them.
    libtest_mimic::run(&Arguments { test_threads: Some(2), ..Arguments::from_args() }, tests).exit_code()
}

/// Two guests on one CPU, the host on another; the second guest has a disk if the host can serve one.
fn topology(kind: MachineKind, backend: Backend) -> Topology {
    let guest = GuestPlan { cpus: vec![1], ..GuestPlan::default() };
    Topology {
        mpi: kind == MachineKind::Xen && backend == Backend::Kernel,
        link: Some(40e6),
        backend,
        hostile: backend == Backend::Fairlane,
        ..Topology::of(vec![guest.clone(), GuestPlan { disk: kind != MachineKind::Box, ..guest }])
    }
}

fn xen() -> Result<(), Error> {
    with(MachineKind::Xen, Backend::Kernel, |machine| {
        assert_eq!(machine.facts()["scheduler"], "credit");
        let before = machine.cpu_time()?;
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        send(machine, Node::Guest(2), Node::Guest(1))?;
        use_disk(machine, Node::Guest(2))?;
        exchange(machine)?;
        let after = machine.cpu_time()?;
        let nodes: Vec<Node> = after.iter().map(|time| time.node).collect();
        assert_eq!(nodes, [Node::Host, Node::Guest(1), Node::Guest(2)]);
        eprintln!("{before:?}\n{after:?}");
        assert!(before.iter().zip(&after).all(|(before, after)| before.seconds < after.seconds));
        Ok(())
    })
}

fn fairlane() -> Result<(), Error> {
    with(MachineKind::Xen, Backend::Fairlane, |machine| {
        assert_eq!(machine.facts()["backend"], "fairlane");
        let dom0 = machine.agent(Node::Host);
        for (from, to) in [
            (Node::Guest(1), Node::External),
            (Node::External, Node::Guest(2)),
            (Node::Guest(2), Node::Guest(1)),
            // Guests and host share the card and reach the external machine over it, but not each other.
            (Node::External, Node::Host),
        ] {
            send(machine, from, to)?;
        }
        ping(machine, Node::Guest(1))?;
        transfer(machine, Node::External, Node::Guest(2), 4_000_000, || Ok(()))?;
        // A weight set by the toolstack takes effect while the guest runs.
        dom0.output(&["xenstore-write", "/local/domain/0/backend/vif/1/0/weight", "37"])?;
        let shown = dom0.output(&["fairlane", "ctl", "show"])?;
        eprintln!("{shown}");
        assert!(shown.lines().any(|line| line.starts_with("guest-1/0") && line.contains(" 37 ")), "{shown}");
        taken_over(machine)?;
        // A transfer survives a restart of the daemon, however long that takes on a busy host.
        let mut daemon = None;
        transfer(machine, Node::Guest(1), Node::External, 40_000_000, || {
            dom0.output(&["fairlane", "ctl", "stop"])?;
            daemon = Some(machine::run_fairlane(dom0)?);
            Ok(())
        })?;
        restored::in_mid_transfer(machine)?;
        // A guest is destroyed and created again.
        dom0.output(&[XL, "destroy", "guest-2"])?;
        dom0.output(&[XL, "create", "-q", "/etc/xen/guest-2.cfg"])?;
        ping(machine, Node::Guest(2))?;
        ping(machine, Node::Guest(1))?;
        hostile::attacks(machine)?;
        eprintln!("{}", dom0.output(&["fairlane", "ctl", "stats"])?);
        // In all that, the daemon made no system call that its confinement refuses.
        dom0.output(&["fairlane", "ctl", "stop"])?;
        let log = log_of(&daemon.expect("the daemon was restarted"))?;
        eprintln!("{log}");
        for confined in ["no capability is left", "opens the paths of its kind", "makes the system calls of its kind"] {
            assert!(log.contains(confined), "{log}");
        }
        assert!(!log.contains("a thread made the system call"), "{log}");
        Ok(())
    })
}

/// Has a successor take over while a guest is pinged, which loses no ping. Not beside a stream: that leaves a new process no time on
/// the driver domain's only CPU.
fn taken_over(machine: &dyn Machine) -> Result<(), Error> {
    let spec = ping::Spec { to: machine.address(Node::Guest(1)), count: 400, interval: 0.02, patience: 10.0 };
    let pings = machine.agent(Node::External).start_job(Command::Ping(spec))?;
    let outcome = machine.agent(Node::Host).run(machine::replace(Replacement::HandOver))?;
    assert!(matches!(outcome, Outcome::Ran { status: Some(0), .. }), "{outcome:?}");
    let Outcome::RoundTrips(trips) = pings.wait()? else { panic!("trips") };
    eprintln!("the longest time without an answer: {:.3} s", trips.gap(0.02, 0.0..f64::INFINITY));
    assert_eq!(trips.lost(), 0);
    Ok(())
}

/// The log of a daemon that is ending. It runs longer than the deadline of its job.
fn log_of(daemon: &Job) -> Result<String, Error> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match daemon.next() {
            Ok((_, Event::Done(Outcome::Ran { stderr, .. }))) => return Ok(stderr),
            Err(Error::Silent { .. }) if Instant::now() < until => thread::sleep(Duration::from_millis(100)),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Xen's toolstack, in dom0.
const XL: &str = "/usr/lib/xen-4.17/bin/xl";

/// Fairlane's state of a guest's card; none if it has no such card.
fn vif(dom0: &Agent, guest: Node) -> Result<Option<VifState>, Error> {
    let shown = dom0.output(&["fairlane", "ctl", "--json", "show"])?;
    let shown: Snapshot = serde_json::from_str(&shown).unwrap();
    let name = format!("{guest}/0");
    Ok(shown.vifs.into_iter().find(|vif| vif.name == name))
}

/// Waits until something is so, for at most a minute: after a guest was away for ten seconds, its sender's TCP tries again as late.
fn await_that(what: &str, is: impl Fn() -> Result<bool, Error>) -> Result<(), Error> {
    for _ in 0..300 {
        if is()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
    panic!("not within a minute: {what}");
}

/// Pings a guest from the external machine until it replies, for as long as a guest may take to boot.
fn ping(machine: &dyn Machine, guest: Node) -> Result<(), Error> {
    for _ in 0..20 {
        let spec = ping::Spec { to: machine.address(guest), count: 5, interval: 0.2, patience: 2.0 };
        let Outcome::RoundTrips(trips) = machine.agent(Node::External).run(Command::Ping(spec))? else {
            panic!("trips")
        };
        if trips.lost() < 5 {
            eprintln!("external to {guest} and back: {:?}", trips.seconds);
            return Ok(());
        }
    }
    panic!("{guest} does not answer");
}

/// Sends bytes over TCP, runs `meanwhile` before the last of them arrive, and checks that all arrive, however late.
fn transfer(
    machine: &dyn Machine,
    from: Node,
    to: Node,
    bytes: u64,
    meanwhile: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let serving = machine.agent(to).start_job(Command::DigestServe(ServeSpec { port: 5002, seconds: 600.0 }))?;
    serving.started()?;
    let spec = digest::Spec { to: (machine.address(to), 5002).into(), reader: Reader::Quick, bytes, patience: 90.0 };
    let sending = machine.agent(from).start_job(Command::DigestSend(spec))?;
    meanwhile()?;
    let changed = Instant::now();
    let (end, outcome) = sending.next()?;
    eprintln!("{from} to {to}: {outcome:?}, {:.1} s of them after the change", (end - changed).as_secs_f64());
    assert!(matches!(outcome, Event::Done(Outcome::Sent(_))) && end > changed);
    Ok(())
}

fn kvm() -> Result<(), Error> {
    with(MachineKind::Kvm, Backend::Kernel, |machine| {
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        use_disk(machine, Node::Guest(2))
    })
}

fn bare() -> Result<(), Error> {
    with(MachineKind::Box, Backend::Kernel, |machine| {
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        send(machine, Node::Guest(2), Node::Host)
    })
}

/// Boots a machine, runs `work` on it, and ends it.
fn with(kind: MachineKind, backend: Backend, work: impl Fn(&dyn Machine) -> Result<(), Error>) -> Result<(), Error> {
    let start = Instant::now();
    let log = |what: &str| eprintln!("{:6.2} s {what}", start.elapsed().as_secs_f64());
    if !images::check().is_empty() {
        images::setup(&log)?;
    }
    let logs = env::temp_dir().join(format!("fairlane-test-{kind}-{backend}-{}", process::id()));
    fs::create_dir_all(&logs).unwrap();
    let boot = || machine::boot(kind, &topology(kind, backend), &Clock::Wall, &logs, &log);
    // Guests of the emulated CPU do not always come up, whatever their backend. Experiments retry once as well.
    let machine = match boot() {
        Err(silent @ Error::Boot { silent: true, .. }) => {
            log(&format!("retry: {silent}"));
            boot()
        }
        first => first,
    }?;
    log("up");
    work(machine.as_ref())?;
    machine.stop()?;
    log("ended");
    fs::remove_dir_all(logs).unwrap();
    Ok(())
}

/// Sends datagrams from one node to another. On a busy host some may be lost, but not all.
fn send(machine: &dyn Machine, from: Node, to: Node) -> Result<(), Error> {
    let receive = ReceiveSpec { port: 5001, interval: 0.5, seconds: 3.0 };
    let receiver = machine.agent(to).start_job(Command::UdpReceive(receive))?;
    receiver.started()?;
    let address = (machine.address(to), 5001).into();
    let send = Command::UdpSend(udp::SendSpec { to: address, size: 1000, rate: Some(1e6), seconds: 1.0 });
    let Outcome::Sent(sent) = machine.agent(from).run(send)? else { panic!("sent") };
    let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
    let arrived: u64 = received.sources.iter().map(|total| total.datagrams).sum();
    eprintln!("{from} to {to}: {arrived} of {} datagrams", sent.datagrams);
    assert!(arrived > 0 && arrived <= sent.datagrams);
    Ok(())
}

/// Runs an all-to-all exchange by MPI on both guests.
fn exchange(machine: &dyn Machine) -> Result<(), Error> {
    let nodes = [1, 2].map(|guest| machine.address(Node::Guest(guest)));
    let shell = mpi::ShellSpec { at: (nodes[1], 5003).into(), seconds: 65.0 };
    let shell = machine.agent(Node::Guest(2)).start_job(Command::MpiServe(shell))?;
    shell.started()?;
    let (sizes, iterations, seconds) = (vec![64, 100_000], 5, 60.0);
    let run = mpi::Spec { nodes: nodes.to_vec(), port: 5003, sizes: sizes.clone(), iterations, seconds };
    let Outcome::Exchanged(times) = machine.agent(Node::Guest(1)).run(Command::MpiRun(run))? else { panic!("times") };
    shell.wait()?;
    eprintln!("{times:?}");
    assert_eq!(times.iter().map(|times| times.bytes).collect::<Vec<_>>(), sizes);
    Ok(())
}

/// Writes to a guest's disk for a second.
fn use_disk(machine: &dyn Machine, guest: Node) -> Result<(), Error> {
    let run = Command::Disk(disk::Spec {
        path: "/disk".into(),
        operation: disk::Operation::Write,
        block: 65536,
        span: 64 << 20,
        workers: 2,
        interval: 0.5,
        seconds: 1.0,
    });
    let outcome = machine.agent(guest).run(run)?;
    eprintln!("{outcome:?}");
    let Outcome::Disk(done) = outcome else { panic!("disk") };
    assert!(done.direct && done.samples.iter().any(|sample| sample.operations > 0));
    Ok(())
}
