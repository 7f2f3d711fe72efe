//! A program that ends with whoever has it run.

use std::{fs, process::Child};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A program that ends with this, and with it what it has started itself.
pub(crate) struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Once it has ended and was waited for, its number may be another's.
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let id = self.0.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        // Each may end by itself meanwhile.
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
