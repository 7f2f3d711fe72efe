//! Nanoseconds per scheduling decision (`next` and `charge`), all ports backlogged, against a plain deficit round
//! robin.

mod decision;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use decision::{Backlogged, SCHEDULERS};

fn decisions(bench: &mut Criterion) {
    let mut group = bench.benchmark_group("decision");
    for ports in [2, 10, 100, 1_000, 10_000] {
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

criterion_group!(benches, decisions);
criterion_main!(benches);
