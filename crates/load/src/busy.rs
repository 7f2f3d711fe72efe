//! A processor kept busy for a share of its time.
//!
//! As the load generators of the sources do it: work is counted in processor time, so that one who is held
//! back by neighbours still does his share, only later, and the rest of each slice is slept.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{seconds, within};

/// The time in which work and rest follow each other once.
const SLICE: Duration = Duration::from_millis(100);

/// Orders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The share of one processor's time, 0 to 1.
    pub share: f64,
    /// How long, in seconds.
    pub seconds: f64,
}

/// What was consumed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Consumed {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Processor time of this thread in seconds, as its kernel accounts it.
    pub cpu: f64,
}

/// Works and rests in this thread until the time is up.
///
/// # Errors
/// Orders out of range, or a kernel without clocks of threads.
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
            // Of five slices at most so much each; the last check of a clock comes late by a little.
            assert!(consumed.cpu <= most, "{consumed:?} at a share of {share}");
            assert!(share == 0.0 || consumed.cpu > 0.0);
        }
    }

    #[test]
    fn orders_out_of_range_are_named() {
        for (share, seconds, named) in
            [(-0.1, 1.0, "share"), (1.1, 1.0, "share"), (f64::NAN, 1.0, "share"), (0.5, 0.0, "seconds")]
        {
            let error = run(&Spec { share, seconds }).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
