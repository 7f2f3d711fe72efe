//! The lists of permitted system calls contain exactly those that a backend makes, except calls marked as unseen.

use crate::confined::{with_policies, work};
use crate::observer::Observer;
use fairlane_engine::confinement::Kind;
use fairlane_engine::confinement::calls::rules;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The kinds of threads in this test, with their names. Xen's kind is missing, since it needs a driver domain.
const KINDS: [(Kind, &[&str]); 5] = [
    (Kind::Main, &["fairlane"]),
    (Kind::Control, &["fairlane-contro"]),
    (Kind::Worker, &["fairlane-worker", "fairlane-start"]),
    (Kind::Web, &["fairlane-web"]),
    (Kind::Log, &["fairlane-log"]),
];

fn name(rule: &Value) -> &str {
    rule["syscall"].as_str().unwrap()
}

/// The calls of rules that are not marked as unseen in tests.
fn expected(rules: &[Value]) -> BTreeSet<&str> {
    let unseen = |rule: &&Value| rule["comment"].as_str().is_some_and(|comment| comment.starts_with("unseen"));
    let unseen: BTreeSet<&str> = rules.iter().filter(unseen).map(name).collect();
    rules.iter().map(name).filter(|name| !unseen.contains(name)).collect()
}

#[test]
fn lists_contain_exactly_the_calls_that_threads_make() {
    let workspace = with_policies();
    let manager = UnixDatagram::bind(workspace.path("notify")).unwrap();
    let mut backend = workspace.up_with("", &[("NOTIFY_SOCKET", "DIR/notify"), ("WATCHDOG_USEC", "200000")]);
    // Every thread has started when the first keep-alive arrives.
    let mut message = [0; 64];
    while manager.recv(&mut message).unwrap() != "WATCHDOG=1\n".len() {}
    let observer = Observer::watch(&backend);
    let ended = AtomicBool::new(false);
    let (result, seen) = std::thread::scope(|scope| {
        // A manager that does not listen stops its service, once a few messages wait for it.
        manager.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let _ = manager.recv(&mut message);
            }
        });
        // A call that is on no list is refused, and the work may fail because of it. The call is reported below.
        let result = catch_unwind(AssertUnwindSafe(|| work(&workspace, &mut backend)));
        if result.is_err() {
            backend.signal(Signal::SIGKILL);
        }
        let seen = observer.seen();
        ended.store(true, Ordering::Relaxed);
        (result, seen)
    });

    let shared = rules(None);
    let mut wrong = Vec::new();
    for (kind, threads) in KINDS {
        let made: BTreeSet<&str> = threads.iter().flat_map(|thread| seen[*thread].iter().copied()).collect();
        let own = rules(Some(kind));
        let known: BTreeSet<&str> = shared.iter().chain(&own).map(name).collect();
        wrong.extend(made.difference(&known).map(|call| format!("{kind:?} makes {call}, which is not on its list")));
        wrong.extend(
            expected(&own)
                .difference(&made)
                .map(|call| format!("the list of {kind:?} has {call}, which it never makes")),
        );
    }
    let made: BTreeSet<&str> = seen.values().flatten().copied().collect();
    wrong.extend(
        expected(&shared).difference(&made).map(|call| format!("the shared list has {call}, which no thread makes")),
    );
    assert!(wrong.is_empty(), "{wrong:#?}\n{seen:#?}");
    result.unwrap_or_else(|panic| resume_unwind(panic));
    assert_eq!(backend.wait(), Some(0));
}
