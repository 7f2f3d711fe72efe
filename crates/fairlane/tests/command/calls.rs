//! The lists of system calls are what a backend makes: neither less, nor, without a reason that is given, more.

use crate::confined::{place, work};
use crate::observer::Observer;
use fairlane_engine::confinement::Kind;
use fairlane_engine::confinement::calls::rules;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Kinds that this test brings to life, and the names of their threads. Xen's is not: it takes a driver domain.
const KINDS: [(Kind, &str); 5] = [
    (Kind::Main, "fairlane"),
    (Kind::Control, "fairlane-contro"),
    (Kind::Worker, "fairlane-worker"),
    (Kind::Metrics, "fairlane-metric"),
    (Kind::Log, "fairlane-log"),
];

fn name(rule: &Value) -> &str {
    rule["syscall"].as_str().unwrap()
}

/// Names that rules have without saying that no test makes them.
fn claimed(rules: &[Value]) -> BTreeSet<&str> {
    let unseen = |rule: &&Value| rule["comment"].as_str().is_some_and(|comment| comment.starts_with("unseen"));
    let unseen: BTreeSet<&str> = rules.iter().filter(unseen).map(name).collect();
    rules.iter().map(name).filter(|name| !unseen.contains(name)).collect()
}

#[test]
fn lists_are_what_threads_make() {
    let place = place();
    let manager = UnixDatagram::bind(place.path("notify")).unwrap();
    let mut backend = place.up_with("", &[("NOTIFY_SOCKET", "DIR/notify"), ("WATCHDOG_USEC", "200000")]);
    // Once it was told that all is well, every thread has begun.
    let mut told = [0; 64];
    while manager.recv(&mut told).unwrap() != "WATCHDOG=1\n".len() {}
    let observer = Observer::watch(&backend);
    // A call that no list has is refused, and the work may fail by it; which one it was is told below.
    let worked = catch_unwind(AssertUnwindSafe(|| work(&place, &mut backend)));
    if worked.is_err() {
        backend.signal(Signal::SIGKILL);
    }
    let seen = observer.seen();
    drop(manager);

    let shared = rules(None);
    let mut wrong = Vec::new();
    for (kind, thread) in KINDS {
        let (own, made) = (rules(Some(kind)), seen[thread].iter().copied().collect::<BTreeSet<_>>());
        let known: BTreeSet<&str> = shared.iter().chain(&own).map(name).collect();
        wrong.extend(made.difference(&known).map(|call| format!("{kind:?} makes {call}, which its list has not")));
        wrong.extend(claimed(&own).difference(&made).map(|call| format!("{kind:?} has {call}, which it never makes")));
    }
    let made: BTreeSet<&str> = seen.values().flatten().copied().collect();
    wrong.extend(claimed(&shared).difference(&made).map(|call| format!("all have {call}, which none makes")));
    assert!(wrong.is_empty(), "{wrong:#?}\n{seen:#?}");
    worked.unwrap_or_else(|panic| resume_unwind(panic));
    assert_eq!(backend.ends(), Some(0));
}
