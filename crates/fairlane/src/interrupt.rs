//! SIGINT and SIGTERM as a flag, checked between two events and while waiting for a guest, so that everything that was started is
//! also stopped.

use fairlane_lab::Error;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGINT or SIGTERM arrived.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Blocks SIGINT and SIGTERM and waits for them in a thread. Call it before other threads start: they inherit the blocked signals.
    ///
    /// # Errors
    /// The signals cannot be blocked.
    pub fn watch() -> nix::Result<Interrupt> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        let interrupted = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let interrupted = interrupted.clone();
            move || {
                if signals.wait().is_ok() {
                    interrupted.store(true, Ordering::Relaxed);
                    fairlane_lab::interrupt();
                }
            }
        });
        Ok(Interrupt(interrupted))
    }

    /// Becomes true when a signal arrives.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// # Errors
    /// [`Error::Interrupted`] once a signal arrived.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}
