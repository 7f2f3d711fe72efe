//! The emulated computer, as a Xen host, as a KVM host and with native Linux: booted, used, ended.

mod support;

use std::{env, fs, process, time::Instant};

use fairlane_lab::{
    Clock, Command, Error, GuestPlan, Join, Machine, MachineKind, Node, Outcome, Scheduler, Topology, images, machine,
};
use fairlane_load::{ReceiveSpec, disk, udp};
use libtest_mimic::Arguments;
use support::guest_test;

fn main() -> process::ExitCode {
    let tests = vec![
        guest_test("xen_guests_and_external_machine_talk", xen),
        guest_test("kvm_guests_and_external_machine_talk", kvm),
        guest_test("native_linux_and_external_machine_talk", bare),
    ];
    // Each computer has as many CPUs as this has at most.
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, tests).exit_code()
}

/// Two guests on a CPU of their own, the host on another; the second has a disk where the host can serve one.
fn topology(kind: MachineKind) -> Topology {
    let guest = GuestPlan { cpus: vec![1], ..GuestPlan::default() };
    Topology {
        machine: None,
        guests: vec![guest.clone(), GuestPlan { disk: kind != MachineKind::Box, ..guest }],
        link: Some(40e6),
        join: Join::Bridge,
        host_cpus: vec![0],
        scheduler: Scheduler::Credit,
        slice_ms: None,
        count: false,
        offload: true,
    }
}

fn xen() -> Result<(), Error> {
    with(MachineKind::Xen, |machine| {
        assert_eq!(machine.facts()["scheduler"], "credit");
        let before = machine.cpu_time()?;
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        send(machine, Node::Guest(2), Node::Guest(1))?;
        use_disk(machine, Node::Guest(2))?;
        let after = machine.cpu_time()?;
        let nodes: Vec<Node> = after.iter().map(|time| time.node).collect();
        assert_eq!(nodes, [Node::Host, Node::Guest(1), Node::Guest(2)]);
        eprintln!("{before:?}\n{after:?}");
        assert!(before.iter().zip(&after).all(|(before, after)| before.seconds < after.seconds));
        Ok(())
    })
}

fn kvm() -> Result<(), Error> {
    with(MachineKind::Kvm, |machine| {
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        use_disk(machine, Node::Guest(2))
    })
}

fn bare() -> Result<(), Error> {
    with(MachineKind::Box, |machine| {
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        send(machine, Node::Guest(2), Node::Host)
    })
}

/// Boots a machine, does something with it, and ends it.
fn with(kind: MachineKind, work: impl Fn(&dyn Machine) -> Result<(), Error>) -> Result<(), Error> {
    let start = Instant::now();
    let told = |what: &str| eprintln!("{:6.2} s {what}", start.elapsed().as_secs_f64());
    if !images::check().is_empty() {
        images::setup(&told)?;
    }
    let logs = env::temp_dir().join(format!("fairlane-test-{kind}-{}", process::id()));
    fs::create_dir_all(&logs).unwrap();
    let machine = machine::boot(kind, &topology(kind), &Clock::Wall, &logs, &told)?;
    told("up");
    work(machine.as_ref())?;
    machine.stop()?;
    told("ended");
    fs::remove_dir_all(logs).unwrap();
    Ok(())
}

/// Sends datagrams from one node to another. On a busy computer some may be lost, not all.
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
