//! SIGINT, SIGTERM and SIGHUP end a run with an error, so that everything that was started is also stopped.
//!
//! It is process-wide, as the signals are.

use crate::Error;
use nix::sys::signal::{SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Blocks the signals and waits for them in a thread. Call it before other threads start: they inherit the blocked signals.
///
/// # Errors
/// The signals cannot be blocked.
pub fn watch() -> nix::Result<()> {
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    signals.thread_block()?;
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            INTERRUPTED.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

/// Becomes true when a signal arrives.
pub fn flag() -> &'static AtomicBool {
    &INTERRUPTED
}

/// Checked between two steps, and while waiting for a guest.
///
/// # Errors
/// [`Error::Interrupted`] once a signal arrived.
pub fn check() -> Result<(), Error> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}
