//! A policy file, or all that is wrong with it.

use fairlane_policy::problem::Problem;
use fairlane_policy::{Policy, renamed_keys};
use std::io;
use std::path::{Path, PathBuf};

/// Why a file is no policy. Displays as a line a problem: `policy.toml:12: weight must be 1 to 10000, not 0`.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It cannot be read.
    #[error("cannot read policy {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// It can, and this is wrong with it.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Wrong(Vec<Problem>),
}

/// Reads a policy file. Warns of keys by their old names on the standard error output.
///
/// # Errors
/// See [`Unfit`].
pub fn read(path: &Path) -> Result<Policy, Unfit> {
    let text = std::fs::read_to_string(path).map_err(|error| Unfit::Unreadable { path: path.to_owned(), error })?;
    let name = path.display().to_string();
    let policy = Policy::parse(&name, &text).map_err(Unfit::Wrong)?;
    renamed_keys(&name, &text).iter().for_each(|warning| eprintln!("warning: {warning}"));
    Ok(policy)
}
