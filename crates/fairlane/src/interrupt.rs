//! An interrupt from the terminal: noticed between two events, so that all that was started is also ended.

use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether someone wants this process to end.
pub struct Interrupt(Arc<AtomicBool>);

/// The error of a run that was interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Interrupt {
    /// Takes SIGINT and SIGTERM over. To be called before other threads start, which inherit that.
    ///
    /// # Errors
    /// What the system says.
    pub fn watch() -> nix::Result<Interrupt> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block()?;
        let wanted = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let wanted = wanted.clone();
            move || {
                if signals.wait().is_ok() {
                    wanted.store(true, Ordering::Relaxed);
                }
            }
        });
        Ok(Interrupt(wanted))
    }

    /// Becomes true when someone does.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// # Errors
    /// [`Interrupted`], if so.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }
}
