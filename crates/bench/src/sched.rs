//! Part sched: nanoseconds per scheduling decision with all ports backlogged, compared with a plain deficit round robin.

use crate::decision::{Backlogged, SCHEDULERS};
use crate::rounds::{Contestant, settle, spent_per};
use crate::{Run, at_most};
use anyhow::Result;
use fairlane_report::Figure;

/// Numbers of ports to measure.
const PORTS: [u32; 4] = [2, 100, 10_000, 100_000];

/// Decisions per sample.
const DECISIONS: u32 = 500_000;

const TITLE: &str = "Time of a scheduling decision";

/// Measures all numbers of ports and adds the results.
///
/// # Errors
/// The run was interrupted.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    for (case, ports) in PORTS.into_iter().enumerate() {
        let contestants = SCHEDULERS.iter().map(|(name, build)| {
            let mut backlogged = Backlogged::new(build(), ports);
            Contestant::new(name, move || spent_per(DECISIONS, || (0..DECISIONS).for_each(|_| backlogged.decide())))
        });
        let ratios = [("fair", "drr"), ("tenants", "drr")];
        let figures = settle(run, &format!("sched, {ports} ports"), &ratios, contestants.collect())?;
        figures.add_to(run, "sched", case, "ns", |name| match name {
            "fair" => format!("sched_ns_{ports}"),
            other => format!("sched_{other}_ns_{ports}"),
        });
        run.result.metric(&format!("sched_vs_drr_{ports}"), &figures.ratios("drr"), "");
        run.result.metric(&format!("sched_tenants_vs_drr_{ports}"), &figures.ratios_of("tenants", "drr"), "");
        run.result.metric(&format!("sched_tenants_vs_fair_{ports}"), &figures.ratios_of("tenants", "fair"), "");
    }
    run.result.figure(
        Figure::bars(TITLE)
            .caption("Selecting a port and charging it, in processor time. A decision serves up to 32 frames. With tenants, there are as many of them as each of them has vifs.")
            .y("per decision")
            .categories(PORTS.map(|ports| format!("{ports} vifs")))
            .series(SCHEDULERS.map(|(name, _)| format!("sched/{name}"))),
    );
    let text = "A decision among 10,000 vifs takes at most 4 times as long as one of a plain deficit round robin";
    run.claim("sched_vs_drr_10000", text, at_most(4.0), TITLE);
    let text = "A decision among 10,000 vifs of 100 tenants takes at most 16 times as long as one of a plain deficit round robin";
    run.claim("sched_tenants_vs_drr_10000", text, at_most(16.0), TITLE);
    Ok(())
}
