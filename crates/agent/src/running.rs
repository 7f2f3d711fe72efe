//! Child processes that are killed on drop.

use std::{fs, process::Child};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A child process that is killed on drop, with its own children.
pub(crate) struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Once it has been reaped, its process id may be reused.
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let id = self.0.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        // A child may exit by itself meanwhile.
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
