//! What can go wrong with a guest.

use std::{io, path::PathBuf, time::Duration};

/// Why a guest could not be booted or did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something the machine needs is not there; the text says what, and how to get it.
    #[error("{0}")]
    Missing(String),
    /// Orders that no guest of this kind can follow.
    #[error("guest {guest}: {reason}")]
    Orders {
        /// The guest's name.
        guest: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A topology that this kind of machine cannot have; the text says where and what would be right.
    #[error("topology: {0}")]
    Topology(String),
    /// The guest did not get as far as serving requests.
    #[error(
        "guest {guest} ({image}) {reason}; its console, kept in {}, ends:\n{console}",
        log.display()
    )]
    Boot {
        /// The guest's name.
        guest: String,
        /// What was booted. Boxed, as results with an error should stay small.
        image: Box<str>,
        /// How it failed.
        reason: String,
        /// Whether all that is known is that its time ran out.
        silent: bool,
        /// The console's log.
        log: PathBuf,
        /// The log's last lines.
        console: String,
    },
    /// The agent could not do what it was asked.
    #[error("guest {guest}: {reason}")]
    Failed {
        /// The guest's name.
        guest: String,
        /// The agent's words.
        reason: String,
    },
    /// The guest ended while work was under way.
    #[error("guest {guest} ended unexpectedly: {how}")]
    Gone {
        /// The guest's name.
        guest: String,
        /// How that was seen, with what its console printed last where its host told that.
        how: String,
    },
    /// The guest is there but does not answer.
    #[error("guest {guest} has not answered {}s after its work was to end", patience.as_secs())]
    Silent {
        /// The guest's name.
        guest: String,
        /// How long was waited.
        patience: Duration,
    },
    /// On a computer that has a script with it, something else was asked than in the rehearsal.
    #[error("guest {guest}: asked {asked}, where its script has {scripted}; remove the script, for another rehearsal")]
    Script {
        /// The guest's name.
        guest: String,
        /// What was asked.
        asked: String,
        /// What was asked in the rehearsal.
        scripted: String,
    },
    /// Someone wants it to end.
    #[error("interrupted")]
    Interrupted,
    /// What the emulator counted is not as its plugin writes it.
    #[error("{}: {source}", path.display())]
    Counts {
        /// The file.
        path: PathBuf,
        /// The line.
        source: FormatError,
    },
    /// The host's own system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was done to which file or program.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The plugin's output has a line that it does not write.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, `{text}`, is not {wanted}")]
pub struct FormatError {
    /// The line, from 1.
    pub line: usize,
    /// What it holds.
    pub text: String,
    /// What it was to be.
    pub wanted: &'static str,
}

impl Error {
    /// A guest that ended, as its line shows.
    pub(crate) fn gone(guest: &str) -> Error {
        Error::Gone { guest: guest.to_owned(), how: "the line to its agent was closed".to_owned() }
    }
}

/// Names what was done where an input or output error occurred.
pub(crate) trait IoContext<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
