//! Reads a policy file, or reports every problem of it.

use fairlane_policy::Policy;
use fairlane_policy::problem::Problem;
use std::io;
use std::path::{Path, PathBuf};

/// Why a policy file cannot be used. Displays one line per problem: `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read policy {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file can be read, but has these problems.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<Problem>),
}

/// Reads a policy file.
///
/// # Errors
/// See [`PolicyError`].
pub fn read(path: &Path) -> Result<Policy, PolicyError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| PolicyError::Unreadable { path: path.to_owned(), error })?;
    Policy::parse(&path.display().to_string(), &text).map_err(PolicyError::Invalid)
}
