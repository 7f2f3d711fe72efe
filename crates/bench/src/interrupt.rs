//! Ctrl-C ends a run by way of errors, so that everything started is ended on the way out.

use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How often waiting looks whether it should end.
const STEP: Duration = Duration::from_millis(50);

/// The run was told to end.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Takes SIGINT, SIGTERM and SIGHUP from now on. Called before other threads are started, which take after this one.
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

/// An error once the run was told to end.
pub fn check() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Waits until `ready`, at most so long; whether it became so.
pub fn wait(limit: Duration, mut ready: impl FnMut() -> bool) -> Result<bool, Interrupted> {
    let start = Instant::now();
    loop {
        check()?;
        let left = limit.saturating_sub(start.elapsed());
        if ready() || left.is_zero() {
            return Ok(!left.is_zero());
        }
        thread::sleep(left.min(STEP));
    }
}
