//! `fairlane up`: what it refuses, and how it ends.

use crate::place::{POLICY, Place, assert_done, assert_refused};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
fn a_wrong_policy_starts_nothing() {
    let place = Place::new();
    place.write("policy.toml", &POLICY.replace("weight = 30", "weight = 0"));
    assert_refused(&place.run("up policy.toml"), 2, "policy.toml:12: weight must be 1 to 10000, not 0\n");
    assert_eq!(place.names(), ["policy.toml"]);
    assert_refused(
        &place.run("up gone.toml"),
        2,
        "cannot read policy gone.toml: No such file or directory (os error 2)\n",
    );
}

#[test]
fn a_socket_in_use_is_left_to_its_owner() {
    let place = Place::with_policy();
    for (name, sentence) in [
        (
            "control.sock",
            "control socket DIR/control.sock is in use by a running process: stop it or name another path\n",
        ),
        ("web.sock", "vif `web`: socket DIR/web.sock is in use by another process; end it or name another\n"),
    ] {
        let owner = UnixListener::bind(place.path(name)).unwrap();
        assert_refused(&place.run("up policy.toml"), 1, sentence);
        let mut left = [name, "policy.toml"];
        left.sort();
        assert_eq!(place.names(), left);
        drop(owner);
        std::fs::remove_file(place.path(name)).unwrap();
    }
}

#[test]
fn a_directory_that_is_missing_is_told() {
    let place = Place::new();
    place.write("policy.toml", &POLICY.replace("DIR/web.sock", "DIR/gone/web.sock"));
    let sentence =
        "vif `web`: socket DIR/gone/web.sock: there is no directory DIR/gone: make it, or name another path\n";
    assert_refused(&place.run("up policy.toml"), 1, sentence);
    place.write("policy.toml", &POLICY.replace("DIR/control.sock", "DIR/gone/control.sock"));
    let sentence = "cannot make control socket DIR/gone/control.sock: there is no directory DIR/gone: make it, or name another path\n";
    assert_refused(&place.run("up policy.toml"), 1, sentence);
    assert_eq!(place.names(), ["policy.toml"]);
}

#[test]
fn signals_end_it_and_its_sockets() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let place = Place::with_policy();
        let mut backend = place.up();
        assert_eq!(place.names(), ["control.sock", "policy.toml", "web.sock"]);
        backend.signal(signal);
        assert_eq!(backend.ends(), Some(0));
        assert_eq!(place.names(), ["policy.toml"]);
    }
}

#[test]
fn a_client_ends_it_too() {
    let place = Place::with_policy();
    let mut backend = place.up();
    assert_done(&place.ctl("stop"), "");
    assert_eq!(backend.ends(), Some(0));
    assert_eq!(place.names(), ["policy.toml"]);
}

#[test]
fn a_hangup_reads_the_policy_again() {
    let place = Place::with_policy();
    let mut backend = place.up();
    let weight = || {
        let shown: serde_json::Value = serde_json::from_str(&place.ctl("show --json").out).unwrap();
        shown["vifs"][0]["weight"].clone()
    };
    place.write("policy.toml", &POLICY.replace("weight = 30", "weight = 70"));
    backend.signal(Signal::SIGHUP);
    backend.logs("policy.toml reloaded: 1 change");
    assert_eq!(weight(), 70);

    place.write("policy.toml", &POLICY.replace("weight = 30", "weight = -1"));
    backend.signal(Signal::SIGHUP);
    let said = backend.logs("the running policy stays");
    assert!(said.contains("policy.toml:12: weight must be 1 to 10000, not -1"), "{said}");

    place.write("policy.toml", &POLICY.replace("\"far\"", "\"fra\""));
    backend.signal(Signal::SIGHUP);
    let said = backend.logs("the running policy stays");
    assert!(said.contains("link `far` cannot be removed while running"), "{said}");

    std::fs::remove_file(place.path("policy.toml")).unwrap();
    backend.signal(Signal::SIGHUP);
    let said = backend.logs("the running policy stays");
    assert!(said.contains("cannot read policy policy.toml"), "{said}");
    assert_eq!(weight(), 70);
}

