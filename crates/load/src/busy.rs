//! Keeps a CPU busy for a share of its time.
//!
//! Work is measured in CPU time: a guest that waits for its CPU still does its share, only later. The rest of each slice is slept.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{seconds, within};

/// The period of work and sleep.
const SLICE: Duration = Duration::from_millis(100);

/// Parameters of the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The share of one CPU's time, 0 to 1.
    pub share: f64,
    /// The duration, in seconds.
    pub seconds: f64,
}

/// The consumed CPU time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Consumed {
    /// The duration, in seconds.
    pub seconds: f64,
    /// CPU time of this thread in seconds, as its kernel accounts it.
    pub cpu: f64,
}

/// Works and sleeps in this thread until the time is up.
///
/// # Errors
/// If a parameter is out of range, or the kernel has no per-thread CPU clock.
pub fn run(spec: &Spec) -> io::Result<Consumed> {
    let duration = seconds("seconds", spec.seconds)?;
    let work = SLICE.mul_f64(within("share", spec.share, 0.0, 1.0)?);
    let start = Instant::now();
    let first = cpu_time()?;
    while start.elapsed() < duration {
        let begun = cpu_time()?;
        while cpu_time()? - begun < work && start.elapsed() < duration {}
        thread::sleep((SLICE - work).min(duration.saturating_sub(start.elapsed())));
    }
    Ok(Consumed { seconds: start.elapsed().as_secs_f64(), cpu: (cpu_time()? - first).as_secs_f64() })
}

fn cpu_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_share_is_consumed() {
        for (share, most) in [(0.0, 0.05), (0.3, 0.17), (1.0, 0.55)] {
            let consumed = run(&Spec { share, seconds: 0.5 }).unwrap();
            // `most` is the share of five slices, and a little more for a late check of the clock.
            assert!(consumed.cpu <= most, "{consumed:?} at a share of {share}");
            assert!(share == 0.0 || consumed.cpu > 0.0);
        }
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        for (share, seconds, named) in
            [(-0.1, 1.0, "share"), (1.1, 1.0, "share"), (f64::NAN, 1.0, "share"), (0.5, 0.0, "seconds")]
        {
            let error = run(&Spec { share, seconds }).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
