//! The engine's errors.

use crate::worker::Gone;
use fairlane_policy::{Fixed, SettingError};
use std::fmt::Display;

/// Why a request failed. Displays as a sentence for the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has mistakes.
    #[error("{0}")]
    Policy(String),
    /// The setting was refused.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The change needs a restart; nothing was changed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fixed(Vec<Fixed>),
    /// Changes that could not be applied; all others were.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Undone(Vec<Error>),
    /// No vif has this name.
    #[error("no vif is named `{name}`, the vifs are {}", .known.join(", "))]
    NoVif {
        /// The name.
        name: String,
        /// Names of some vifs.
        known: Vec<String>,
    },
    /// No link has this name.
    #[error("no link is named `{0}`")]
    NoLink(String),
    /// The vif has no flows to export.
    #[error("vif `{0}` has no early ack: turn it on with early_ack = true")]
    NoEarlyAck(String),
    /// The vif already has a capture.
    #[error("vif `{0}` is under capture already: stop that one first")]
    Captured(String),
    /// The vif has no capture.
    #[error("vif `{0}` is not under capture")]
    NotCaptured(String),
    /// A system call or a file failed.
    #[error("{what}: {why}")]
    Failed {
        /// What was to be done, or with what.
        what: String,
        /// Why it failed, and what would be right.
        why: String,
    },
    /// A worker does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
}

impl Error {
    /// An operation that failed, and why.
    pub(crate) fn failed(what: impl Display, why: impl Display) -> Error {
        Error::Failed { what: what.to_string(), why: why.to_string() }
    }
}
