//! Workers on real threads.

use crate::support::{Dripping, Ledger, Turns, frame, mac, weight};
use fairlane_core::packet::Offload;
use fairlane_core::switch::{AntiSpoofing, Config};
use fairlane_core::time::Nanos;
use fairlane_engine::Bridge;
use fairlane_engine::clock::{Manual, Monotonic};
use fairlane_engine::worker::{Gone, Work, Worker};
use fairlane_policy::{Change, Policy};
use fairlane_port::memory::{self, Peer};
use fairlane_port::{Limit, Port, wire};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A worker of one link with one guest.
fn worker(name: &str, number: u32, uplink: Box<dyn Port>, clock: Monotonic) -> (Worker, Peer) {
    let mut bridge = Bridge::new(name, Config::default(), Turns::of(32));
    let (port, peer) = memory::pair(100_000);
    bridge.set_uplink(uplink);
    let anti_spoofing = AntiSpoofing { mac: Some(mac(number)), addresses: Vec::new() };
    bridge.add("guest", Box::new(port), weight(1), anti_spoofing, Nanos(0)).unwrap();
    (Worker::start(vec![bridge], clock, None).unwrap(), peer)
}

/// A worker whose link has only one guest.
fn alone(name: &str) -> (Worker, Peer) {
    let options = wire::Options { rate: None, delay: Nanos(0), queue: 1 << 20, backpressure: true };
    worker(name, 1, Box::new(wire::pair(options).unwrap().1), Monotonic::new())
}

#[test]
fn a_frame_wakes_the_worker_at_the_far_end_of_a_wire() {
    let clock = Monotonic::new();
    let options = wire::Options { rate: None, delay: Nanos(1000), queue: 1 << 20, backpressure: true };
    let (left, right) = wire::pair(options).unwrap();
    let (near, sender) = worker("near", 1, Box::new(left), clock);
    let (far, receiver) = worker("far", 2, Box::new(right), clock);
    for number in 0..2000 {
        sender.send(&frame(mac(2), mac(1), number, 60), Offload::default());
        if number % 100 == 0 {
            // A memory port cannot wake the worker, but a command does.
            near.call(|_| ()).unwrap();
        }
    }
    near.call(|_| ()).unwrap();
    let mut arrived = Vec::new();
    while arrived.len() < 2000 {
        match receiver.receive() {
            Some((frame, _)) => arrived.push(u64::from_be_bytes(frame[14..22].try_into().unwrap())),
            None => std::thread::yield_now(),
        }
    }
    assert!(arrived.is_sorted());
    near.end();
    far.end();
    assert!(near.call(|_| ()).unwrap_err().to_string().contains("near"));
}

/// A Xen card whose frontend is there when the backend starts.
#[test]
fn a_guests_own_limit_holds_from_the_start() {
    let mut bridge = Bridge::new("lan", Config::default(), Turns::of(32));
    let limit = Limit { rate: 7_000_000, burst: 3_000 };
    let mut port = Dripping::default();
    port.limit = Some(limit);
    let guest = bridge.add("guest", Box::new(port), weight(1), AntiSpoofing::default(), Nanos(0)).unwrap();
    let mut work = Work::new(vec![bridge], Manual::default()).unwrap();
    work.register(0, guest).unwrap();
    let vif = work.bridges[0].snapshot(Nanos(0)).1.remove(0);
    assert_eq!((vif.max_rate, vif.burst), (Some(limit.rate), limit.burst));
}

/// The ends of a wire share a worker.
#[test]
fn a_change_of_a_links_scheduler_is_its_own() {
    let charged = Arc::default();
    let ledger = Ledger { turns: Turns::of(1), charged: Arc::clone(&charged) };
    let mut bridge = Bridge::new("near", Config::default(), Box::new(ledger));
    let policy = "control = \"/run/c\"\n[[link]]\nname = \"near\"\n[[link]]\nname = \"far\"\n";
    let policy = Policy::parse("policy.toml", policy).unwrap();
    for (link, kept) in [("far", true), ("near", false)] {
        let change = Change::IdleTimeout { link: link.to_owned(), idle_timeout: Nanos(1) };
        bridge.apply(&change, &policy, Nanos(0)).unwrap();
        assert_eq!(Arc::strong_count(&charged) == 2, kept, "after a change of {link}");
    }
}

#[test]
fn a_missing_core_is_an_error() {
    let bridge = Bridge::new("lan", Config::default(), Turns::of(32));
    let error = Worker::start(vec![bridge], Monotonic::new(), Some(1000)).err().unwrap().to_string();
    assert!(error.contains("cpu 1000"), "{error}");
}

/// Runs this test program again for one test, with `variable` set, and returns its exit status.
fn again(test: &str, variable: &str) -> Option<i32> {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", test]).env(variable, "1").stdout(Stdio::null()).stderr(Stdio::null());
    program.status().unwrap().code()
}

#[test]
fn a_worker_that_panics_ends_the_process() {
    const AGAIN: &str = "FAIRLANE_A_WORKER_PANICS";
    if std::env::var_os(AGAIN).is_none() {
        assert_eq!(again("worker::a_worker_that_panics_ends_the_process", AGAIN), Some(70));
        return;
    }
    let (worker, _peer) = alone("near");
    let outcome = worker.call(|_| panic!("on purpose"));
    // The process ends before this line, or during the sleep.
    std::thread::sleep(Duration::from_secs(60));
    unreachable!("the process lives, and the answer was {outcome:?}");
}

#[test]
fn a_blocked_worker_blocks_no_client() {
    let (worker, _peer) = alone("held");
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let silent = worker.call(move |_| held.recv()).unwrap_err();
    assert_eq!(silent, Gone::Silent("held".to_owned()));
    assert!(silent.to_string().contains("the worker of held has not answered for 10 s"), "{silent}");
    // It continues, and has carried out the command.
    let_go.send(()).unwrap();
    assert_eq!(worker.call(|_| 7), Ok(7));
    worker.end();
    assert_eq!(worker.call(|_| 7), Err(Gone::Ended("held".to_owned())));
}
