//! Processes of a test.

use std::process::Child;

/// A process that ends with the test.
pub(crate) struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
