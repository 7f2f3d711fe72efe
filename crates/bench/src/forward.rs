//! Part forward: the rate of 64-byte frames between two guests, in both directions at once.

use crate::Run;
use crate::backend::{Backend, Uplink};
use crate::machine::Missing;
use crate::ovs::OpenVSwitch;
use crate::rounds::{Contestant, compete};
use crate::testpmd::{self, Traffic};
use anyhow::Result;
use fairlane_report::Figure;
use std::path::Path;

const TITLE: &str = "64-byte frames from guest to guest";

/// Measures all backends and adds the results.
///
/// # Errors
/// Missing programs, or contestants that do not run.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    testpmd::find()?;
    run.machine.two_cores()?;
    let (seconds, real_time) = (run.seconds, run.machine.real_time);
    let mut contestants = vec![
        Contestant::new("fairlane", move || ours(seconds, real_time)),
        Contestant::new("dpdk", move || theirs(seconds, real_time)),
    ];
    let mut series = vec!["forward/fairlane", "forward/dpdk"];
    run.show("forward: trying Open vSwitch".to_owned());
    let ovs = try_ovs(real_time);
    match &ovs {
        Ok(()) => {
            contestants.push(Contestant::new("ovs", move || open_vswitch(seconds, real_time)));
            series.push("forward/ovs");
        }
        Err(error) if error.is::<Missing>() => run.skip(&format!("forward with Open vSwitch: {error}")),
        Err(_) => return ovs,
    }
    let others: Vec<String> = contestants[1..].iter().map(|one| one.name.to_owned()).collect();
    let figures = compete(run, "forward", run.rounds, contestants)?;
    figures.add_to(run, "forward", 0, "frames/s", |name| format!("forward_64b_{name}"));
    for other in others {
        run.result.metric(&format!("forward_64b_vs_{other}"), &figures.ratios(&other), "");
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
            .series(series),
    );
    Ok(())
}

fn ours(seconds: u32, real_time: bool) -> Result<f64> {
    let home = tempfile::tempdir()?;
    let sockets = testpmd::sockets(home.path(), 2);
    let guests: Vec<_> =
        sockets.iter().cloned().enumerate().map(|(guest, socket)| (socket, testpmd::mac(guest))).collect();
    let backend = Backend::start(&guests, Uplink::None, Some(testpmd::BACKEND))?;
    if real_time {
        backend.make_real_time()?;
    }
    exchange(home.path(), seconds, real_time)
}

fn theirs(seconds: u32, real_time: bool) -> Result<f64> {
    let home = tempfile::tempdir()?;
    let _backend = testpmd::backend(home.path(), &testpmd::sockets(home.path(), 2), "io", real_time)?;
    exchange(home.path(), seconds, real_time)
}

fn open_vswitch(seconds: u32, real_time: bool) -> Result<f64> {
    let home = tempfile::tempdir()?;
    let _backend = OpenVSwitch::start(home.path(), &testpmd::sockets(home.path(), 2), real_time)?;
    exchange(home.path(), seconds, real_time)
}

fn try_ovs(real_time: bool) -> Result<()> {
    let home = tempfile::tempdir()?;
    OpenVSwitch::start(home.path(), &testpmd::sockets(home.path(), 2), real_time).map(drop)
}

fn exchange(home: &Path, seconds: u32, real_time: bool) -> Result<f64> {
    testpmd::guests(home, &testpmd::sockets(home, 2), Traffic::Exchange, real_time)?.rate(seconds)
}
