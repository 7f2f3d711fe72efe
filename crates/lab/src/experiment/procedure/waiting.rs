//! The effect of the hypervisor's time slices on delays, for all procedures that measure delays.

use fairlane_report::{At, Axis, Figure, Series, stats, steps};

use super::super::record::Record;
use super::Finished;
use crate::Topology;

/// The range of steps searched, as fractions of the slice.
const RANGE: [f64; 2] = [1.0 / 3.0, 5.0 / 3.0];

/// The names of the metrics of [`conclude`].
pub(super) const METRICS: [&str; 4] = ["p99", "waited", "step", "step_strength"];

/// The slice of a topology's scheduler, in milliseconds. Xen's credit scheduler has 30; other schedulers are compared with
/// the same value.
pub(in super::super) fn slice(topology: &Topology) -> f64 {
    f64::from(topology.slice_ms.unwrap_or(30))
}

/// Computes metrics from a series of delays in milliseconds over the time of sending in seconds: `waited`, how many waited for
/// half a slice or more; and, of the first packet that each absence of the guest from its CPU delayed ([`steps::first`]), how
/// strongly the delays cluster at multiples of the slice (`step_strength`, 0 if they do not) and the `step` at which they cluster
/// best. The first packets' delays are added as a series of their own.
pub(super) fn conclude(topology: &Topology, record: &mut Record, name: &str) {
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

/// The distributions of all delays and of the first packets' delays, for all cases.
pub(super) fn figures(title: &str, quantity: &str, cases: &[Finished], name: &str) -> Vec<Figure> {
    let cdf = |title: &str, series: &str| {
        let names = cases.iter().map(|case| format!("{}{series}", case.prefix));
        marked(Figure::cdf(title).series(names).x(quantity), cases, name)
    };
    let first = cdf(&format!("{title}: first to be held up"), &format!("first {name}"));
    let caption = "Only the first packet of those that one absence of the guest from its CPU delayed: each was sent after the \
                   one before had arrived.";
    vec![cdf(title, name), first.caption(caption)]
}

/// Marks the multiples of the slice up to the longest delay.
fn marked(mut figure: Figure, cases: &[Finished], name: &str) -> Figure {
    let Some(slice) = cases.first().map(|case| slice(case.topology)) else { return figure };
    let values = cases.iter().flat_map(|case| case.record.values(name));
    let most = values.fold(0.0, f64::max);
    for at in (1..=6).map(|k| f64::from(k) * slice).take_while(|at| *at < most) {
        figure = figure.mark(At::X(at), &format!("{at} ms"));
    }
    figure
}
