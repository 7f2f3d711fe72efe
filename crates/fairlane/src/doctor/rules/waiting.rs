//! A server that has work and waits for a processor.

use crate::doctor::finding::{Finding, Remedy, Sure};
use crate::doctor::snapshot::Snapshot;
use crate::doctor::view::{Change, Thread, percent};
use std::collections::BTreeSet;

/// Where the kernel says how long some task waited for a processor (accounting/psi.rst).
const PRESSURE: &str = "/proc/pressure/cpu";

/// A thread of a listening process that waited over a tenth of the time; where none is known, any task over half of it.
pub fn find(change: &Change) -> Vec<Finding> {
    let servers: BTreeSet<u32> = change.after.listeners().into_iter().flat_map(|listener| listener.processes).collect();
    let threads = change.threads();
    let served = threads.iter().filter(|thread| servers.contains(&thread.process));
    match served.max_by(|a, b| a.waiting.total_cmp(&b.waiting)) {
        Some(worst) if worst.waiting > 0.1 => vec![starved(&threads, worst)],
        Some(_) => Vec::new(),
        None => pressure(change).into_iter().collect(),
    }
}

fn pressure(change: &Change) -> Option<Finding> {
    // Microseconds, as `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    let total = |snapshot: &Snapshot| {
        let line = snapshot.text(PRESSURE).lines().find(|line| line.starts_with("some"))?;
        line.split_once("total=")?.1.trim().parse::<u64>().ok()
    };
    let part = change.rate(total(change.after)?.saturating_sub(total(change.before)?)) / 1e6;
    (part > 0.5).then(|| Finding {
        cause: "pressure",
        sure: Sure::Possible,
        limits: 0.3 * part,
        seen: format!("some task could run and waited for a processor {} of the time (pressure/cpu)", percent(part)),
        why: "if it is the server, its connections wait as well".to_owned(),
        change: vec![Remedy::by_hand(
            "run the doctor as root: it then knows which threads are the servers', and names them",
        )],
    })
}

fn starved(threads: &[Thread], worst: &Thread) -> Finding {
    let mut others: Vec<&Thread> = threads
        .iter()
        .filter(|thread| thread.cpu == worst.cpu && thread.process != worst.process && thread.running > 0.05)
        .collect();
    others.sort_by(|a, b| b.running.total_cmp(&a.running));
    let named = |thread: &&Thread| format!("{} ({}, {})", thread.name, thread.process, percent(thread.running));
    let others: Vec<_> = others.iter().take(3).map(named).collect();
    let others = if others.is_empty() { "its own other threads".to_owned() } else { others.join(", ") };
    Finding {
        cause: "starved",
        sure: Sure::Certain,
        limits: worst.waiting.min(1.0),
        seen: format!(
            "thread {} of server {} could run and waited {} of the time, {:.1} ms a turn, and ran {}; beside it on processor \
             {}: {others}",
            worst.name,
            worst.process,
            percent(worst.waiting),
            worst.wait * 1e3,
            percent(worst.running),
            worst.cpu
        ),
        why: "connections wait while the scheduler runs others; the waits come in steps of its slice".to_owned(),
        change: vec![
            Remedy::by_hand(format!(
                "give the server a processor of its own: taskset -pc CPU {}, or a cpuset",
                worst.process
            )),
            Remedy::by_hand("move or lower what runs beside it: renice -n 10 -p PROCESS"),
        ],
    }
}
