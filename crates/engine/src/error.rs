//! The engine's errors.

use crate::worker::Gone;
use fairlane_policy::problem::Problem;
use fairlane_policy::{Fixed, Kind, SettingError};
use std::fmt::Display;
use std::path::PathBuf;

/// Why a request failed. Displays as a sentence for the client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy has mistakes.
    #[error("{0}")]
    Policy(String),
    /// Drop-ins have mistakes; everything else was loaded.
    #[error(
        "{}\nthese files keep their former state, the rest is loaded: changes: {changes}",
        .problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    )]
    DropIns {
        /// The mistakes.
        problems: Vec<Problem>,
        /// The number of changes made.
        changes: usize,
    },
    /// A reload has no place for what was added while the backend ran; nothing was changed.
    #[error("{kind} `{name}`, added while this backend ran, does not fit to the files: {why}; remove it first")]
    Added {
        /// The kind of what was added.
        kind: Kind,
        /// Its name.
        name: String,
        /// The conflict.
        why: SettingError,
    },
    /// The client may only look.
    #[error("this control socket is read-only (show, flows, save): use the owner's")]
    ReadOnly,
    /// There is no file to keep changes in.
    #[error("this backend was not started from a policy file, so there is nowhere to save changes")]
    NoFile,
    /// The file for changes has mistakes; nothing was saved.
    #[error(
        "{} has a mistake, so what it says is not in force, and a save would lose it: mend it or move it away, and load the policy \
         again (`fairlane ctl reload`) before you save",
        .0.display()
    )]
    WrongSaved(PathBuf),
    /// A vif that is not served does not fit to what runs; nothing was saved.
    #[error(
        "vif `{name}` of a file beside {} is not served, and does not fit to what was changed since: {why}; mend or remove it in its \
         file, and load the policy again (`fairlane ctl reload`) before you save",
        .file.display()
    )]
    LeftOut {
        /// Its name.
        name: String,
        /// The file for changes.
        file: PathBuf,
        /// The conflict.
        why: SettingError,
    },
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
