//! Part forward: the rate of 64-byte frames between two guests, in both directions at once.

use crate::Run;
use crate::machine::{Ahead, Missing};
use crate::ovs::OpenVSwitch;
use crate::pair::Pair;
use crate::rounds::{Contestant, settle};
use crate::served::{self, To};
use crate::testpmd::{self, Traffic};
use anyhow::Result;
use fairlane_report::Figure;

const TITLE: &str = "64-byte frames from guest to guest";

/// Measures all backends and adds the results.
///
/// # Errors
/// Missing programs, or contestants that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    testpmd::find()?;
    run.machine.two_cores()?;
    let (machine, real_time) = (&run.machine, run.machine.real_time);
    run.show("forward: starting all backends and their guests".to_owned());
    let pair = |name, pair: Pair| (name, pair);
    let mut pairs = vec![
        pair(
            "fairlane",
            Pair::start(machine, 2, Traffic::Exchange, |_, sockets| served::start(sockets, To::Guests, real_time))?,
        ),
        pair(
            "dpdk",
            Pair::start(machine, 2, Traffic::Exchange, |home, sockets| {
                testpmd::backend(home, sockets, "io", real_time)
            })?,
        ),
    ];
    match Pair::start(machine, 2, Traffic::Exchange, |home, sockets| OpenVSwitch::start(home, sockets, real_time)) {
        Ok(one) => pairs.push(pair("ovs", one)),
        Err(error) if error.is::<Missing>() => run.skip(&format!("forward with Open vSwitch: {error}")),
        Err(error) => return Err(error.context("Open vSwitch")),
    }
    let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
    let ratios: Vec<(&str, &str)> = names[1..].iter().map(|other| (names[0], *other)).collect();
    let contestants = pairs.iter_mut().map(|(name, pair)| Contestant::new(name, move || pair.slice())).collect();
    let _ahead = Ahead::start(&run.machine)?;
    let figures = settle(run, "forward", &ratios, contestants)?;
    figures.add_to(run, "forward", 0, "frames/s", |name| format!("forward_64b_{name}"));
    for other in &names[1..] {
        run.result.metric(&format!("forward_64b_vs_{other}"), &figures.ratios(other), "");
    }
    run.result.setting(
        "forward",
        "two guests of one testpmd process, each fed by a null port, in mac mode; received frames of both counted",
    );
    run.result.figure(
        Figure::bars(TITLE)
            .caption("Fairlane switches by MAC address and schedules; DPDK forwards all frames of one port to the other (io); Open vSwitch uses its NORMAL action. Same guests, same core.")
            .y("frames received")
            .categories(["two guests"])
            .series(names.iter().map(|name| format!("forward/{name}"))),
    );
    Ok(())
}
