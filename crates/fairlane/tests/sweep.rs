//! `fairlane sweep` as its users run it: killed and begun again, on a real HyperQueue whose workers are killed, and over an experiment of
//! the lab.

mod missing;
mod process;
mod short;

use fairlane_report::ResultFile;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use missing::skip_or_fail;
use process::Process;
use short::SHORT;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const FAIRLANE: &str = env!("CARGO_BIN_EXE_fairlane");
const PLAN: &str = include_str!("../../sweep/tests/grids/plan.toml");

/// 600 points, 6 a part.
const GRID: &str = r#"
plan = "plan.toml"
goal = ["lowest requests/wait_p99"]
[settings]
"host.host.vif.web.weight" = { from = 10, to = 1000, steps = 20 }
"host.host.link.rate" = { from = 60, to = 200, steps = 30, unit = "Mbit/s" }
"#;
const PARTS: usize = 100;

const GRID_OF_EXPERIMENT: &str = r#"
experiment = "short.toml"
lab = { machine = "native" }
goal = ["lowest median"]
measure = ["lost"]
[settings]
"procedure.count" = [10, 20]
"procedure.interval" = [0.01, 0.02]
"#;

/// How long something may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let tests = vec![
        Trial::test("a_sweep_that_is_killed_goes_on", goes_on),
        Trial::ignorable_test("an_experiment_is_run_with_each_setting", over_an_experiment),
        Trial::ignorable_test("hyperqueue_loses_no_part_when_workers_die", on_hyperqueue),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// A directory with a plan and a grid.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("plan.toml"), PLAN).unwrap();
        fs::write(directory.path().join("grid.toml"), GRID).unwrap();
        Place(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sweep(&self, words: &[&str]) -> Command {
        let mut command = Command::new(FAIRLANE);
        command.arg("sweep").args(words).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn parts(&self, out: &str) -> usize {
        let files = fs::read_dir(self.path(out).join("parts")).into_iter().flatten().flatten();
        files.filter(|file| file.path().extension().is_some_and(|end| end == "parquet")).count()
    }

    /// Waits until so many parts are done.
    fn wait_for(&self, out: &str, parts: usize) -> Result<(), Failed> {
        let start = Instant::now();
        while self.parts(out) < parts {
            if start.elapsed() > PATIENCE {
                return Err(format!("{} of {parts} parts were done", self.parts(out)).into());
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// What a sweep found, without the times of its simulations.
    fn found(&self, out: &str) -> serde_json::Value {
        let text = fs::read_to_string(self.path(out).join("result.json")).unwrap();
        let mut result: serde_json::Value = serde_json::from_str(&text).unwrap();
        result["metrics"].as_object_mut().unwrap().remove("simulated_in");
        serde_json::json!([result["metrics"], result["series"], result["warnings"], result["settings"]])
    }
}

fn run(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{command:?}: {}{}", text(&output.stdout), text(&output.stderr)).into()),
    }
}

fn goes_on() -> Result<(), Failed> {
    let place = Place::new();
    let mut killed = Process(place.sweep(&["run", "grid.toml", "--out", "killed"]).stderr(Stdio::null()).spawn()?);
    place.wait_for("killed", 3)?;
    killed.0.kill()?;
    killed.0.wait()?;
    let done = place.parts("killed");
    let said = run(&mut place.sweep(&["status", "grid.toml", "--out", "killed"]))?;
    assert!(said.starts_with(&format!("{done} of {PARTS} parts are done\n")), "{said}");
    assert!(done < PARTS && said.contains(&format!("{} of 600 points are done", done * 6)), "{said}");

    // A part by itself, as a task does it.
    let part = (0..PARTS).find(|part| !place.path(&format!("killed/parts/{part:06}.parquet")).exists());
    let part = part.ok_or("nothing is left to do")?;
    let task = |part: &str| {
        let mut command = place.sweep(&["part", "grid.toml", "--out", "killed"]);
        command.env("HQ_TASK_ID", part);
        command
    };
    run(&mut task(&part.to_string()))?;
    assert_eq!(place.parts("killed"), done + 1);
    let refused = task("100").output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(said, "HQ_TASK_ID must be a part of this sweep, 0 to 99, not \"100\"\n");

    let said = run(&mut place.sweep(&["run", "grid.toml", "--out", "killed", "--workers", "2"]))?;
    let best = "\nThe best point:\n  host.host.link.rate (Mbit/s) = ";
    assert!(
        said.contains("best/requests/wait_p99") && said.contains(best) && said.contains("killed/report.html"),
        "{said}"
    );
    run(&mut place.sweep(&["run", "grid.toml", "--out", "whole", "--workers", "1"]))?;
    assert_eq!(place.found("killed"), place.found("whole"));

    // Mistakes of a grid are wrong usage.
    fs::write(place.path("wrong.toml"), GRID.replace("plan.toml", "none.toml"))?;
    let wrong = place.sweep(&["run", "wrong.toml"]).output()?;
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).starts_with("wrong.toml:2: cannot read none.toml"));
    let absent = place.sweep(&["run", "grid.toml", "--on", "hyperqueue"]).env("PATH", "/nowhere").output()?;
    let said = String::from_utf8_lossy(&absent.stderr).into_owned();
    assert!(said.contains("cannot run hq") && said.contains("Install HyperQueue"), "{said}");
    Ok(())
}

fn over_an_experiment() -> Result<Completion, Failed> {
    let place = Place::new();
    fs::write(place.path("short.toml"), SHORT)?;
    fs::write(place.path("grid.toml"), GRID_OF_EXPERIMENT)?;
    let refused = place.sweep(&["run", "grid.toml", "--workers", "2"]).output()?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(said, "an experiment needs the whole computer: leave --workers out\n");
    run(&mut place.sweep(&["run", "grid.toml", "--out", "echoes"]))?;
    let result = ResultFile::read(&place.path("echoes"))?;
    if let Some(why) = result.warnings.first() {
        return skip_or_fail(why.clone());
    }
    assert_eq!((place.parts("echoes"), result.machine.as_deref()), (4, Some("native")));
    let value = |name: &str| result.metrics[name].value;
    assert_eq!((value("points"), value("runs"), value("best/lost")), (4.0, 4.0, 0.0));
    assert!(value("best/median") > 0.0 && value("measured_in") > 0.0);
    Ok(Completion::Completed)
}

fn on_hyperqueue() -> Result<Completion, Failed> {
    if Command::new("hq").arg("--version").output().is_err() {
        let missing = "HyperQueue (hq) is not on this machine: no distribution has a package of it";
        eprintln!("SKIPPED: {missing}");
        return Ok(Completion::ignored_with(missing));
    }
    let place = Place::new();
    let hq = |words: &[&str]| {
        let mut command = Command::new("hq");
        command.args(words).current_dir(place.0.path()).env("HQ_SERVER_DIR", place.path("server"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let _server = Process(hq(&["server", "start", "--host", "localhost"]).spawn()?);
    let start = Instant::now();
    while !hq(&["server", "info"]).status()?.success() {
        if start.elapsed() > PATIENCE {
            return Err("HyperQueue's server did not start".into());
        }
        sleep(Duration::from_millis(50));
    }
    let worker = || hq(&["worker", "start", "--cpus", "1"]).spawn().map(Process);
    let mut workers = [worker()?, worker()?];
    let mut sweep = place.sweep(&["run", "grid.toml", "--out", "spread", "--on", "hyperqueue"]);
    sweep.env("HQ_SERVER_DIR", place.path("server"));
    let mut sweep = Process(sweep.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?);
    for (parts, worker_of) in [(20, 0), (50, 1)] {
        place.wait_for("spread", parts)?;
        workers[worker_of] = worker()?;
    }
    let ended = sweep.0.wait()?;
    if !ended.success() {
        let why = std::io::read_to_string(sweep.0.stderr.take().expect("a pipe"))?;
        return Err(why.into());
    }
    run(&mut place.sweep(&["run", "grid.toml", "--out", "here"]))?;
    assert_eq!(place.found("spread"), place.found("here"));
    assert!(Path::new(&place.path("spread/report.html")).exists());
    Ok(Completion::Completed)
}
