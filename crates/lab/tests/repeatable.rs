//! On the virtual clock (icount) an experiment on the emulated PC gives the same numbers each time, to the digit: from another
//! directory as well, and while other tests keep the computer busy.

mod support;

use std::path::Path;
use std::{env, fs, process, time::Instant};

use fairlane_lab::experiment::{self, Experiment, Options, Watch};
use fairlane_lab::{Error, MachineKind, images, machine};
use fairlane_report::ResultFile;
use libtest_mimic::Arguments;
use support::guest_test;

const EXPERIMENT: &str = r#"
name = "short"
source = "this test"
figure = "Two guests send over a link that is too narrow for both."
machines = ["xen"]

[topology]
link = 4e6
guests = [{ cpus = [1] }, { cpus = [1] }]

[procedure]
kind = "udp-share"
senders = [{ guest = 1 }, { guest = 2 }]
seconds = 3.0
interval = 0.25
"#;

fn main() -> process::ExitCode {
    libtest_mimic::run(&Arguments::from_args(), vec![guest_test("xen_measures_the_same_twice", xen)]).exit_code()
}

fn xen() -> Result<(), Error> {
    if !images::check().is_empty() {
        images::setup(&|what| eprintln!("{what}"))?;
    }
    let home = env::temp_dir().join(format!("fairlane-test-repeatable-{}", process::id()));
    fs::create_dir_all(&home).unwrap();
    let first = measure(&home, &home)?;
    let elsewhere = home.join("a-directory-with-a-longer-path");
    fs::create_dir_all(&elsewhere).unwrap();
    let second = measure(&home, &elsewhere)?;
    let points = first.series.iter().flat_map(|series| &series.points);
    assert!(points.clone().count() == 24 && points.clone().any(|point| point[1] > 0.0), "{:?}", first.series);
    let second = ResultFile { started: first.started, ..second };
    assert_eq!(first.to_json(), second.to_json());
    fs::remove_dir_all(home).unwrap();
    Ok(())
}

/// Runs the experiment. The first run records the script.
fn measure(scripts: &Path, logs: &Path) -> Result<ResultFile, Error> {
    let experiment = Experiment::parse("short.toml", EXPERIMENT).unwrap();
    let scripts = Some(scripts.to_owned());
    let options = Options { machine: "xen".to_owned(), scale: 1.0, settings: Default::default(), scripts };
    let watch = Log(Instant::now());
    let boot =
        |topology: &_, clock: &_| machine::boot(MachineKind::Xen, topology, clock, logs, &|what| watch.doing(what));
    experiment::run(&experiment, &options, &boot, &watch)
}

/// Prints the progress, with the time since the start.
struct Log(Instant);

impl Watch for Log {
    fn doing(&self, what: &str) {
        eprintln!("{:6.2} s {what}", self.0.elapsed().as_secs_f64());
    }

    fn advance(&self, _: f64) {}
}
