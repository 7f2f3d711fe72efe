//! Reads a policy file, or reports every problem of it.

use fairlane_policy::problem::Problem;
use fairlane_policy::{Policy, renamed_keys};
use std::io;
use std::path::{Path, PathBuf};

/// Why a policy file cannot be used. Displays one line per problem: `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
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

/// Reads a policy file. Warns of keys by their old names on the standard error output.
///
/// # Errors
/// See [`PolicyError`].
pub(crate) fn read(path: &Path) -> Result<Policy, PolicyError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| PolicyError::Unreadable { path: path.to_owned(), error })?;
    let name = path.display().to_string();
    let policy = Policy::parse(&name, &text).map_err(PolicyError::Invalid)?;
    renamed_keys(&name, &text).iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(policy)
}
