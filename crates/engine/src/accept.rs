//! What is common to those who meet clients: what they do when the system refuses.

use std::io;
use std::time::Duration;

/// How long nobody is met after the system refused to (no descriptor, no memory, no thread left). The client still waits, so that asking
/// again at once would be asking without end.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Whether a client could not be met because it left, or there was none: the next one can.
pub(crate) fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}
