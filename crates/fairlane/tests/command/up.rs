//! `fairlane up`: what it refuses, how it reloads and how it ends.

use crate::workspace::{POLICY, Workspace, assert_done, assert_refused};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
fn an_invalid_policy_is_refused() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", &POLICY.replace("weight = 30", "weight = 0"));
    assert_refused(&workspace.run("up policy.toml"), 2, "policy.toml:12: weight must be 1 to 10000, not 0\n");
    assert_eq!(workspace.names(), ["policy.toml"]);
    assert_refused(
        &workspace.run("up gone.toml"),
        2,
        "cannot read policy gone.toml: No such file or directory (os error 2)\n",
    );
}

#[test]
fn a_socket_in_use_is_not_replaced() {
    let workspace = Workspace::with_policy();
    for (name, sentence) in [
        (
            "control.sock",
            "control socket DIR/control.sock is in use by a running process: stop it or name another path\n",
        ),
        ("web.sock", "vif `web`: socket DIR/web.sock is in use by another process; end it or name another\n"),
    ] {
        let owner = UnixListener::bind(workspace.path(name)).unwrap();
        assert_refused(&workspace.run("up policy.toml"), 1, sentence);
        let mut left = [name, "policy.toml"];
        left.sort();
        assert_eq!(workspace.names(), left);
        drop(owner);
        std::fs::remove_file(workspace.path(name)).unwrap();
    }
}

#[test]
fn an_address_in_use_is_reported() {
    let workspace = Workspace::new();
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = owner.local_addr().unwrap();
    workspace.write("policy.toml", &format!("metrics = \"{address}\"\n{POLICY}"));
    let sentence = format!("cannot serve metrics on {address}: Address already in use (os error 98)\n");
    assert_refused(&workspace.run("up policy.toml"), 1, &sentence);
    assert_eq!(workspace.names(), ["policy.toml"]);
}

#[test]
fn a_missing_directory_is_reported() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", &POLICY.replace("DIR/web.sock", "DIR/gone/web.sock"));
    let sentence =
        "vif `web`: socket DIR/gone/web.sock: there is no directory DIR/gone: make it, or name another path\n";
    assert_refused(&workspace.run("up policy.toml"), 1, sentence);
    workspace.write("policy.toml", &POLICY.replace("DIR/control.sock", "DIR/gone/control.sock"));
    let sentence = "cannot make control socket DIR/gone/control.sock: there is no directory DIR/gone: make it, or name another path\n";
    assert_refused(&workspace.run("up policy.toml"), 1, sentence);
    assert_eq!(workspace.names(), ["policy.toml"]);
}

#[test]
fn signals_end_the_backend_and_remove_its_sockets() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let workspace = Workspace::with_policy();
        let mut backend = workspace.up();
        assert_eq!(workspace.names(), ["control.sock", "policy.toml", "web.sock"]);
        backend.signal(signal);
        assert_eq!(backend.wait(), Some(0));
        assert_eq!(workspace.names(), ["policy.toml"]);
    }
}

#[test]
fn a_control_client_can_stop_the_backend() {
    let workspace = Workspace::with_policy();
    let mut backend = workspace.up();
    assert_done(&workspace.ctl("stop"), "");
    assert_eq!(backend.wait(), Some(0));
    assert_eq!(workspace.names(), ["policy.toml"]);
}

#[test]
fn a_hangup_reloads_the_policy() {
    let workspace = Workspace::with_policy();
    let mut backend = workspace.up();
    let weight = || {
        let shown: serde_json::Value = serde_json::from_str(&workspace.ctl("show --json").out).unwrap();
        shown["vifs"][0]["weight"].clone()
    };
    workspace.write("policy.toml", &POLICY.replace("weight = 30", "weight = 70"));
    backend.signal(Signal::SIGHUP);
    backend.read_log_until("policy.toml reloaded: 1 change");
    assert_eq!(weight(), 70);

    workspace.write("policy.toml", &POLICY.replace("weight = 30", "weight = -1"));
    backend.signal(Signal::SIGHUP);
    let log = backend.read_log_until("the running policy is kept");
    assert!(log.contains("policy.toml:12: weight must be 1 to 10000, not -1"), "{log}");

    workspace.write("policy.toml", &POLICY.replace("\"far\"", "\"fra\""));
    backend.signal(Signal::SIGHUP);
    let log = backend.read_log_until("the running policy is kept");
    assert!(log.contains("link `far` has a wire or takes Xen's cards: it cannot be removed while running"), "{log}");

    std::fs::remove_file(workspace.path("policy.toml")).unwrap();
    backend.signal(Signal::SIGHUP);
    let log = backend.read_log_until("the running policy is kept");
    assert!(log.contains("cannot read policy policy.toml"), "{log}");
    assert_eq!(weight(), 70);
}

#[test]
fn a_backend_serves_after_its_log_is_closed() {
    let workspace = Workspace::with_policy();
    let mut backend = workspace.up();
    backend.close_log();
    backend.signal(Signal::SIGHUP);
    assert_done(&workspace.ctl("set web weight=3"), "");
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0));
    assert_eq!(workspace.names(), ["policy.toml"]);
}

