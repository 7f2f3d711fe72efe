//! Nanoseconds per scheduling decision (`next` and `charge`), all ports backlogged, against a plain deficit round
//! robin.
//!
//! `sched count SCHEDULER PORTS DECISIONS` only makes decisions: under callgrind, the difference between two numbers of
//! decisions is their instructions, the same in each run.

mod decision;

use criterion::{BenchmarkId, Criterion, criterion_group};
use decision::{Backlogged, SCHEDULERS};

fn decisions(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("decision");
    for ports in [2, 10, 100, 1_000, 10_000, 100_000] {
        for (name, build) in SCHEDULERS {
            let mut backlogged = None;
            group.bench_function(BenchmarkId::new(name, ports), |bench| {
                let backlogged = backlogged.get_or_insert_with(|| Backlogged::new(build(), ports));
                bench.iter(|| backlogged.decide());
            });
        }
    }
    group.finish();
}

/// Makes decisions with one of the schedulers.
fn count(name: &str, ports: &str, decisions: &str) {
    let number = |text: &str| text.parse().unwrap_or_else(|error| panic!("{text} is not a number: {error}"));
    let (_, build) = SCHEDULERS.iter().find(|(known, _)| *known == name).expect("a known scheduler");
    let mut backlogged = Backlogged::new(build(), number(ports));
    (0..number(decisions)).for_each(|_| backlogged.decide());
}

criterion_group!(benches, decisions);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "count", name, ports, decisions, ..] => count(name, ports, decisions),
        _ => {
            benches();
            Criterion::default().configure_from_args().final_summary();
        }
    }
}
