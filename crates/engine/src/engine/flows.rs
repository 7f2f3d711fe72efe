//! The flows of early ack: shown to clients, and exported or imported when their guest moves.

use super::{Error, Shared, create};
use crate::bridge::Bridge;
use crate::clock::Clock;
use crate::confinement::{self, Wish};
use crate::control::FlowsFile;
use crate::snapshot::FlowState;
use fairlane_core::PortId;
use fairlane_core::time::Nanos;
use nix::fcntl::OFlag;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest export in bytes: a guest's copies, and its flows with room to spare.
const LONGEST: u64 = 64 << 20;

impl Shared {
    /// All flows, by vif in the policy's order.
    pub(super) fn flows(&self) -> Result<Vec<FlowState>, Error> {
        let mut found = Vec::new();
        for worker in &self.workers() {
            let flows = |bridge: &Bridge| bridge.flows();
            found.extend(worker.call(move |work| work.bridges.iter().flat_map(flows).collect::<Vec<_>>())?);
        }
        let policy = self.policy();
        found.sort_by_key(|(name, _)| policy.vifs.iter().position(|vif| vif.name == *name));
        let shown = |(name, flows): (String, Vec<_>)| flows.into_iter().map(move |flow| FlowState::new(&name, flow));
        Ok(found.into_iter().flat_map(shown).collect())
    }

    /// Writes a vif's flows to a new file. Returns its size in bytes.
    pub(super) fn export_flows(&self, FlowsFile { vif, file }: &FlowsFile) -> Result<u64, Error> {
        let bytes = self.with_early(vif, |bridge, port, _| bridge.export_flows(port))?;
        let mut out = create(file)?;
        let written = out.write_all(&bytes).and_then(|()| out.sync_all());
        if let Err(error) = written {
            // A partial export is of no use.
            let _ = std::fs::remove_file(file);
            return Err(Error::failed(format!("cannot write flows to {}", file.display()), error));
        }
        Ok(bytes.len() as u64)
    }

    /// Imports a vif's flows from a file. Returns their number.
    pub(super) fn import_flows(&self, FlowsFile { vif, file }: &FlowsFile) -> Result<u32, Error> {
        let said = |why: &dyn Display| Error::failed(format!("cannot take flows over from {}", file.display()), why);
        let bytes = read(file).map_err(|error| said(&confinement::explain(&error, Wish::File)))?;
        self.with_early(vif, move |bridge, port, now| bridge.import_flows(port, &bytes, now))?.map_err(|why| said(&why))
    }

    /// Calls a function with the bridge and port of a vif, and expects it to have early ack.
    fn with_early<R: Send + 'static>(
        &self,
        vif: &str,
        with: impl FnOnce(&mut Bridge, PortId, Nanos) -> Option<R> + Send + 'static,
    ) -> Result<R, Error> {
        let worker = self.worker_of(vif)?;
        let name = vif.to_owned();
        let done = worker.call(move |work| {
            let (bridge, port) = work.vif(&name)?;
            let now = work.clock.now();
            with(&mut work.bridges[bridge], port, now)
        })?;
        done.ok_or_else(|| Error::NoEarlyAck(vif.to_owned()))
    }
}

/// Reads a whole file that is not longer than an export can be. Does not block on a pipe without a writer.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(file);
    opened?.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it has more than {LONGEST} bytes, which no export has")));
    }
    Ok(bytes)
}
