//! The running backend that a command talks to.

use anyhow::anyhow;
use fairlane_engine::control::{Client, Error};
use fairlane_policy::CONTROL;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The option that names a backend.
#[derive(clap::Args)]
pub(crate) struct Backend {
    /// The backend's control socket
    #[arg(long, global = true, value_name = "PATH", default_value = CONTROL)]
    pub control: PathBuf,
}

impl Backend {
    /// Connects to its control socket.
    ///
    /// # Errors
    /// The connection failed. The message says what the user can do.
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        Client::connect(&self.control).map_err(|error| match &error {
            Error::NoBackend { error: cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
                anyhow!("{error}; only root and the user it runs as may connect")
            }
            _ => anyhow!("{error}; start it with `fairlane up POLICY`, or name its socket with --control PATH"),
        })
    }
}
