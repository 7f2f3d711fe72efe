//! The runner on a machine whose nodes are agents in this process, connected by its loopback interface.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command as Process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fairlane_report::{Bounds, ResultFile};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use super::super::case::all_metrics;
use super::super::{Options, Watch, run};
use super::parse;
use crate::script::Transport;
use crate::{Agent, Clock, Error, Machine, Node, Topology};

/// A machine of agents in this process.
struct Loopback {
    agents: BTreeMap<Node, (Agent, UnixStream)>,
}

impl Loopback {
    fn boot(topology: &Topology, _: &Clock) -> Result<Box<dyn Machine>, Error> {
        Ok(Box::new(Loopback::make(topology)))
    }

    fn make(topology: &Topology) -> Loopback {
        let guests = (1..=topology.guests.len()).map(Node::Guest);
        let agent = |node: Node| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let input = BufReader::new(theirs.try_clone().unwrap());
            thread::spawn(move || fairlane_agent::serve(input, theirs));
            let (agent, ready) = Agent::listen(
                "loopback",
                Transport::Live(ours.try_clone().unwrap()),
                ours.try_clone().unwrap(),
                Duration::from_secs(5),
            )
            .unwrap();
            ready.wait().unwrap();
            (node, (agent, ours))
        };
        Loopback { agents: guests.chain([Node::External, Node::Host]).map(agent).collect() }
    }
}

impl Machine for Loopback {
    fn agent(&self, node: Node) -> &Agent {
        &self.agents[&node].0
    }

    /// All-to-all needs an address per node.
    fn address(&self, node: Node) -> Ipv4Addr {
        match node {
            Node::Guest(guest) => Ipv4Addr::new(127, 0, 0, guest as u8),
            Node::External | Node::Host => Ipv4Addr::LOCALHOST,
        }
    }

    fn facts(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([("kind".to_owned(), Value::from("loopback"))])
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        self.agents.values().for_each(|(_, line)| line.shutdown(Shutdown::Both).unwrap());
        Ok(())
    }
}

/// Ignores progress.
struct NoWatch;

impl Watch for NoWatch {
    fn doing(&self, _: &str) {}
    fn advance(&self, _: f64) {}
}

/// Held by a test that shares the loopback interface: all tests here use the same ports.
static PORTS: Mutex<()> = Mutex::new(());

