//! One thread that accepts for a whole port while it fills a processor.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::view::{Change, Listener, Thread, percent};
use std::collections::BTreeMap;

/// Connections a second below which accepting is no work worth spreading.
const FEW: f64 = 100.0;
/// A part of the time a thread runs from which it has hardly any left between connections: the 80% of one core of ServerFault
/// question 272483 was its limit.
const BUSY: f64 = 0.75;

/// A port whose one listener belongs to a thread that runs all the time, or whose processes run unevenly.
pub fn find(change: &Change) -> Vec<Finding> {
    let rate = change.rate(change.grown("Tcp", "PassiveOpens"));
    let cpus = change.cpus(false).len();
    if rate < FEW || cpus < 2 {
        return Vec::new();
    }
    let threads = change.threads();
    let mut ports: BTreeMap<String, Vec<Listener>> = BTreeMap::new();
    for listener in change.after.listeners() {
        ports.entry(listener.local.clone()).or_default().push(listener);
    }
    ports.iter().filter_map(|(port, listeners)| one(port, listeners, &threads, rate, cpus)).collect()
}

/// What is to be said of one port.
fn one(port: &str, listeners: &[Listener], threads: &[Thread], rate: f64, cpus: usize) -> Option<Finding> {
    let holds = |process| listeners.iter().any(|listener| listener.processes.contains(&process));
    let mut running: Vec<&Thread> = threads.iter().filter(|thread| holds(thread.process)).collect();
    running.sort_by(|a, b| b.running.total_cmp(&a.running));
    let (busiest, next) = (running.first()?, running.get(1).map_or(0.0, |thread| thread.running));
    if busiest.running < BUSY || next * 3.0 > busiest.running {
        return None;
    }
    let change = vec![
        Remedy::by_hand(
            "a listener a core with SO_REUSEPORT, each with a thread of its own (nginx: listen ... reuseport, HAProxy: shards \
             by-thread, fairlane load server --acceptors each)",
        ),
        Remedy::by_hand("keep connections open (keep-alive), so that fewer must be accepted"),
    ];
    let next = if running.len() > 1 { format!("the next {}", percent(next)) } else { "it has no other".to_owned() };
    let listeners = match listeners.len() {
        1 => "one listener".to_owned(),
        many => format!("{many} listeners"),
    };
    Some(Finding {
        cause: "acceptor",
        sure: if busiest.running > 0.9 { Sure::Likely } else { Sure::Possible },
        // With a thread a core, it would have the others' time as well.
        limits: busiest.running.min(1.0) * (1.0 - 1.0 / cpus as f64),
        seen: format!(
            "{port} has {listeners}; thread {} of server {} ran {} of the time, {next}, at {rate:.0} connections/s over all \
             ports, on a machine of {cpus} processors",
            busiest.name,
            busiest.process,
            percent(busiest.running)
        ),
        why: "one thread does the work of every connection, so one processor's speed is the limit, however many there are"
            .to_owned(),
        change,
    })
}
