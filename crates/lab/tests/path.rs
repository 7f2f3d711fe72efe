//! Counts instructions of packets and connections on native Linux and on a KVM host: each belongs to a component.

mod support;

use std::{collections::BTreeMap, env, fs, process, time::Instant};

use fairlane_lab::experiment::{self, Experiment, Options, Watch};
use fairlane_lab::path::Component;
use fairlane_lab::{
    Error, MachineKind, images,
    machine::{self, Backend},
};
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
machines = ["box", "kvm"]

[topology]
guests = [{ cpus = [1] }]

[procedure]
kind = "requests"
pattern = "crr"
client = "external"
server = 1
acceptors = "one"
connections = 4
sizes = [1024]
seconds = 1

[[claim]]
text = "A rate, which is not measured where instructions are"
metrics = ["rate/1024"]
at_least = 1
"#;

fn main() -> process::ExitCode {
    let tests = vec![
        guest_test("each_instruction_belongs_to_a_component", packets),
        guest_test("a_connections_instructions_are_counted", connections),
        guest_test("a_kvm_guests_instructions_are_separated_from_its_hosts", after_vmrun),
    ];
    // One machine at a time: the marks are set by the real clock, and a busy host would execute less between them.
    libtest_mimic::run(&Arguments { test_threads: Some(1), ..Arguments::from_args() }, tests).exit_code()
}

/// Runs an experiment.
fn run(kind: MachineKind, experiment: &Experiment) -> Result<ResultFile, Error> {
    if !images::check().is_empty() {
        images::setup(&|what| eprintln!("{what}"))?;
    }
    let logs = env::temp_dir().join(format!("fairlane-test-{}-{}", experiment.name, process::id()));
    fs::create_dir_all(&logs).unwrap();
    let options = Options { machine: kind.to_string(), scale: 1.0, settings: BTreeMap::new(), scripts: None };
    let watch = Log(Instant::now());
    let boot = |topology: &_, clock: &_| machine::boot(kind, topology, clock, &logs, &|what| watch.doing(what));
    let result = experiment::run(experiment, &options, &boot, &watch)?;
    fs::remove_dir_all(logs).unwrap();
    Ok(result)
}

/// Instructions per connection: in total, and of each component.
fn bill(kind: MachineKind, backend: Backend) -> Result<(f64, [f64; 5]), Error> {
    let mut experiment = Experiment::parse("connections.toml", CONNECTIONS).unwrap();
    experiment.count(kind);
    experiment.serve_by(backend, false);
    assert!(experiment.counts() && experiment.claims.is_empty());
    let result = run(kind, &experiment)?;
    let value = |name: &str| result.metrics[&format!("{name}/1024")].value;
    let (all, parts) = (value("instructions"), Component::ALL.map(|component| value(component.name())));
    eprintln!("{all} instructions a connection: {parts:?}");
    assert!((parts.iter().sum::<f64>() / all - 1.0).abs() < 1e-9);
    Ok((all, parts))
}

fn connections() -> Result<(), Error> {
    let (_, [_, kernel, user, _, _]) = bill(MachineKind::Box, Backend::Kernel)?;
    assert!(kernel > user && user > 0.0);
    Ok(())
}

/// The guest's own path is about as long as native Linux's. Fairlane is a program of the host, whose programs execute little if the
/// kernel is the backend.
fn after_vmrun() -> Result<(), Error> {
    let (all, parts) = bill(MachineKind::Kvm, Backend::Fairlane)?;
    let [hypervisor, host_kernel, host_user, guest_kernel, guest_user] = parts;
    assert_eq!(hypervisor, 0.0);
    assert!(host_kernel > all / 5.0 && guest_kernel > all / 5.0 && guest_kernel > guest_user && guest_user > 0.0);
    assert!(host_user > all / 50.0);
    Ok(())
}

fn packets() -> Result<(), Error> {
    let experiment = Experiment::parse("short.toml", EXPERIMENT).unwrap();
    let cases = ["receive", "transmit"];
    let is_whole = |result: &ResultFile| cases.iter().all(|case| result.metrics.contains_key(&format!("{case}/total")));
    let mut result = run(MachineKind::Box, &experiment)?;
    for _ in 0..2 {
        // On a computer that stands still meanwhile, no packet may pass in the time that is measured.
        if !is_whole(&result) {
            result = run(MachineKind::Box, &experiment)?;
        }
    }
    for case in cases {
        let value = |name: &str| result.metrics[&format!("{case}/{name}")].value;
        let parts = Component::ALL.map(|component| value(component.name()));
        eprintln!("{case}: {} packets, {parts:?} of {} instructions", value("packets"), value("total"));
        assert!((parts.iter().sum::<f64>() / value("total") - 1.0).abs() < 1e-9);
        let [hypervisor, kernel, user, guest_kernel, guest_user] = parts;
        assert_eq!([hypervisor, guest_kernel, guest_user], [0.0; 3]);
        assert!(kernel > user && user > 0.0);
        // Functions are named by the kernel's own table; those of the card's driver must be among the most frequent.
        let named = result.metrics.keys().filter(|name| name.starts_with(&format!("{case}/host_kernel/e1000_")));
        assert!(named.count() > 0, "{:?}", result.metrics.keys());
    }
    Ok(())
}

/// Prints the progress, with the time since the start.
struct Log(Instant);

impl Watch for Log {
    fn doing(&self, what: &str) {
        eprintln!("{:6.2} s {what}", self.0.elapsed().as_secs_f64());
    }

    fn advance(&self, _: f64) {}
}
