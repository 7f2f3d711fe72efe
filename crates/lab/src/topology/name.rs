//! Errors of names on a command line.

/// An unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word} is no {kind}; there are {known}")]
pub struct NameError {
    /// The word.
    pub word: String,
    /// The kind of thing it should name.
    pub kind: &'static str,
    /// The known names.
    pub known: String,
}
