//! Names on a command line.

/// A word that names nothing of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word} is no {kind}; there are {known}")]
pub struct NameError {
    /// The word.
    pub word: String,
    /// What it was to name.
    pub kind: &'static str,
    /// What there is, in words.
    pub known: String,
}
