//! The emulated computer, as a Xen host and with native Linux: booted, used, ended.

mod support;

use std::{env, fs, process, time::Instant};

use fairlane_lab::{
    Clock, Command, Error, GuestPlan, Join, Machine, MachineKind, Node, Outcome, Scheduler, Topology, images, machine,
};
use fairlane_load::{ReceiveSpec, udp};
use libtest_mimic::Arguments;
use support::guest_test;

fn main() -> process::ExitCode {
    let tests = vec![
        guest_test("xen_guests_and_external_machine_talk", xen),
        guest_test("native_linux_and_external_machine_talk", bare),
    ];
    // Each computer has as many CPUs as this has at most.
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, tests).exit_code()
}

/// Two guests on a CPU of their own, the host on another.
fn topology() -> Topology {
    let guest = GuestPlan { cpus: vec![1], ..GuestPlan::default() };
    Topology {
        guests: vec![guest.clone(), guest],
        link: Some(40e6),
        join: Join::Bridge,
        host_cpus: vec![0],
        scheduler: Scheduler::Credit,
        slice_ms: None,
        count: false,
    }
}

fn xen() -> Result<(), Error> {
    with(MachineKind::Xen, |machine| {
        assert_eq!(machine.facts()["scheduler"], "credit");
        let before = machine.cpu_time()?;
        send(machine, Node::Guest(1), Node::External)?;
        send(machine, Node::External, Node::Guest(2))?;
        send(machine, Node::Guest(2), Node::Guest(1))?;
        let after = machine.cpu_time()?;
        let nodes: Vec<Node> = after.iter().map(|time| time.node).collect();
        assert_eq!(nodes, [Node::Host, Node::Guest(1), Node::Guest(2)]);
        eprintln!("{before:?}\n{after:?}");
        assert!(before.iter().zip(&after).all(|(before, after)| before.seconds < after.seconds));
        Ok(())
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
    let machine = machine::boot(kind, &topology(), Clock::Wall, &logs, &told)?;
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
