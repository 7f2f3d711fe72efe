//! What delays say of the slices of a hypervisor's scheduler, for all procedures that measure delays.

use fairlane_report::{At, Axis, Figure, Series, stats, steps};

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

/// Computes from a series of delays in milliseconds, by their time of sending in seconds, how many waited for half a slice
/// or more; of the first that each absence of the guest held up ([`steps::first`]) how far they gather at multiples of the
/// slice, and at which step they gather best. Without steps the strength is 0. Their delays are a series of their own.
pub fn conclude(topology: &Topology, record: &mut Record, name: &str) {
    let slice = slice(topology);
    let delays = record.values(name);
    let first = steps::first(record.points(name).iter().map(|[sent, delay]| [sent * 1e3, *delay]));
    let found = steps::steps(&first, slice);
    let strength = found.map_or(f64::NAN, |found| if found.present() { found.strength } else { 0.0 });
    let best = steps::best(&first, RANGE[0] * slice, RANGE[1] * slice);
    record.set("p99", "ms", stats::quantile(&delays, 0.99).unwrap_or(f64::NAN));
    record.set("waited", "%", steps::steps(&delays, slice).map_or(f64::NAN, |found| 100.0 * found.waited));
    record.set("step", "ms", best.map_or(f64::NAN, |(step, _)| step));
    record.set("step_strength", "", strength);
    let points = first.into_iter().zip(0u32..).map(|(delay, nth)| [f64::from(nth), delay]);
    record.series(Series::new(&format!("first {name}"), "ms", Axis::new("absence", "")).points(points));
}

/// The distribution of all delays, and of those of the first to be held up, for all cases.
pub fn figures(title: &str, quantity: &str, cases: &[Finished], name: &str) -> Vec<Figure> {
    let cdf = |title: &str, series: &str| {
        let names = cases.iter().map(|case| format!("{}{series}", case.prefix));
        marked(Figure::cdf(title).series(names).x(quantity), cases, name)
    };
    let first = cdf(&format!("{title}: first to be held up"), &format!("first {name}"));
    let caption = "Of the packets that one absence of the guest from its CPU held up, the first alone: each was sent when the \
                   one before had come.";
    vec![cdf(title, name), first.caption(caption)]
}

/// Marks the multiples of the slice that the delays reach.
fn marked(mut figure: Figure, cases: &[Finished], name: &str) -> Figure {
    let Some(slice) = cases.first().map(|case| slice(case.topology)) else { return figure };
    let values = cases.iter().flat_map(|case| case.record.values(name));
    let most = values.fold(0.0, f64::max);
    for at in (1..=6).map(|k| f64::from(k) * slice).take_while(|at| *at < most) {
        figure = figure.mark(At::X(at), &format!("{at} ms"));
    }
    figure
}
