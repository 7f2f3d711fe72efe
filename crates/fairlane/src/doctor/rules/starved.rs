//! A server that is runnable but waits for a processor.

use crate::doctor::finding::{Confidence, Finding, Remedy};
use crate::doctor::snapshot::Snapshot;
use crate::doctor::view::{Change, Thread, percent};
use std::collections::BTreeSet;

/// How long some task waited for a processor (accounting/psi.rst).
const PRESSURE: &str = "/proc/pressure/cpu";

/// A thread of a listening process that waited over a tenth of the time; if no such thread is known, any task that waited over half.
pub(super) fn find(change: &Change) -> Vec<Finding> {
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
    // In microseconds: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
    let total = |snapshot: &Snapshot| {
        let line = snapshot.text(PRESSURE).lines().find(|line| line.starts_with("some"))?;
        line.split_once("total=")?.1.trim().parse::<u64>().ok()
    };
    let fraction = change.rate(total(change.after)?.saturating_sub(total(change.before)?)) / 1e6;
    (fraction > 0.5).then(|| Finding {
        cause: "pressure",
        confidence: Confidence::Possible,
        limits: 0.3 * fraction,
        seen: format!("some runnable task waited for a processor {} of the time (pressure/cpu)", percent(fraction)),
        why: "if that task is the server, its connections wait as well".to_owned(),
        change: vec![Remedy::by_hand(
            "run the doctor as root: then it can tell which threads belong to servers, and names them",
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
        confidence: Confidence::Certain,
        limits: worst.waiting.min(1.0),
        seen: format!(
            "thread {} of server {} was runnable but waited {} of the time, {:.1} ms per turn, and ran {}; beside it on processor \
             {}: {others}",
            worst.name,
            worst.process,
            percent(worst.waiting),
            worst.wait * 1e3,
            percent(worst.running),
            worst.cpu
        ),
        why: "connections wait while the scheduler runs other threads, one time slice or more".to_owned(),
        change: vec![
            Remedy::by_hand(format!(
                "give the server its own processor: taskset -pc CPU {}, or a cpuset",
                worst.process
            )),
            Remedy::by_hand("move the others, or lower their priority: renice -n 10 -p PROCESS"),
        ],
    }
}
