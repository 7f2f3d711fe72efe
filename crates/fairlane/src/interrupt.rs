//! An interrupt from the terminal: noticed between two events and while a guest is waited for, so that all that was started is also
//! ended.

use fairlane_lab::Error;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether someone wants this process to end.
pub struct Interrupt(Arc<AtomicBool>);

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
                    fairlane_lab::interrupt();
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
    /// [`Error::Interrupted`], if so.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}
