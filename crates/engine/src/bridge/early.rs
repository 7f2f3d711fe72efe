//! Early ack on a bridge: which guests have it, and what it wants done between two bursts.

use super::Bridge;
use crate::early::Early;
use fairlane_core::PortId;
use fairlane_core::ack::{FlowView, ImportError, Mode};
use fairlane_core::time::Nanos;
use fairlane_port::Burst;
use std::io;
use std::path::Path;

impl Bridge {
    /// Looks after all guests with early ack. Returns when to do so again at the latest.
    pub(super) fn tend_early(&mut self, burst: &mut Burst, now: Nanos) -> Nanos {
        let mut next = Nanos::NEVER;
        let fabric = &mut self.fabric;
        self.accelerated.retain(|port| {
            let Some(entry) = fabric.entries[port.index()].as_deref_mut() else { return false };
            let Some(early) = &mut entry.early else { return false };
            let (put, again) = early.tend(&mut *entry.port, burst, now);
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

    /// Looks at the rings of all guests with early ack when a round has filled them: one that is left alone from now on is to be
    /// seen so, and nothing else may wake the worker until its guest runs. Returns when to look again at the latest.
    pub(super) fn watch_early(&mut self, now: Nanos) -> Nanos {
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

    /// Gives a guest's port early ack that is kept in a file, and goes on with what is there. It stays in the file when the
    /// bridge is dropped or the port removed.
    ///
    /// # Errors
    /// What the system says.
    pub fn accelerate(&mut self, port: PortId, file: &Path, mode: Mode, now: Nanos) -> io::Result<()> {
        if let Some(entry) = self.fabric.entry(port) {
            entry.early = Some(Box::new(Early::open(file, mode, now)?));
            self.accelerated.push(port);
        }
        Ok(())
    }

    /// Changes when a port's guest is acknowledged for. Turned off, what the guest is owed is brought to it first, and the
    /// file is removed then. False if the port has no early ack.
    pub fn set_early(&mut self, port: PortId, mode: Mode) -> bool {
        let early = self.early(port);
        let is_there = early.is_some();
        early.into_iter().for_each(|early| early.set(mode));
        is_there
    }

    /// Forgets all flows of a port's guest, which is gone for good, and removes their file.
    pub(crate) fn forget_early(&mut self, port: PortId) {
        if let Some(early) = self.fabric.entry(port).and_then(|entry| entry.early.take()) {
            early.discard();
        }
    }

    /// The flows of a port's guest, with their copies, as another backend takes them over. They stand still here from now on. None
    /// if the port has no early ack.
    pub fn export_flows(&mut self, port: PortId) -> Option<Vec<u8>> {
        Some(self.early(port)?.export())
    }

    /// Has a port's guest take over flows from another backend. Returns how many; none if the port has no early ack.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn import_flows(&mut self, port: PortId, export: &[u8], now: Nanos) -> Option<Result<u32, ImportError>> {
        Some(self.early(port)?.import(export, now))
    }

    /// A port's early ack.
    fn early(&mut self, port: PortId) -> Option<&mut Early> {
        self.fabric.entry(port)?.early.as_deref_mut()
    }

    /// The flows of all guests, by the name of their vif.
    pub(crate) fn flows(&self) -> Vec<(String, Vec<FlowView>)> {
        let entries = self.fabric.entries.iter().flatten();
        entries.filter_map(|entry| Some((entry.name.clone(), entry.early.as_ref()?.flows()))).collect()
    }
}
