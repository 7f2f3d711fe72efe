//! Part sim: how fast the simulator is, and its memory per vif. All sizes send the same frames.

use crate::Run;
use anyhow::{Context, Result, anyhow};
use fairlane_sim::Scenario;
use nix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Numbers of vifs, with the rate of each in Mbit/s.
const VIFS: [(u32, u32); 3] = [(100, 100), (1000, 10), (10_000, 1)];

/// Runs of each size.
const RUNS: usize = 3;

/// The plan, for 10,000 vifs.
const PLAN: &str = include_str!("../../../experiments/plans/ten-thousand.toml");

/// Simulates a second of each size and adds the results.
///
/// # Errors
/// The simulation cannot be run, or this process' memory is not known.
pub(crate) fn measure(run: &mut Run) -> Result<()> {
    for (vifs, rate) in VIFS {
        run.show(format!("sim, {vifs} vifs"));
        let text = PLAN.replace("count = 10_000", &format!("count = {vifs}"));
        let text = text.replace("\"1Mbit/s\"", &format!("\"{rate}Mbit/s\""));
        let scenario = Scenario::parse(Path::new("ten-thousand.toml"), &text).map_err(|wrong| anyhow!("{wrong:?}"))?;
        let (mut seconds, mut events, mut frames, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let (before, start) = (reset_peak()?, worked()?);
            let outcome = fairlane_sim::run(&scenario)?;
            let took = (worked()? - start).as_secs_f64();
            seconds.push(took / scenario.seconds);
            events.push(outcome.events as f64 / took / 1e6);
            frames.push(outcome.made() as f64 / took / 1e6);
            bytes.push((peak()?.saturating_sub(before)) as f64 / f64::from(vifs) / 1024.0);
        }
        run.result.metric(&format!("sim_seconds_{vifs}"), &seconds, "s/s");
        run.result.metric(&format!("sim_events_{vifs}"), &events, "million/s");
        run.result.metric(&format!("sim_frames_{vifs}"), &frames, "million/s");
        run.result.metric(&format!("sim_memory_{vifs}"), &bytes, "KiB");
    }
    Ok(())
}

/// The processor time of this thread.
fn worked() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// Forgets the largest memory so far, and returns the present one in bytes (proc(5), `clear_refs`).
fn reset_peak() -> Result<u64> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of this process' memory")?;
    peak()
}

/// The largest resident memory since then, in bytes.
fn peak() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024)
}
