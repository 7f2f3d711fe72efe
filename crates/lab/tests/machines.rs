//! Machines whose guests run on this host.

mod support;

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    process::{self, Stdio},
    thread,
    time::{Duration, Instant},
};

use fairlane_lab::{Clock, Command, Error, GuestPlan, Join, Machine, MachineKind, Node, Outcome, Topology, machine};
use fairlane_load::{ReceiveSpec, tcp, udp};
use libtest_mimic::Arguments;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::guest_test;

/// Set to the machine's kind for the copy of this program that boots a machine and is then killed.
const VICTIM: &str = "FAIRLANE_TEST_VICTIM";

fn main() -> process::ExitCode {
    if let Ok(kind) = env::var(VICTIM) {
        run_victim(kind.parse().unwrap());
    }
    let tests = vec![
        guest_test("native_carries_traffic_on_its_cpus", || works(MachineKind::Native)),
        guest_test("native_leaves_nothing_when_the_lab_is_killed", || killed(MachineKind::Native)),
        guest_test("native_limits_link_and_cards", || limits(MachineKind::Native)),
        guest_test("native_routes_a_plain_join", || plain(MachineKind::Native)),
        guest_test("an_impossible_topology_is_refused", refused),
        guest_test("uml_carries_traffic_on_its_cpus", || works(MachineKind::Uml)),
        guest_test("uml_leaves_nothing_when_the_lab_is_killed", || killed(MachineKind::Uml)),
        guest_test("uml_limits_link_and_cards", || limits(MachineKind::Uml)),
        guest_test("qemu_carries_traffic_on_its_cpus", || works(MachineKind::Qemu)),
        guest_test("qemu_e1000_carries_traffic_on_its_cpus", || works(MachineKind::QemuE1000)),
        guest_test("qemu_leaves_nothing_when_the_lab_is_killed", || killed(MachineKind::Qemu)),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Two guests on the second CPU, the host on the first; with a single CPU all are on that.
fn topology() -> Topology {
    let cpu = usize::from(thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1));
    let guest = GuestPlan { cpus: vec![cpu], ..GuestPlan::default() };
    Topology::of(vec![guest.clone(), guest])
}

fn boot(kind: MachineKind, topology: &Topology) -> Result<(Box<dyn Machine>, tempfile::TempDir), Error> {
    let logs = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let machine = machine::boot(kind, topology, &Clock::Wall, logs.path(), &|step| eprintln!("{kind}: {step}"))?;
    eprintln!("{kind}: up after {:.2} s", start.elapsed().as_secs_f64());
    Ok((machine, logs))
}

fn works(kind: MachineKind) -> Result<(), Error> {
    let topology = topology();
    let (machine, _logs) = boot(kind, &topology)?;
    let networks = networks(&*machine);
    for (number, guest) in (1..).zip(&topology.guests) {
        // The agent's own process, or all processes of the guest.
        for process in processes_of(&*machine, Node::Guest(number)) {
            let allowed: Vec<String> = guest.cpus.iter().map(usize::to_string).collect();
            assert_eq!(cpus_of(process), allowed.join(","), "of process {process}");
        }
    }
    for (from, to) in [
        (Node::Guest(1), Node::External),
        (Node::External, Node::Guest(2)),
        (Node::Guest(1), Node::Guest(2)),
        (Node::Guest(2), Node::Host),
    ] {
        stream(&*machine, from, to)?;
    }
    let facts = machine.facts();
    assert_eq!(facts["machine"], kind.name());
    assert_eq!(facts["nodes"]["guest-2"]["cpus"], serde_json::json!(topology.guests[1].cpus));
    let Outcome::Hello { kernel, .. } = machine.agent(Node::Guest(1)).run(Command::Hello)? else { panic!("hello") };
    assert_eq!(facts["nodes"]["guest-1"]["kernel"], kernel);
    machine.stop()?;
    assert_gone(&networks);
    Ok(())
}

/// Sends a short stream: a connection proves that frames pass in both directions.
fn stream(machine: &dyn Machine, from: Node, to: Node) -> Result<(), Error> {
    let receive = ReceiveSpec { port: 5001, interval: 0.1, seconds: 2.0 };
    let receiver = machine.agent(to).start_job(Command::TcpReceive(receive))?;
    receiver.started()?;
    let to = (machine.address(to), 5001).into();
    let mut bytes = 0;
    // A queue that is full from before, or a busy CPU, may cost the first segment, and it is not sent again in that time.
    for _ in 0..5 {
        let run = Command::TcpSend(tcp::SendSpec { to, connections: 1, seconds: 0.3 });
        let Outcome::Sent(sent) = machine.agent(from).run(run)? else { panic!("sent") };
        bytes = sent.bytes;
        if bytes > 0 {
            break;
        }
    }
    assert!(bytes > 0, "from {from}");
    let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
    // On a busy CPU the stream may arrive after the receiver's time.
    assert!(received.sources.len() <= 1, "from {from}: {received:?}");
    for total in &received.sources {
        assert_eq!(total.source.ip(), machine.address(from));
        assert!(total.bytes <= bytes, "from {from}: {total:?} of {bytes} bytes");
    }
    Ok(())
}

/// A link of 20 Mbit/s and a card of 4 Mbit/s carry no more than their rate in the receiver's time.
fn limits(kind: MachineKind) -> Result<(), Error> {
    let mut topology = Topology { link: Some(20e6), ..topology() };
    topology.guests[1].rate = Some(4e6);
    let (machine, _logs) = boot(kind, &topology)?;
    for (from, to, rate) in [
        (Node::Guest(1), Node::External, 20e6),
        (Node::External, Node::Guest(1), 20e6),
        (Node::Guest(2), Node::Guest(1), 4e6),
    ] {
        let seconds = 1.5;
        let receive = ReceiveSpec { port: 5001, interval: 0.1, seconds };
        // The neighbour's MAC address is learned first.
        stream(&*machine, from, to)?;
        let receiver = machine.agent(to).start_job(Command::UdpReceive(receive))?;
        receiver.started()?;
        let to = (machine.address(to), 5001).into();
        let run = Command::UdpSend(udp::SendSpec { to, size: 1458, rate: Some(4.0 * rate), seconds: 1.0 });
        let Outcome::Sent(sent) = machine.agent(from).run(run)? else { panic!("sent") };
        let Outcome::Received(received) = receiver.wait()? else { panic!("received") };
        let [total] = &received.sources[..] else { panic!("{from}: {received:?}") };
        // In that time the bucket passes its rate, its burst, and a full queue from before.
        let most = rate / 8.0 * (seconds + 0.021) + 3.0 * 1514.0 + 32.0 * 1514.0;
        assert!(total.bytes as f64 <= most, "{from}: {} bytes at {rate} bit/s", total.bytes);
        assert!(total.datagrams < sent.datagrams, "{from}: the queue must drop what it has no room for");
        assert!(total.datagrams > 0);
    }
    machine.stop()
}

/// With a plain join the first guest reaches the external machine through the host, and the second guest has no card.
fn plain(kind: MachineKind) -> Result<(), Error> {
    let (machine, _logs) = boot(kind, &Topology { join: Join::Plain, ..topology() })?;
    stream(&*machine, Node::Guest(1), Node::External)?;
    stream(&*machine, Node::External, Node::Guest(1))?;
    stream(&*machine, Node::Guest(1), Node::Host)?;
    let Outcome::Counters(counters) = machine.agent(Node::Guest(2)).run(Command::Counters)? else { panic!("counters") };
    assert_eq!(counters.interfaces.iter().map(|card| card.name.as_str()).collect::<Vec<_>>(), ["lo"]);
    machine.stop()
}

fn refused() -> Result<(), Error> {
    let guest = |plan: GuestPlan| Topology { guests: vec![plan], ..topology() };
    let plan = || GuestPlan { cpus: vec![0], ..GuestPlan::default() };
    for (topology, words) in [
        (Topology { guests: vec![], ..topology() }, "guests: there must be 1 to 200, not 0"),
        (Topology { link: Some(f64::NAN), ..topology() }, "link: NaN bit/s"),
        (Topology { host_cpus: vec![], ..topology() }, "host_cpus: at least one CPU is needed"),
        (guest(GuestPlan { cpus: vec![900], ..plan() }), "guest 1: CPU 900 is not usable here; usable CPUs: 0"),
        (guest(GuestPlan { rate: Some(-1.0), ..plan() }), "guest 1: rate: -1 bit/s"),
        (guest(GuestPlan { disk: true, ..plan() }), "guest 1: machine native has no block backend"),
    ] {
        let error = boot(MachineKind::Native, &topology).map(drop).unwrap_err();
        assert!(matches!(error, Error::Topology(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let logs = tempfile::tempdir().unwrap();
    let clock = machine::boot(MachineKind::Uml, &topology(), &Clock::Virtual("script".into()), logs.path(), &|_| ());
    assert!(clock.map(drop).unwrap_err().to_string().contains("wall clock only"));
    Ok(())
}

fn killed(kind: MachineKind) -> Result<(), Error> {
    // Boots one here first, so that this test is skipped like the others if something is missing.
    drop(boot(kind, &topology())?);
    let program = env::current_exe().unwrap();
    let mut victim = process::Command::new(program).env(VICTIM, kind.name()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let networks: BTreeSet<u64> = line.split_whitespace().map(|inode| inode.parse().unwrap()).collect();
    assert!(networks.len() > 1 && !processes_in(&networks).is_empty());
    kill(Pid::from_raw(victim.id() as i32), Signal::SIGKILL).unwrap();
    victim.wait().unwrap();
    assert_gone(&networks);
    Ok(())
}

/// Boots a machine, prints its network namespaces, and waits to be killed.
fn run_victim(kind: MachineKind) -> ! {
    let (machine, _logs) = boot(kind, &topology()).unwrap();
    println!("{}", networks(&*machine).iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
    loop {
        thread::park();
    }
}

/// The agent's process, if it is a process of this host.
fn process_of(machine: &dyn Machine, node: Node) -> Option<u32> {
    let Ok(Outcome::Hello { pid, .. }) = machine.agent(node).run(Command::Hello) else { panic!("hello of {node}") };
    Some(pid).filter(|pid| *pid != 1)
}

/// The processes of a node: its agent, or those with its name on their command line in the host's network namespace.
fn processes_of(machine: &dyn Machine, node: Node) -> Vec<u32> {
    if let Some(process) = process_of(machine, node) {
        return vec![process];
    }
    let host = BTreeSet::from([network_of(process_of(machine, Node::Host).unwrap()).unwrap()]);
    let named = |process: &u32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&format!("fairlane.host={node}"))
    };
    let processes: Vec<u32> = processes_in(&host).into_iter().filter(named).collect();
    assert!(!processes.is_empty(), "{node} has no process");
    processes
}

/// The network namespaces of a machine, by inode number.
fn networks(machine: &dyn Machine) -> BTreeSet<u64> {
    let nodes = [Node::Host, Node::External, Node::Guest(1), Node::Guest(2)];
    let processes = nodes.into_iter().filter_map(|node| process_of(machine, node));
    let networks: BTreeSet<u64> = processes.map(|process| network_of(process).unwrap()).collect();
    assert!(!networks.contains(&network_of(process::id()).unwrap()), "one is this process's own");
    networks
}

fn network_of(process: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{process}/ns/net")).ok()?.ino())
}

fn processes_in(networks: &BTreeSet<u64>) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(|process| network_of(*process).is_some_and(|network| networks.contains(&network))).collect()
}

fn cpus_of(process: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.expect("/proc/PID/status has Cpus_allowed_list").trim().to_owned()
}

/// Checks that no process is left in the namespaces: a namespace and its cards disappear with its last process.
fn assert_gone(networks: &BTreeSet<u64>) {
    let start = Instant::now();
    while !processes_in(networks).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?} are left behind", processes_in(networks));
        thread::sleep(Duration::from_millis(20));
    }
}
