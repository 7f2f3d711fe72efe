//! The lab's commands, with short experiments. On a machine that lacks something a test needs, the test is ignored with a message;
//! with `FAIRLANE_GUESTS=required` in the environment it fails instead.

mod missing;
mod short;

use fairlane_report::ResultFile;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use missing::skip_or_fail;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use short::SHORT;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let tests = vec![
        Trial::test("experiments_are_listed", list),
        Trial::test("problems_of_a_file_are_reported_by_line_before_anything_starts", wrong),
        Trial::test("an_unsupported_kind_of_machine_is_refused", impossible),
        Trial::ignorable_test("datagrams_are_exchanged_between_namespaces", native),
        Trial::ignorable_test("progress_is_printed_as_lines_without_a_terminal", lines),
        Trial::ignorable_test("requests_pass_haproxy_and_fairlane_while_the_doctor_runs", requests),
        Trial::ignorable_test("guests_exchange_data_by_mpi", exchange),
        Trial::ignorable_test("an_interrupt_ends_a_boot_and_leaves_nothing_behind", interrupt),
        Trial::ignorable_test("xen_boots_and_delays_are_measured", xen),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

fn lab(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_fairlane")).arg("lab").args(arguments).output()
}

fn list() -> Result<(), Failed> {
    let listed: serde_json::Value = serde_json::from_slice(&lab(&["list", "--json"])?.stdout)?;
    let names: Vec<&str> = listed.as_array().ok_or("a list")?.iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.contains(&"isolation-equal-rate") && names.contains(&"delay-ping"), "{names:?}");
    let text = String::from_utf8(lab(&["list"])?.stdout)?;
    assert!(names.iter().all(|name| text.contains(name)), "{text}");
    Ok(())
}

fn wrong() -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("e.toml");
    std::fs::write(&file, "name = \"e\"\nguests = 3\n")?;
    let file = file.display().to_string();
    let output = lab(&["run", &file, "--machine", "native"])?;
    let errors = String::from_utf8(output.stderr)?;
    assert!(errors.contains(&format!("{file}:2: no key is named `guests`")), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    let output = lab(&["run", "delay-pong"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr)?.contains("the experiments are isolation-equal-rate"));
    Ok(())
}

fn impossible() -> Result<(), Failed> {
    let output = lab(&["run", "isolation-disk", "--machine", "native"])?;
    let errors = String::from_utf8(output.stderr)?;
    assert!(errors.contains("isolation-disk does not run on machine native; it runs on xen"), "{errors}");
    assert_eq!(output.status.code(), Some(2));
    Ok(())
}

/// Runs a short experiment. The measured values are not asserted, since the machine may be busy.
fn trial(name: &str, machine: &str, backend: &str) -> Result<Completion, Failed> {
    let out = tempfile::tempdir()?;
    let scratch = tempfile::tempdir()?;
    let run = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args([
            "lab",
            "run",
            name,
            "--machine",
            machine,
            "--backend",
            backend,
            "--quick",
            "--repeats",
            "1",
            "--json",
            "--out",
        ])
        .arg(out.path())
        .env("TMPDIR", scratch.path())
        .output()?;
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    if run.stdout.is_empty() {
        return skip_or_fail(errors);
    }
    let result = ResultFile::from_json(&String::from_utf8(run.stdout)?, "standard output")?;
    check_result(&result, out.path())?;
    assert_nothing_left(scratch.path())?;
    Ok(Completion::Completed)
}

