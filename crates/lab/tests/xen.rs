//! The emulated computer as a Xen host, with real guests.

mod support;

use std::{env, process, time::Instant};

use fairlane_lab::{
    Clock, Command, Error, GuestPlan, Join, MachineKind, Node, Outcome, Scheduler, Topology, images, machine,
};
use fairlane_load::{ReceiveSpec, udp};
use libtest_mimic::Arguments;
use support::guest_test;

fn main() -> process::ExitCode {
    let tests = vec![guest_test("xen_guests_and_external_machine_talk", talk)];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Two guests on a CPU of their own, dom0 on another.
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

fn talk() -> Result<(), Error> {
    let start = Instant::now();
    let told = |what: &str| eprintln!("{:6.2} s {what}", start.elapsed().as_secs_f64());
    if !images::check().is_empty() {
        images::setup(&told)?;
    }
    let logs = env::temp_dir().join(format!("fairlane-test-xen-{}", process::id()));
    std::fs::create_dir_all(&logs).unwrap();
    let machine = machine::boot(MachineKind::Xen, &topology(), Clock::Wall, &logs, &told)?;
    told("up");
    for (from, to) in
        [(Node::Guest(1), Node::External), (Node::External, Node::Guest(2)), (Node::Guest(2), Node::Guest(1))]
    {
        let receiver = machine.agent(to).start_job(Command::UdpReceive(ReceiveSpec {
            port: 5001,
            interval: 0.5,
            seconds: 3.0,
        }))?;
        receiver.started()?;
        let to = (machine.address(to), 5001).into();
        let send = Command::UdpSend(udp::SendSpec { to, size: 1000, rate: Some(1e6), seconds: 1.0 });
        let Outcome::Sent(sent) = machine.agent(from).run(send)? else { panic!("sent") };
        let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
        let arrived: u64 = received.sources.iter().map(|total| total.datagrams).sum();
        told(&format!("{from} to {to}: {arrived} of {} datagrams", sent.datagrams));
        assert!(arrived > 0 && arrived <= sent.datagrams);
    }
    told(&format!("{:?}", machine.facts()));
    machine.stop()?;
    told("stopped");
    std::fs::remove_dir_all(logs).unwrap();
    Ok(())
}
