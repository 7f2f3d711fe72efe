//! Ends a process that can no longer do its work. Otherwise its guests would have no network, unnoticed. The service manager
//! restarts it, frontends reconnect, and early ack resumes from its file.

use std::process::exit;
use std::sync::OnceLock;

/// Exit status: EX_SOFTWARE of `sysexits.h`.
const FAILED: i32 = 70;

static LAST: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Registers a function to be called before such an end, on the thread that failed, so that the log's last lines are written. Only
/// the first registration counts.
pub fn before_end(last: impl Fn() + Send + Sync + 'static) {
    // A second one in a process would flush the same log.
    let _ = LAST.set(Box::new(last));
}

/// Logs the reason and ends the process.
pub(crate) fn end(reason: &str) -> ! {
    tracing::error!("{reason}");
    if let Some(last) = LAST.get() {
        last();
    }
    exit(FAILED)
}
