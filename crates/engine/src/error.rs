//! Why the engine did not do something.

use crate::worker::Gone;
use fairlane_policy::{Fixed, SettingError};
use std::fmt::Display;

/// Why something was not done. Displays as a sentence for whoever asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A policy is wrong.
    #[error("{0}")]
    Policy(String),
    /// A setting was not made.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// What cannot change without a restart; nothing changed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fixed(Vec<Fixed>),
    /// Steps of a change that could not be taken; all others were.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Undone(Vec<Error>),
    /// No vif has this name.
    #[error("no vif is named `{name}`, the vifs are {}", .known.join(", "))]
    NoVif {
        /// The name.
        name: String,
        /// Some that there are.
        known: Vec<String>,
    },
    /// No link has this name.
    #[error("no link is named `{0}`")]
    NoLink(String),
    /// The vif has no flows to carry over.
    #[error("vif `{0}` has no early ack: turn it on with early_ack = true")]
    NoEarlyAck(String),
    /// The vif has a capture.
    #[error("vif `{0}` is under capture already: stop that one first")]
    Captured(String),
    /// The vif has no capture.
    #[error("vif `{0}` is not under capture")]
    NotCaptured(String),
    /// Something of the system's, or in a file, is not as it must be.
    #[error("{what}: {why}")]
    Failed {
        /// What was to be done, or with what.
        what: String,
        /// Why it was not, and what would be right.
        why: String,
    },
    /// A worker does not answer.
    #[error(transparent)]
    Gone(#[from] Gone),
}

impl Error {
    /// That something failed, and why.
    pub(crate) fn failed(what: impl Display, why: impl Display) -> Error {
        Error::Failed { what: what.to_string(), why: why.to_string() }
    }
}
