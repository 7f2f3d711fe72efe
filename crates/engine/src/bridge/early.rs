//! Early ack on a bridge: which guests have it, and its work between bursts.

use super::Bridge;
use crate::early::Early;
use fairlane_core::PortId;
use fairlane_core::ack::{FlowView, ImportError, Mode};
use fairlane_core::time::Nanos;
use fairlane_port::Burst;
use std::io;
use std::path::Path;

impl Bridge {
    /// Handles the timeouts of all guests with early ack. Returns when to call it again at the latest.
    pub(super) fn run_early_timeouts(&mut self, burst: &mut Burst, now: Nanos) -> Nanos {
        let mut next = Nanos::NEVER;
        let fabric = &mut self.fabric;
        self.accelerated.retain(|port| {
            let Some(entry) = fabric.entries[port.index()].as_deref_mut() else { return false };
            let Some(early) = &mut entry.early else { return false };
            let (put, again) = early.tend(&entry.name, &mut *entry.port, burst, now);
            next = next.min(again);
            let over = early.is_over();
            if put {
                entry.touch(*port, &mut fabric.touched);
            }
            if over && let Some(early) = entry.early.take() {
                early.discard();
            }
            !over
        });
        next
    }

    /// Checks the rings of all guests with early ack after a round has filled them: a guest that is no longer watched must be
    /// marked so, as nothing else may wake the worker until the guest runs. Returns when to call it again at the latest.
    pub(super) fn check_early_rings(&mut self, now: Nanos) -> Nanos {
        let mut next = Nanos::NEVER;
        for port in &self.accelerated {
            if let Some(entry) = self.fabric.entries[port.index()].as_deref_mut()
                && let Some(early) = &mut entry.early
            {
                next = next.min(early.watch(&*entry.port, now));
            }
        }
        next
    }

    /// Turns early ack on for a guest's port, with its state in a file, and resumes from there. The file remains when the bridge is
    /// dropped or the port removed.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn accelerate(&mut self, port: PortId, file: &Path, mode: Mode, now: Nanos) -> io::Result<()> {
        if let Some(entry) = self.fabric.entry(port) {
            entry.early = Some(Box::new(Early::open(file, mode, now)?));
            self.accelerated.push(port);
            self.look_again(port);
        }
        Ok(())
    }

    /// Changes the mode. When turned off, data owed to the guest are delivered first, and the file is removed afterwards. Returns
    /// false if the port has no early ack.
    pub fn set_early(&mut self, port: PortId, mode: Mode) -> bool {
        let early = self.early(port);
        let is_there = early.is_some();
        early.into_iter().for_each(|early| early.set(mode));
        is_there
    }

    /// Forgets all flows of a port whose guest is gone for good, and removes its file.
    pub(crate) fn forget_early(&mut self, port: PortId) {
        if let Some(early) = self.fabric.entry(port).and_then(|entry| entry.early.take()) {
            early.discard();
        }
    }

    /// Exports the flows of a port's guest with their copies, for another backend. Nothing is acknowledged here from then on. None
    /// if the port has no early ack.
    pub fn export_flows(&mut self, port: PortId) -> Option<Vec<u8>> {
        Some(self.early(port)?.export())
    }

    /// Imports the flows of a port's guest from another backend. Returns their number; none if the port has no early ack.
    ///
    /// # Errors
    /// The bytes are not a valid export.
    pub fn import_flows(&mut self, port: PortId, export: &[u8], now: Nanos) -> Option<Result<u32, ImportError>> {
        Some(self.early(port)?.import(export, now))
    }

    /// A port's early ack.
    fn early(&mut self, port: PortId) -> Option<&mut Early> {
        self.fabric.entry(port)?.early.as_deref_mut()
    }

    /// The flows of all guests, with the name of their vif.
    pub(crate) fn flows(&self) -> Vec<(String, Vec<FlowView>)> {
        let entries = self.fabric.entries.iter().flatten();
        entries.filter_map(|entry| Some((entry.name.clone(), entry.early.as_ref()?.flows()))).collect()
    }
}
