//! Fairlane on a host other than Xen: guests' cards are on vhost-user sockets instead of taps.

use std::path::{Path, PathBuf};

use fairlane_agent::Command;

use super::{backend, wiring};
use crate::topology::Topology;
use crate::{Agent, Error, image};

/// The paths of the daemon's program and its files.
pub(super) struct Fairlane {
    program: PathBuf,
    home: PathBuf,
}

impl Fairlane {
    /// A daemon on this host, with its files in the directory `home`.
    ///
    /// # Errors
    /// [`Error::Missing`] if its program is not built.
    pub(super) fn here(home: &Path) -> Result<Fairlane, Error> {
        Ok(Fairlane { program: image::fairlane()?, home: home.to_owned() })
    }

    /// A daemon on an emulated host whose image contains it.
    pub(super) fn installed() -> Fairlane {
        Fairlane { program: "fairlane".into(), home: "/run/fairlane".into() }
    }

    /// The socket of a guest's card.
    pub(super) fn socket(&self, guest: usize) -> PathBuf {
        self.home.join(format!("{}.sock", wiring::vif(guest)))
    }

    /// Starts the daemon as a process of the host, in its network and on its CPUs, and waits until it answers. The guests' sockets
    /// exist then.
    ///
    /// # Errors
    /// Those of the host's agent.
    pub(super) fn start(&self, host: &Agent, topology: &Topology) -> Result<(), Error> {
        let (policy, control) = (self.home.join("policy.toml"), self.home.join("control.sock"));
        let control = control.to_string_lossy();
        let (link, tenants) = (backend::link_by_tap(host, topology)?, backend::tenants(topology));
        let vifs = backend::vifs(topology, |guest| self.socket(guest));
        let text = format!("control = \"{control}\"\n{link}{tenants}{vifs}");
        host.run(Command::Write { path: policy.clone(), text })?;
        backend::serve(host, &[], &self.program.to_string_lossy(), &policy.to_string_lossy(), &control).map(drop)
    }
}
