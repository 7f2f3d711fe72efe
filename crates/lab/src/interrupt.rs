//! Somebody's wish that all of this end. A signal is to the whole process, and so is this.

use std::sync::atomic::{AtomicBool, Ordering};

static WANTED: AtomicBool = AtomicBool::new(false);

/// Ends every wait for a guest, those under way and those to come, with [`Error::Interrupted`](crate::Error::Interrupted).
/// What was booted ends when it is let go.
pub fn interrupt() {
    WANTED.store(true, Ordering::Relaxed);
}

pub(crate) fn interrupted() -> bool {
    WANTED.load(Ordering::Relaxed)
}