/// Asserts that a run with its temporary files in `scratch` has left neither files nor processes.
fn assert_nothing_left(scratch: &Path) -> Result<(), Failed> {
    assert_eq!(scratch.read_dir()?.count(), 0, "temporary files are left behind");
    let directory = scratch.display().to_string();
    // Killed processes may still be ending.
    let end = Instant::now() + Duration::from_secs(10);
    while let Some(line) = process_in(&directory)? {
        assert!(Instant::now() < end, "a process is left behind: {line:?}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn check_result(result: &ResultFile, out: &Path) -> Result<(), Failed> {
    // Compared as text, since values may be NaN.
    assert!(result.to_json() == ResultFile::read(out)?.to_json(), "the printed result differs from the written one");
    assert!(out.join("report.html").is_file());
    assert!(!result.claims.is_empty() && result.holds());
    result.warnings.iter().for_each(|warning| eprintln!("WARNING: {warning}"));
    for claim in &result.claims {
        eprintln!("{:?}: {} (expected {}, measured {})", claim.verdict, claim.text, claim.expected, claim.measured);
    }
    assert!(result.series.iter().all(|series| !series.values().is_empty()), "a series is empty");
    Ok(())
}

fn native() -> Result<Completion, Failed> {
    trial("isolation-two-rates", "native", "kernel")
}

fn lines() -> Result<Completion, Failed> {
    let home = tempfile::tempdir()?;
    let (file, out) = (home.path().join("short.toml"), home.path().join("out"));
    std::fs::write(&file, SHORT)?;
    let run = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args(["lab", "run", "--machine", "native", "--out"])
        .args([&out, &file])
        .output()?;
    let output = String::from_utf8(run.stderr)?;
    if !out.join("result.json").is_file() {
        return skip_or_fail(output);
    }
    for step in ["  0% booting\n", "  0% guest-1: booting\n", "  0% repeat 1\n", " 50% repeat 2\n"] {
        assert!(output.contains(step), "no {step:?} in {output}");
    }
    Ok(Completion::Completed)
}

/// A User-Mode Linux guest with a card of Fairlane: requests through its HAProxy, and to a server with a short backlog.
const REQUESTS: &str = r#"
name = "requests"
source = "this test"
figure = "Requests through a guest's HAProxy, and to a server in it whose queue is short."
machines = ["uml"]

[topology]
proxy = true
doctor = true
guests = [{ cpus = [0] }]

[procedure]
kind = "requests"
pattern = "http"
client = "external"
server = "external"
acceptors = "one"
connections = 4
sizes = [1024]
seconds = 0.5

[[case]]
name = "queue"
procedure = { server = 1, connections = 64, backlog = 1 }

[[case]]
name = "proxy"
procedure = { through = 1 }

# On a machine with other work, a cause of the processor may come first.
[[claim]]
text = "The doctor in the guest names the queue first"
metrics = ["queue/named/accept-queue"]
at_least = 1

[[claim]]
about = "fairlane"
text = "Requests pass the proxy"
metrics = ["proxy/rate/1024"]
at_least = 1
"#;

fn requests() -> Result<Completion, Failed> {
    own_trial(REQUESTS)
}

/// Runs an experiment from text, with User-Mode Linux guests and Fairlane.
fn own_trial(experiment: &str) -> Result<Completion, Failed> {
    let home = tempfile::tempdir()?;
    let file = home.path().join("experiment.toml");
    std::fs::write(&file, experiment)?;
    trial(&file.display().to_string(), "uml", "fairlane")
}

/// User-Mode Linux guests that exchange data by Open MPI, one of them with a second program on its processor.
const EXCHANGE: &str = r#"
name = "exchange"
source = "this test"
figure = "Guests exchange by MPI, all with all."
machines = ["uml"]

[topology]
mpi = true
guests = [{ cpus = [0] }, { cpus = [0] }]

[procedure]
kind = "all-to-all"
guests = [1, 2]
sizes = [64, 16_384]
iterations = 5
seconds = 10

[[case]]
name = "idle"

[[case]]
name = "busy"
background = { guests = [1], share = 0.1 }

[[claim]]
text = "Every size was exchanged in both cases"
metrics = ["worst_slowdown"]
at_least = 0
"#;

fn exchange() -> Result<Completion, Failed> {
    own_trial(EXCHANGE)
}

/// If it is interrupted as soon as the emulator runs, the lab does not wait for its guests.
fn interrupt() -> Result<Completion, Failed> {
    let (out, scratch) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut run = Command::new(env!("CARGO_BIN_EXE_fairlane"))
        .args(["lab", "run", "delay-packet", "--machine", "xen", "--json", "--out"])
        .arg(out.path())
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let console = out.path().join("logs/host.console");
    while !console.is_file() && run.try_wait()?.is_none() {
        thread::sleep(Duration::from_millis(10));
    }
    // If it has ended already, its errors say why.
    let _ = kill(Pid::from_raw(run.id() as i32), Signal::SIGINT);
    let ended = run.wait_with_output()?;
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.code() != Some(130) {
        return skip_or_fail(errors);
    }
    assert_eq!(errors, "interrupted\n");
    let printed = std::fs::read_to_string(&console)?;
    assert!(!printed.contains("guest-1: "), "a guest was booted after the interrupt: {printed}");
    assert!(!out.path().join("result.json").exists());
    assert_nothing_left(scratch.path())?;
    Ok(Completion::Completed)
}

fn xen() -> Result<Completion, Failed> {
    trial("delay-packet", "xen", "kernel")
}

/// The command line of a process that names a directory in its arguments.
fn process_in(directory: &str) -> std::io::Result<Option<String>> {
    let lines = Path::new("/proc").read_dir()?.flatten().map(|entry| entry.path().join("cmdline"));
    Ok(lines.filter_map(|path| std::fs::read_to_string(path).ok()).find(|line| line.contains(directory)))
}
