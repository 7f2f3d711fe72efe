//! Signals end a run with an error, so that all processes are stopped on the way out.

use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How often a wait polls.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The run was interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Blocks SIGINT, SIGTERM and SIGHUP and waits for them in a thread. Call it before other threads start: they inherit the blocked signals.
pub fn watch() -> nix::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    thread::spawn(move || {
        while signals.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Returns an error once the run was interrupted.
pub fn check() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Waits until `ready` returns true, for at most `limit`. Returns whether it did.
pub fn wait(limit: Duration, mut ready: impl FnMut() -> bool) -> Result<bool, Interrupted> {
    let start = Instant::now();
    loop {
        check()?;
        let left = limit.saturating_sub(start.elapsed());
        if ready() || left.is_zero() {
            return Ok(!left.is_zero());
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}