/// Connects and disconnects a frontend without messages, repeatedly.
fn reconnect(workspace: &Workspace, times: usize) {
    for _ in 0..times {
        let mut frontend = UnixStream::connect(workspace.path("web.sock")).unwrap();
        frontend.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        frontend.shutdown(Shutdown::Write).unwrap();
        // Unlike one read, this goes on after a signal, which ends one with a time limit.
        assert_eq!(frontend.read_to_end(&mut Vec::new()).unwrap(), 0, "the backend did not close the connection");
    }
}

#[test]
fn a_frontend_that_reconnects_repeatedly_does_not_fill_the_log() {
    const TIMES: usize = 3000;
    let workspace = Workspace::with_policy();
    let mut backend = workspace.up();
    reconnect(&workspace, TIMES);
    backend.signal(Signal::SIGTERM);
    let log = backend.rest_of_log();
    assert_eq!(backend.wait(), Some(0));
    let lines = log.lines().filter(|line| line.contains("frontend") && line.ends_with("vif=web")).count();
    let left_out = |line: &str| {
        let (_, rest) = line.split_once("vif=web: ")?;
        rest.strip_suffix(" more such lines were left out")?.rsplit_once(": ")?.1.parse::<usize>().ok()
    };
    let dropped: Vec<usize> = log.lines().filter_map(left_out).collect();
    let numbers = dropped.iter();
    // Each connection causes one line when it begins and one when it ends. There may be one more, about messages that are delayed
    // because they took the worker long.
    let all = lines + numbers.sum::<usize>();
    assert!((2 * TIMES..=2 * TIMES + 1).contains(&all), "{all}: {log}");
    assert!(lines + dropped.len() < 100, "{lines} lines, and {} about dropped ones", dropped.len());
    assert!(log.contains(": stopped"), "{log}");
}

#[test]
fn a_log_of_json_has_a_member_for_each_field() {
    let workspace = Workspace::with_policy();
    let mut backend = workspace.up_with("--log-format json", &[]);
    reconnect(&workspace, 100);
    backend.signal(Signal::SIGTERM);
    let log = backend.startup_log.clone() + &backend.rest_of_log();
    assert_eq!(backend.wait(), Some(0));
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    let connected = lines.iter().find(|line| line["message"] == "frontend connected").expect("a line");
    assert_eq!((&connected["vif"], &connected["level"]), (&"web".into(), &"INFO".into()));
    assert!(connected["timestamp"].is_string() && connected["target"].is_string(), "{connected}");
    let reasons = ["vif=web: frontend connected: ", "vif=web: frontend "].map(|reason| {
        let is_it = |line: &&serde_json::Value| line["message"].as_str().is_some_and(|text| text.starts_with(reason));
        lines.iter().filter(is_it).count()
    });
    assert!(reasons[0] >= 1 && reasons[1] > reasons[0], "each reason has its own count of lines left out: {log}");
}

#[test]
fn a_full_log_blocks_nothing() {
    let workspace = Workspace::with_policy();
    let (mut backend, log) = workspace.up_with_full_log();
    reconnect(&workspace, 1000);
    assert_done(&workspace.ctl("set web weight=3"), "");
    workspace.write("policy.toml", "nonsense");
    for _ in 0..20 {
        backend.signal(Signal::SIGHUP);
        assert_eq!(workspace.ctl("show").code, Some(0));
    }
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0), "the end of the process waits for the log's reader");
    assert_eq!(workspace.names(), ["policy.toml"]);
    drop(log);
}

#[test]
fn a_log_filter_is_checked() {
    let workspace = Workspace::with_policy();
    let outcome = workspace.run("up --log fairlane=loud policy.toml");
    assert_eq!((outcome.code, outcome.out.as_str()), (Some(2), ""));
    assert!(outcome.err.contains("--log"), "{}", outcome.err);
}

#[test]
fn without_file_descriptors_the_backend_does_not_spin() {
    let workspace = Workspace::new();
    workspace.write("policy.toml", &format!("metrics = \"127.0.0.1:0\"\n{POLICY}"));
    let needed = {
        let backend = workspace.up();
        backend.descriptors()
    };
    let mut backend = workspace.up_with_descriptors(needed as u32 + 2);
    let address = backend.metrics.clone().unwrap();
    let clients: Vec<UnixStream> =
        (0..8).map(|_| UnixStream::connect(workspace.path("control.sock")).unwrap()).collect();
    let scrapers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    backend.read_log_until("a control client could not be served");
    let before = backend.ticks();
    std::thread::sleep(Duration::from_millis(500));
    let used = backend.ticks() - before;
    assert!(used < 20, "{used} hundredths of a second in half a second of waiting");
    drop((clients, scrapers));
    assert_eq!(workspace.ctl("show").code, Some(0));
    let mut scraper = TcpStream::connect(&address).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.wait(), Some(0));
}
