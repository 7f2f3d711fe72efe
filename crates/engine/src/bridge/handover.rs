//! A bridge whose peers another process takes, and gives back if it fails.

use super::Bridge;
use crate::entry::Attached;
use fairlane_core::PortId;
use fairlane_core::ack::Mode;
use fairlane_core::time::Nanos;
use std::path::PathBuf;

/// A guest's early ack while another process has its file.
pub(super) struct Left {
    port: PortId,
    file: PathBuf,
    mode: Mode,
}

impl Bridge {
    /// Leaves the peers of all ports, and early ack's files, to another process.
    pub(crate) fn let_go(&mut self) {
        for entry in self.fabric.entries.iter_mut().flatten() {
            entry.port.let_go();
            if let Attached::Captured(captured) = &mut entry.port {
                captured.rest();
            }
        }
        for port in std::mem::take(&mut self.accelerated) {
            if let Some(early) = self.fabric.entry(port).and_then(|entry| entry.early.take()) {
                let (file, mode) = early.leave();
                self.left.push(Left { port, file, mode });
            }
        }
    }

    /// Goes on where that process, which has ended, left them.
    pub(crate) fn take_back(&mut self, now: Nanos) {
        for Left { port, file, mode } in std::mem::take(&mut self.left) {
            if let Err(error) = self.accelerate(port, &file, mode, now) {
                tracing::error!("early ack goes on without {}: {error}", file.display());
            }
        }
        self.fabric.entries.iter_mut().flatten().for_each(|entry| entry.port.take_back());
        // Guests may have sent meanwhile, to a process that did not see it.
        for number in 1..self.fabric.entries.len() {
            self.look_again(PortId(number as u32));
        }
    }
}
