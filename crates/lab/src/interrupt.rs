//! The user's request to end the run. It is process-wide, as the signal is that causes it.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Ends every current and future wait for a guest with [`Error::Interrupted`](crate::Error::Interrupted). Guests end when they
/// are dropped.
pub fn interrupt() {
    REQUESTED.store(true, Ordering::Relaxed);
}

pub(crate) fn interrupted() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}
