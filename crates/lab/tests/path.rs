//! Instructions counted on native Linux, of packets and of connections: each part is somebody's.

mod support;

use std::{collections::BTreeMap, env, fs, process, time::Instant};

use fairlane_lab::experiment::{self, Experiment, Options, Watch};
use fairlane_lab::path::Component;
use fairlane_lab::{Error, MachineKind, images, machine};
use fairlane_report::ResultFile;
use libtest_mimic::Arguments;
use support::guest_test;

const EXPERIMENT: &str = r#"
name = "short"
source = "this test"
figure = "A packet's way into native Linux, and out of it."
machines = ["box"]

[topology]
count = true
offload = false
join = "plain"
guests = [{ cpus = [0] }]

[procedure]
kind = "path-length"
at = "host"
direction = "receive"
seconds = 0.3

[[case]]
name = "receive"

[[case]]
name = "transmit"
procedure = { direction = "transmit" }
"#;

const CONNECTIONS: &str = r#"
name = "connections"
source = "this test"
figure = "What a connection takes."
machines = ["box"]

[topology]
guests = [{ cpus = [0] }]

[procedure]
kind = "requests"
pattern = "crr"
client = "external"
server = 1
acceptors = "one"
connections = 4
sizes = [1024]
seconds = 5

[[claim]]
text = "A rate, which is not measured where instructions are"
metrics = ["rate/1024"]
at_least = 1
"#;

fn main() -> process::ExitCode {
    let tests = vec![
        guest_test("each_instruction_is_a_components", packets),
        guest_test("a_connections_instructions_are_counted", connections),
    ];
    // One computer at a time: what passes in a moment of the real clock is counted.
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, tests).exit_code()
}

/// Runs an experiment on native Linux.
fn run(experiment: &Experiment) -> Result<ResultFile, Error> {
    if !images::check().is_empty() {
        images::setup(&|what| eprintln!("{what}"))?;
    }
    let logs = env::temp_dir().join(format!("fairlane-test-{}-{}", experiment.name, process::id()));
    fs::create_dir_all(&logs).unwrap();
    let options = Options { machine: "box".to_owned(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let watch = Told(Instant::now());
    let boot =
        |topology: &_, clock: &_| machine::boot(MachineKind::Box, topology, clock, &logs, &|what| watch.doing(what));
    let result = experiment::run(experiment, &options, &boot, &watch)?;
    fs::remove_dir_all(logs).unwrap();
    Ok(result)
}

fn connections() -> Result<(), Error> {
    let mut experiment = Experiment::parse("connections.toml", CONNECTIONS).unwrap();
    experiment.count();
    assert!(experiment.counts() && experiment.claims.is_empty());
    let result = run(&experiment)?;
    let value = |name: &str| result.metrics[&format!("{name}/1024")].value;
    let parts: f64 = Component::ALL.iter().map(|component| value(component.name())).sum();
    eprintln!("{parts} instructions a connection");
    assert!(value("host_kernel") > value("host_user") && (parts / value("instructions") - 1.0).abs() < 1e-9);
    Ok(())
}

fn packets() -> Result<(), Error> {
    let experiment = Experiment::parse("short.toml", EXPERIMENT).unwrap();
    let result = run(&experiment)?;
    for case in ["receive", "transmit"] {
        let value = |name: &str| result.metrics[&format!("{case}/{name}")].value;
        let parts = Component::ALL.map(|component| value(component.name()));
        eprintln!("{case}: {} packets, {parts:?} of {} instructions", value("packets"), value("total"));
        assert!((parts.iter().sum::<f64>() / value("total") - 1.0).abs() < 1e-9);
        let [hypervisor, kernel, user, guest_kernel, guest_user] = parts;
        assert_eq!([hypervisor, guest_kernel, guest_user], [0.0; 3]);
        assert!(kernel > user && user > 0.0);
        // The kernel's own table names its functions: the driver of the card that each frame passes is among the heaviest.
        let named = result.metrics.keys().filter(|name| name.starts_with(&format!("{case}/host_kernel/e1000_")));
        assert!(named.count() > 0, "{:?}", result.metrics.keys());
    }
    Ok(())
}

struct Told(Instant);

impl Watch for Told {
    fn doing(&self, what: &str) {
        eprintln!("{:6.2} s {what}", self.0.elapsed().as_secs_f64());
    }

    fn advance(&self, _: f64) {}
}
