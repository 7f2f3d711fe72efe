//! The end of a process that cannot do its work any more. Its guests would have no network, or new ones none, and nobody would
//! know: who manages the process starts it anew, frontends reconnect, and what was acknowledged early is resumed.

use std::process::exit;
use std::sync::OnceLock;

/// What the process ends with: EX_SOFTWARE of `sysexits.h`.
const FAILED: i32 = 70;

static LAST: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Has a function called before such an end, on the thread that failed, so that the log's last lines come out. The first that is
/// given stays.
pub fn before_end(last: impl Fn() + Send + Sync + 'static) {
    // The second of a process would see to the same log.
    let _ = LAST.set(Box::new(last));
}

/// Ends the process, and logs why.
pub(crate) fn end(reason: &str) -> ! {
    tracing::error!("{reason}");
    if let Some(last) = LAST.get() {
        last();
    }
    exit(FAILED)
}
