//! Events of ports that close files in threads of their own.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Handles what is ready, with `handle`, which returns the number of events, until nothing is ready and no thread closes anything: what a
/// port does next then depends on the input alone.
#[track_caller]
pub fn settle(mut handle: impl FnMut() -> usize) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let closed = !is_closing();
        if handle() == 0 && closed {
            return;
        }
        assert!(Instant::now() < end, "events have no end, or files are still open");
        if !closed {
            std::thread::yield_now();
        }
    }
}

/// Whether there are more threads than the fuzzer's own two: one runs the target, one watches its memory.
fn is_closing() -> bool {
    // A directory has a link for itself, one from its parent, and one from each directory in it.
    std::fs::metadata("/proc/self/task").unwrap().nlink() > 2 + 2
}