/// Gives this test its own loopback interface, in a network namespace that ends with its threads. If that is not allowed, waits for
/// exclusive use of the shared one.
fn loopback() -> Option<MutexGuard<'static, ()>> {
    let up = |()| Process::new("ip").args(["link", "set", "lo", "up"]).status();
    match unshare(CloneFlags::CLONE_NEWNET).map(up) {
        Ok(up) => {
            assert!(up.expect("iproute2 is installed").success());
            None
        }
        Err(_) => Some(PORTS.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

const HEAD: &str = "name = \"e\"\nsource = \"s\"\nfigure = \"f\"\nmachines = [\"native\"]\n";

fn measure(text: &str) -> ResultFile {
    let _ports = loopback();
    let experiment = parse("e", &format!("{HEAD}{text}"));
    let options = Options { machine: "loopback".to_owned(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let result = run(&experiment, &options, &Loopback::boot, &NoWatch).unwrap();
    // A procedure must measure exactly the metrics it announces: claims are checked against the announced names.
    let mut announced = all_metrics(&experiment.cases);
    announced.extend(["boot", "total_time"].map(str::to_owned));
    announced.sort();
    let measured: Vec<String> = result.metrics.keys().cloned().collect();
    assert_eq!(measured, announced);
    let written = tempfile::tempdir().unwrap();
    result.write(written.path()).unwrap();
    result
}

#[test]
fn datagrams_are_shared_and_judged() {
    let result = measure(
        "[topology]\nguests = [{ cpus = [0], rate = 2e6 }]\n[repeats]\ncount = 2\n[background]\nguests = [1]\nshare = 0.1\n\
         [procedure]\nkind = \"udp-share\"\nseconds = 3\nsenders = [{ guest = 1, offer = 1e6 }]\n\
         [[claim]]\ntext = \"Half the rate is used\"\nmetrics = [\"guest1/of_rate\"]\nat_least = 0.4\nat_most = 0.6\n",
    );
    assert_eq!(result.metrics["guest1"].n, 2);
    // The rate depends on the load of this host, so only the verdict is checked against it.
    let (claim, share) = (&result.claims[0], result.metrics["guest1/of_rate"].value);
    let ends = result.metrics["guest1/of_rate"].ci95;
    let verdict = Bounds { at_least: Some(0.4), at_most: Some(0.6) }.judge(share, ends);
    assert!(share > 0.0 && claim.verdict == verdict, "{share} {ends:?}: {claim:?}");
    assert_eq!(result.settings["machine: kind"], "loopback");
}

/// A setting that no kernel has shows what is written, without changing anything.
#[test]
fn guests_get_the_kernel_settings_of_their_topology() {
    let _ports = loopback();
    let text = "[topology]\nguests = [{ cpus = [0] }]\nsysctls = { \"net.core.no_such_setting\" = \"1\" }\n[procedure]\n\
                kind = \"ping\"\nfrom = \"external\"\nguest = 1\ncount = 10\ninterval = 0.01\n";
    let experiment = parse("e", &format!("{HEAD}{text}"));
    let options = Options { machine: "loopback".to_owned(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let error = run(&experiment, &options, &Loopback::boot, &NoWatch).unwrap_err().to_string();
    assert!(error.contains("/proc/sys/net/core/no_such_setting"), "{error}");
}

#[test]
fn cases_are_measured_separately() {
    let result = measure(
        "[topology]\nguests = [{ cpus = [0] }, { cpus = [0] }]\n[procedure]\nkind = \"requests\"\npattern = \"http\"\n\
         client = \"external\"\nserver = 1\nacceptors = \"one\"\nconnections = 1\nsizes = [0]\nseconds = 0.3\n\
         [[case]]\nname = \"idle\"\n[[case]]\nname = \"busy\"\nprocedure = { sizes = [64] }\n\
         background = { guests = [2], share = 0.5 }\n",
    );
    assert!(result.metrics["idle/rate/0"].value > 0.0 && result.metrics["busy/rate/64"].value > 0.0);
}

#[test]
fn requests_are_counted_by_size() {
    let result = measure(
        "[topology]\nguests = [{ cpus = [0] }]\n[procedure]\nkind = \"requests\"\npattern = \"http\"\n\
         client = \"external\"\nserver = 1\nacceptors = \"each\"\nconnections = 2\nsizes = [0, 4096]\nseconds = 0.3\n",
    );
    assert!(result.metrics["rate/0"].value > 0.0 && result.metrics["rate/4096"].value > 0.0);
    // An answer has headers and the object.
    let answer = result.metrics["bandwidth/4096"].value / 8.0 / result.metrics["rate/4096"].value;
    assert!((4096.0..4600.0).contains(&answer), "{answer} bytes");
    assert_eq!(result.find("rate").unwrap().values().len(), 2);
}

#[test]
fn requests_go_through_a_proxy() {
    let result = measure(
        "[topology]\nproxy = true\nguests = [{ cpus = [0] }]\n[procedure]\nkind = \"requests\"\npattern = \"http\"\nclient = \"external\"\n\
         server = \"host\"\nthrough = 1\nacceptors = \"one\"\nconnections = 2\nsizes = [4096]\nseconds = 0.3\n",
    );
    assert!(result.metrics["rate/4096"].value > 0.0 && result.metrics["busiest/proxy"].value > 0.0);
}

#[test]
fn delays_and_transfers_are_read() {
    let delays = measure(
        "[topology]\nguests = [{ cpus = [0] }]\n[procedure]\nkind = \"packet-delay\"\nfrom = \"host\"\nguest = 1\n\
         count = 50\ninterval = 0.002\n",
    );
    assert_eq!(delays.metrics["median"].n, 50);
    let transfers = measure(
        "[topology]\nguests = [{ cpus = [0] }]\n[procedure]\nkind = \"transfer\"\nfrom = \"external\"\nguest = 1\n\
         sizes = [10_000, 1_000_000]\ncount = 10\nseconds = 0.5\n",
    );
    assert_eq!(transfers.metrics["rate/10KB"].n, 10);
    assert_eq!(transfers.metrics["rate/1MB"].unit, "MB/s");
}

/// Boots a machine whose first guest ends with the first request.
fn boot_with_lost_guest(topology: &Topology, _: &Clock) -> Result<Box<dyn Machine>, Error> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        (&theirs).write_all(b"{\"id\":0,\"event\":{\"done\":\"served\"}}\n").unwrap();
        BufReader::new(theirs).read_until(b'\n', &mut Vec::new())
    });
    let input = ours.try_clone().unwrap();
    let transport = Transport::Live(ours.try_clone().unwrap());
    let (agent, ready) = Agent::listen("lost", transport, input, Duration::from_secs(5)).unwrap();
    ready.wait().unwrap();
    let mut machine = Loopback::make(topology);
    machine.agents.insert(Node::Guest(1), (agent, ours));
    Ok(Box::new(machine))
}

/// Records the reported activities.
#[derive(Default)]
struct Activities(Mutex<Vec<String>>);

impl Watch for Activities {
    fn doing(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    fn advance(&self, _: f64) {}
}

#[test]
fn a_machine_that_loses_a_guest_is_booted_again_for_the_remaining_cases() {
    let _ports = loopback();
    let text = "[topology]\nguests = [{ cpus = [0] }, { cpus = [0] }]\n[procedure]\nkind = \"transfer\"\nfrom = \"external\"\n\
                guest = 2\nsizes = [10_000]\ncount = 10\nseconds = 0.5\n\
                [[case]]\nname = \"a\"\n[[case]]\nname = \"b\"\nprocedure = { guest = 1 }\n";
    let experiment = parse("e", &format!("{HEAD}{text}"));
    let options = Options { machine: "loopback".to_owned(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let (boots, activities) = (AtomicUsize::new(0), Activities::default());
    let once = |topology: &_, clock: &_| match boots.fetch_add(1, Ordering::Relaxed) {
        0 => boot_with_lost_guest(topology, clock),
        _ => Loopback::boot(topology, clock),
    };
    let result = run(&experiment, &options, &once, &activities).unwrap();
    let warnings = &result.warnings;
    assert!(warnings.len() == 1 && warnings[0].starts_with("b/"), "{warnings:?}");
    assert!(warnings[0].contains("measured again: guest lost ended"), "{warnings:?}");
    assert_eq!(["a", "b"].map(|case| result.metrics[&format!("{case}/rate/10KB")].n), [10, 10]);
    let done = ["a/booting", "a/repeat 1", "b/repeat 1", "b/booting", "b/repeat 1"];
    assert_eq!(activities.0.into_inner().unwrap(), done);
    assert!(matches!(run(&experiment, &options, &boot_with_lost_guest, &NoWatch), Err(Error::Gone { .. })));
}

#[test]
fn a_machine_that_does_not_come_up_for_no_known_reason_is_booted_again_once() {
    let _ports = loopback();
    let text = "[topology]\nguests = [{ cpus = [0] }]\n[procedure]\nkind = \"transfer\"\nfrom = \"external\"\n\
                guest = 1\nsizes = [10_000]\ncount = 10\nseconds = 0.5\n";
    let experiment = parse("e", &format!("{HEAD}{text}"));
    let options = Options { machine: "loopback".to_owned(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let run_failing = |failures: usize, silent: bool| {
        let boots = AtomicUsize::new(0);
        let boot = |topology: &_, clock: &_| match boots.fetch_add(1, Ordering::Relaxed) {
            failed if failed < failures => Err(Error::Boot {
                guest: "guest1".to_owned(),
                image: "an image".into(),
                reason: "did not come up in time".to_owned(),
                silent,
                log: PathBuf::new(),
                console: "what it printed".to_owned(),
            }),
            _ => Loopback::boot(topology, clock),
        };
        let outcome = run(&experiment, &options, &boot, &NoWatch);
        (outcome, boots.into_inner())
    };
    let (outcome, boots) = run_failing(1, true);
    let warnings = outcome.unwrap().warnings;
    assert_eq!(boots, 2);
    assert!(
        warnings.len() == 1 && warnings[0].ends_with("again: guest guest1 did not come up in time"),
        "{warnings:?}"
    );
    for (silent, boots) in [(true, 2), (false, 1)] {
        let (outcome, done) = run_failing(9, silent);
        assert!(matches!(outcome, Err(Error::Boot { .. })));
        assert_eq!(done, boots);
    }
}

#[test]
fn an_interval_that_stays_wide_gives_a_warning() {
    let result = measure(
        "[topology]\nguests = [{ cpus = [0] }]\n[repeats]\nmetric = \"rate/0\"\nwithin = 0.001\nleast = 3\nmost = 3\n\
         [procedure]\nkind = \"requests\"\npattern = \"http\"\nclient = \"external\"\nserver = 1\nacceptors = \"one\"\n\
         connections = 1\nsizes = [0]\nseconds = 0.3\n",
    );
    // Times measured on a real host vary by more than 0.1%.
    assert!(result.warnings[0].starts_with("NOT CONVERGED: after 3 repeats"));
}

#[test]
fn what_a_neighbour_suffers_is_measured() {
    let result = measure(
        "[topology]\nguests = [{ cpus = [0] }, { cpus = [0] }]\n[background]\nwaits = [1]\nguests = [1]\nshare = 0.1\n\
         [procedure]\nkind = \"stall\"\nfrom = \"external\"\nguest = 1\noffer = 1e6\npayload = 200\nneighbour = 2\n\
         count = 20\ninterval = 0.005\nstream = 0.2\n",
    );
    let value = |name: &str| result.metrics[name].value;
    assert!(0.0 < value("p50") && value("p50") <= value("p90") && value("p90") <= value("p99"));
    assert!((0.0..=100.0).contains(&value("received")) && value("received") > 0.0);
    assert!(value("to_neighbour") > 0.0 && value("from_neighbour") > 0.0);
}
