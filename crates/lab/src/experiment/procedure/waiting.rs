//! What delays say of the slices of a hypervisor's scheduler, for all procedures that measure delays.

use fairlane_report::{At, Figure, stats, steps};

use super::super::record::Record;
use super::Finished;
use crate::Topology;

/// The steps looked for, in parts of the slice.
const RANGE: [f64; 2] = [1.0 / 3.0, 5.0 / 3.0];

/// The metrics that [`conclude`] gives.
pub const METRICS: [&str; 4] = ["p99", "waited", "step", "step_strength"];

/// The slice of a topology's scheduler, in milliseconds. That of Xen's credit scheduler is 30; other schedulers are looked
/// at for the same.
pub fn slice(topology: &Topology) -> f64 {
    f64::from(topology.slice_ms.unwrap_or(30))
}

/// Computes from a series of delays in milliseconds how many waited for half a slice or more, how far those gather at
/// multiples of the slice, and at which step they gather best ([`steps`]). Without steps the strength is 0.
pub fn conclude(topology: &Topology, record: &mut Record, name: &str) {
    let delays = record.values(name);
    let slice = slice(topology);
    let found = steps::steps(&delays, slice);
    let strength = found.map_or(f64::NAN, |found| if found.present() { found.strength } else { 0.0 });
    let best = steps::best(&delays, RANGE[0] * slice, RANGE[1] * slice);
    record.set("p99", "ms", stats::quantile(&delays, 0.99).unwrap_or(f64::NAN));
    record.set("waited", "%", found.map_or(f64::NAN, |found| 100.0 * found.waited));
    record.set("step", "ms", best.map_or(f64::NAN, |(step, _)| step));
    record.set("step_strength", "", strength);
}

/// Marks the multiples of the slice that the delays reach.
pub fn marked(mut figure: Figure, cases: &[Finished], name: &str) -> Figure {
    let Some(slice) = cases.first().map(|case| slice(case.topology)) else { return figure };
    let values = cases.iter().flat_map(|case| case.record.values(name));
    let most = values.fold(0.0, f64::max);
    for at in (1..=6).map(|k| f64::from(k) * slice).take_while(|at| *at < most) {
        figure = figure.mark(At::X(at), &format!("{at} ms"));
    }
    figure
}
