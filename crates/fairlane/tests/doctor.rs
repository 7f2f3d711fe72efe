//! The doctor on real causes, each in its own network namespace: the doctor must name the cause first.
//!
//! On a machine without a tool or the permission to create a namespace, the tests are ignored with a message; with
//! `FAIRLANE_GUESTS=required` in the environment they fail instead.
#![forbid(unsafe_code)]

#[path = "../../lab/tests/support/mod.rs"]
mod support;

use fairlane_lab::Error;
use libtest_mimic::{Arguments, Trial};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::panic::resume_unwind;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::Duration;
use std::{env, fs, thread};
use support::guest_test;

const FAIRLANE: &str = env!("CARGO_BIN_EXE_fairlane");
/// The tools that every test needs. With real-time priority, other work of this machine does not disturb a test.
const TOOLS: [&str; 7] = ["ip", "tc", "ss", "sysctl", "taskset", "chrt", "timeout"];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each test fills processors.
    arguments.test_threads = Some(1);
    let tests = vec![
        test("a_healthy_host_has_no_findings", healthy),
        test("a_full_accept_queue_is_found_fixed_and_undone", accept_queue),
        test("a_single_acceptor_on_a_busy_core_is_found", acceptor),
        test("exhausted_ports_are_found", ports),
        test("a_starved_server_is_found", starved),
        test("a_rate_cap_is_found", rate_cap),
        test("the_doctors_own_load_is_not_judged", own_load),
        test("invalid_arguments_are_refused", refused),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// A test in its own thread and network namespace, which its processes inherit.
fn test(name: &str, test: fn()) -> Trial {
    guest_test(name, move || {
        let run = move || {
            enter_namespace()?;
            test();
            Ok(())
        };
        thread::spawn(run).join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Enters a new network namespace.
///
/// # Errors
/// [`Error::Missing`] if this machine lacks a permission, a tool or a second processor.
fn enter_namespace() -> Result<(), Error> {
    let missing = |what: String| Err(Error::Missing(what));
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        return missing(format!("cannot create a network namespace, which needs root: {error}"));
    }
    let is_installed =
        |tool: &&str| Command::new(tool).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if let Some(tool) = TOOLS.iter().find(|tool| !is_installed(tool)) {
        return missing(format!("{tool} is not installed"));
    }
    let real_time = Command::new("chrt").args(["-f", "1", "true"]).status();
    if !real_time.is_ok_and(|status| status.success()) {
        return missing("real-time priority is not permitted (chrt -f 1)".to_owned());
    }
    if last_processor() == 0 {
        return missing("there is only one processor, but server and client need one each".to_owned());
    }
    run("ip link set lo up");
    Ok(())
}

/// Runs a command that must succeed.
fn run(line: &str) -> Output {
    let output = command(line).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    output
}

fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdin(Stdio::null());
    command
}

/// A process, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(line: &str) -> Running {
    Running(command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Starts a server, with `prefix` before its command line. Returns it with its address.
fn serve(prefix: &str, arguments: &str) -> (Running, String) {
    let line = format!("{prefix} {FAIRLANE} load server --listen 127.0.0.1:0 {arguments}");
    let mut child = command(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let server = Running(child);
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("serving at ").unwrap_or_else(|| panic!("{line}")).to_owned();
    // Later output must be read, or the server would block.
    thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
    (server, at)
}

/// The doctor's report and exit status. It has the highest priority of all processes here, so that its readings are on time.
fn doctor(arguments: &str) -> (Value, Option<i32>) {
    let output = command(&format!("chrt -f 3 {FAIRLANE} doctor --json {arguments}")).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

fn causes(report: &Value) -> Vec<&str> {
    report["findings"].as_array().unwrap().iter().map(|finding| finding["cause"].as_str().unwrap()).collect()
}

/// The first finding, which must be of this cause.
fn first<'a>(report: &'a Value, cause: &str) -> &'a Value {
    assert_eq!(causes(report).first(), Some(&cause), "{report:#}");
    &report["findings"][0]
}

/// The number of the last processor.
fn last_processor() -> usize {
    thread::available_parallelism().map_or(1, usize::from) - 1
}

/// Requests at a low rate. Findings about the whole machine, which may have other work, are ignored.
fn healthy() {
    let (_server, at) = serve("chrt -f 2", "");
    let (report, _) = doctor(&format!(
        "--seconds 1 -- chrt -f 2 {FAIRLANE} load client crr {at} --rate 300 --connections 4 --close reset --seconds 1.5"
    ));
    let found: Vec<_> = causes(&report)
        .into_iter()
        .filter(|cause| !["steal", "processors", "budget", "hot-core", "worker"].contains(cause))
        .collect();
    assert_eq!(found, [""; 0], "{report:#}");
    assert!(report["accepted_per_second"].as_f64().unwrap() > 50.0, "{report:#}");
}

/// A listener that does not accept, with its backlog cut to somaxconn.
fn accept_queue() {
    run("sysctl -w net.core.somaxconn=8");
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let connect = move || {
        thread::sleep(Duration::from_millis(300));
        let streams: Vec<_> =
            (0..40).map(|_| TcpStream::connect_timeout(&at, Duration::from_millis(20)).ok()).collect();
        thread::sleep(Duration::from_secs(1));
        drop(streams);
    };
    let state = env::temp_dir().join(format!("fairlane-doctor-{}.json", std::process::id()));
    let clients = thread::spawn(connect);
    let (report, status) = doctor(&format!("--seconds 1.5 --fix --yes --state {}", state.display()));
    clients.join().unwrap();
    let finding = first(&report, "accept-queue");
    assert_eq!((&finding["sure"], status), (&"certain".into(), Some(1)));
    assert!(finding["seen"].as_str().unwrap().contains(" of at most 8 connections waiting"), "{finding:#}");
    let somaxconn = || String::from_utf8(run("cat /proc/sys/net/core/somaxconn").stdout).unwrap();
    let cookies = || String::from_utf8(run("cat /proc/sys/net/ipv4/tcp_syncookies").stdout).unwrap();
    assert_eq!((somaxconn().trim(), cookies().trim()), ("4096", "1"));
    let undone = run(&format!("{FAIRLANE} doctor --undo --state {}", state.display()));
    assert_eq!(String::from_utf8_lossy(&undone.stdout), "net.core.somaxconn = 8 (was 4096)\n");
    assert_eq!(somaxconn().trim(), "8");
    assert!(fs::metadata(&state).is_err(), "the file of old values is left behind");
}

/// A server with one thread and one listener on its own processor, with more clients than it can serve.
fn acceptor() {
    let last = last_processor();
    let (_server, at) = serve(&format!("chrt -f 2 taskset -c {last}"), "--threads 1");
    let client =
        format!("chrt -f 1 taskset -c 0-{last} {FAIRLANE} load client crr {at} --connections 64 --close reset");
    let (report, status) = doctor(&format!("--seconds 2 -- {client} --threads {} --seconds 4", last.max(2)));
    let finding = first(&report, "acceptor");
    assert_eq!(status, Some(1));
    assert!(finding["seen"].as_str().unwrap().contains(&format!("{at} has one listener")), "{finding:#}");
}

/// A range of a hundred ports, each occupied for a minute.
fn ports() {
    run("sysctl -w net.ipv4.tcp_tw_reuse=0");
    let range = |ports: &str| {
        let setting = format!("net.ipv4.ip_local_port_range={ports}");
        assert!(command("sysctl -qw").arg(setting).status().unwrap().success());
    };
    // The server's port must be outside the hundred, since a listener occupies a port.
    range("43000 43999");
    let (_server, at) = serve("chrt -f 2", "--threads 1");
    range("42000 42099");
    let (report, status) = doctor(&format!("-- chrt -o 0 {FAIRLANE} load client crr {at} --connections 1 --seconds 3"));
    let finding = first(&report, "ports");
    assert_eq!((status, &finding["sure"]), (Some(1), &"certain".into()));
    assert!(finding["seen"].as_str().unwrap().starts_with(&format!("100 of 100 local ports to {at}")), "{finding:#}");
    assert!(report["command"].as_str().unwrap().contains("ended with exit status: 1"), "{report:#}");
}

/// Two busy processes on the server's processor with its priority: each runs for 100 ms in turn.
fn starved() {
    let last = last_processor();
    let (_server, at) = serve(&format!("chrt -r 1 taskset -c {last}"), "--threads 1");
    let _hogs = [(); 2].map(|()| start(&format!("chrt -r 1 taskset -c {last} yes")));
    let client = format!("taskset -c 0 {FAIRLANE} load client crr {at} --threads 1 --connections 16 --close reset");
    let (report, _) = doctor(&format!("--seconds 2 -- {client} --seconds 3"));
    let finding = first(&report, "starved");
    let seen = finding["seen"].as_str().unwrap();
    assert!(
        finding["sure"] == "certain" && seen.contains(&format!("beside it on processor {last}: yes (")),
        "{finding:#}"
    );
}

/// A token bucket filter on the device.
fn rate_cap() {
    run("ip link set lo mtu 1500");
    run("tc qdisc add dev lo root tbf rate 4mbit burst 16k latency 400ms");
    let (_server, at) = serve("chrt -f 2", "--threads 1");
    let (report, _) =
        doctor(&format!("--seconds 2 -- chrt -o 0 {FAIRLANE} load client maerts {at} --connections 2 --seconds 3"));
    let finding = first(&report, "rate-cap");
    assert!(
        finding["sure"] == "certain" && finding["seen"].as_str().unwrap().starts_with("tbf on lo held"),
        "{finding:#}"
    );
}

fn own_load() {
    // The load has the doctor's priority, so none is raised here.
    let output = command(&format!("{FAIRLANE} doctor --json --load --seconds 1")).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["accepted_per_second"].as_f64().unwrap() > 100.0, "{report:#}");
    let causes = causes(&report);
    assert!(
        !["accept-queue", "acceptor", "ports", "starved", "pressure", "processors"]
            .iter()
            .any(|own| causes.contains(own)),
        "{report:#}"
    );
}

fn refused() {
    for (arguments, message) in [
        ("doctor --seconds 0", "must be a number of seconds from 0.1 to 86400"),
        ("doctor --yes", "--fix"),
        ("doctor --undo --state /nowhere/at/all", "/nowhere/at/all holds nothing to undo"),
        ("doctor -- /no/such/program", "cannot run /no/such/program: No such file or directory"),
    ] {
        let output = command(&format!("{FAIRLANE} {arguments}")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(message), "{arguments}: {output:?}");
    }
}