#[test]
fn a_backend_survives_its_log() {
    let place = Place::with_policy();
    let mut backend = place.up();
    backend.close_log();
    backend.signal(Signal::SIGHUP);
    assert_done(&place.ctl("set web weight=3"), "");
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.ends(), Some(0));
    assert_eq!(place.names(), ["policy.toml"]);
}

/// A frontend that comes, says nothing and leaves, so many times.
fn reconnect(place: &Place, times: usize) {
    for _ in 0..times {
        let mut frontend = UnixStream::connect(place.path("web.sock")).unwrap();
        frontend.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        frontend.shutdown(Shutdown::Write).unwrap();
        assert_eq!(frontend.read(&mut [0]).unwrap(), 0, "it is met, and let go");
    }
}

#[test]
fn a_frontend_that_reconnects_without_end_fills_no_log() {
    const TIMES: usize = 3000;
    let place = Place::with_policy();
    let mut backend = place.up();
    reconnect(&place, TIMES);
    backend.signal(Signal::SIGTERM);
    let log = backend.rest_of_log();
    assert_eq!(backend.ends(), Some(0));
    let lines = log.lines().filter(|line| line.contains("frontend") && line.ends_with("vif=web")).count();
    let dropped: Vec<&str> =
        log.lines().filter_map(|line| line.split_once("vif=web logged too much: ")).map(|(_, rest)| rest).collect();
    let numbers = dropped.iter().map(|rest| rest.split_once(' ').unwrap().0.parse::<usize>().unwrap());
    // Each connection causes one line when it begins and one when it ends. There may be one more, about messages that are delayed
    // because they took the worker long.
    let all = lines + numbers.sum::<usize>();
    assert!((2 * TIMES..=2 * TIMES + 1).contains(&all), "{all}: {log}");
    assert!(lines + dropped.len() < 100, "{lines} lines, and {} about dropped ones", dropped.len());
    assert!(log.contains(": stopped"), "{log}");
}

#[test]
fn a_log_that_nobody_reads_holds_nobody() {
    let place = Place::with_policy();
    let (mut backend, log) = place.up_with_full_log();
    reconnect(&place, 1000);
    assert_done(&place.ctl("set web weight=3"), "");
    place.write("policy.toml", "nonsense");
    for _ in 0..20 {
        backend.signal(Signal::SIGHUP);
        assert_eq!(place.ctl("show").code, Some(0));
    }
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.ends(), Some(0), "not even its end waits for a reader");
    assert_eq!(place.names(), ["policy.toml"]);
    drop(log);
}

#[test]
fn a_log_filter_is_checked() {
    let place = Place::with_policy();
    let ran = place.run("up --log fairlane=loud policy.toml");
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("--log"), "{}", ran.err);
}

#[test]
fn without_descriptors_nobody_is_met_and_nothing_spins() {
    let place = Place::new();
    place.write("policy.toml", &format!("metrics = \"127.0.0.1:0\"\n{POLICY}"));
    let needed = {
        let backend = place.up();
        backend.descriptors()
    };
    let mut backend = place.up_with_descriptors(needed as u32 + 2);
    let address = backend.metrics.clone().unwrap();
    let clients: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(place.path("control.sock")).unwrap()).collect();
    let scrapers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    backend.logs("a control client could not be served");
    let before = backend.ticks();
    std::thread::sleep(Duration::from_millis(500));
    let taken = backend.ticks() - before;
    assert!(taken < 20, "{taken} hundredths of a second in half a second of waiting");
    drop((clients, scrapers));
    assert_eq!(place.ctl("show").code, Some(0));
    let mut scraper = TcpStream::connect(&address).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    backend.signal(Signal::SIGTERM);
    assert_eq!(backend.ends(), Some(0));
}
