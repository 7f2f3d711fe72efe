//! Part rx: the rate at which a backend takes 64-byte frames from guests' rings, with one core each for backend and guests.

use crate::machine::Ahead;
use crate::pair::Pair;
use crate::rounds::{Contestant, settle};
use crate::served::{self, To};
use crate::testpmd::{self, Traffic};
use crate::{Run, at_least};
use anyhow::Result;
use fairlane_report::Figure;

/// Numbers of guests to measure.
const PORTS: [usize; 3] = [1, 2, 4];

const TITLE: &str = "64-byte frames from guests into the backend";

/// Measures all numbers of guests and adds the results.
///
/// # Errors
/// Missing programs, or contestants that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    testpmd::find()?;
    run.machine.two_cores()?;
    for (case, ports) in PORTS.into_iter().enumerate() {
        let what = format!("rx, {ports} {}", if ports == 1 { "guest" } else { "guests" });
        run.show(format!("{what}: starting both backends and their guests"));
        let (machine, real_time) = (&run.machine, run.machine.real_time);
        let mut ours =
            Pair::start(machine, ports, Traffic::Send, |_, sockets| served::start(sockets, To::Sink, real_time))?;
        let mut theirs = Pair::start(machine, ports, Traffic::Send, |home, sockets| {
            testpmd::backend(home, sockets, "rxonly", real_time)
        })?;
        let contestants =
            vec![Contestant::new("fairlane", || ours.slice()), Contestant::new("dpdk", || theirs.slice())];
        let _ahead = Ahead::start(&run.machine)?;
        let figures = settle(run, &what, &[("fairlane", "dpdk")], contestants)?;
        figures.add_to(run, "rx", case, "frames/s", |name| format!("rx_64b_{name}_{ports}"));
        let ratio = if ports == 1 { "rx_64b_vs_dpdk".to_owned() } else { format!("rx_64b_vs_dpdk_{ports}") };
        run.result.metric(&ratio, &figures.ratios("dpdk"), "");
    }
    run.result.figure(
        Figure::bars(TITLE)
            .caption("Fairlane with switch (an unknown address, its slowest case), anti-spoofing and the fair scheduler, and a copy of each frame; DPDK's vhost backend only dequeues and frees frames. Same guests, same core.")
            .y("frames taken")
            .categories(PORTS.map(|ports| if ports == 1 { "1 guest".to_owned() } else { format!("{ports} guests") }))
            .series(["rx/fairlane", "rx/dpdk"]),
    );
    let text = "Fairlane takes frames at least 0.8 times as fast as DPDK's vhost backend on the same core";
    run.claim("rx_64b_vs_dpdk", text, at_least(0.8), TITLE);
    Ok(())
}
