//! What all accepting loops have in common: what they do when the system refuses to accept.

use std::io;
use std::time::Duration;

/// How long to wait after the system refused to accept (no file descriptor, memory or thread left). The client stays in the
/// backlog, so that trying again at once would be a busy loop.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Whether accept failed only because the client is gone or there is none: the next call may succeed.
pub(crate) fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}
