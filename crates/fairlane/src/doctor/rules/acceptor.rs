//! A single thread that accepts all connections of a port and fills a processor.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::view::{Change, Listener, Thread, percent};
use std::collections::BTreeMap;

/// Connections per second below which the work of accepting is too small to spread.
const MIN_RATE: f64 = 100.0;
/// Fraction of the time above which a thread counts as fully busy: in ServerFault question 272483, the limit was reached at 80% of
/// one core.
const BUSY: f64 = 0.75;

/// A port of whose threads one runs nearly all the time, and far more than the next.
pub(super) fn find(change: &Change) -> Vec<Finding> {
    let rate = change.rate(change.grown("Tcp", "PassiveOpens"));
    let cpus = change.cpus().len();
    if rate < MIN_RATE || cpus < 2 {
        return Vec::new();
    }
    let threads = change.threads();
    let mut ports: BTreeMap<String, Vec<Listener>> = BTreeMap::new();
    for listener in change.after.listeners() {
        ports.entry(listener.local.clone()).or_default().push(listener);
    }
    ports.iter().filter_map(|(port, listeners)| finding(port, listeners, &threads, rate, cpus)).collect()
}

/// The finding for one port, if any.
fn finding(port: &str, listeners: &[Listener], threads: &[Thread], rate: f64, cpus: usize) -> Option<Finding> {
    let holds = |process| listeners.iter().any(|listener| listener.processes.contains(&process));
    let mut running: Vec<&Thread> = threads.iter().filter(|thread| holds(thread.process)).collect();
    running.sort_by(|a, b| b.running.total_cmp(&a.running));
    let (busiest, next) = (running.first()?, running.get(1).map_or(0.0, |thread| thread.running));
    if busiest.running < BUSY || next * 3.0 > busiest.running {
        return None;
    }
    let change = vec![
        Remedy::by_hand(
            "one listener per core with SO_REUSEPORT, each with its own thread (nginx: listen ... reuseport, HAProxy: shards \
             by-thread, fairlane load server --acceptors each)",
        ),
        Remedy::by_hand("keep connections open (keep-alive), so that fewer are accepted"),
    ];
    let next = if running.len() > 1 { format!("the next {}", percent(next)) } else { "no other thread".to_owned() };
    let listeners = match listeners.len() {
        1 => "one listener".to_owned(),
        many => format!("{many} listeners"),
    };
    Some(Finding {
        cause: "acceptor",
        confidence: if busiest.running > 0.9 { Confidence::Likely } else { Confidence::Possible },
        // With one thread per core, the time of the other cores would be used as well.
        limits: busiest.running.min(1.0) * (1.0 - 1.0 / cpus as f64),
        seen: format!(
            "{port} has {listeners}; thread {} of server {} ran {} of the time, {next}, at {rate:.0} connections/s over all \
             ports, on a machine with {cpus} processors",
            busiest.name,
            busiest.process,
            percent(busiest.running)
        ),
        why: "one thread does the work for all connections, so the speed of one processor is the limit".to_owned(),
        change,
    })
}
