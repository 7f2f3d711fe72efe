//! Errors of guests and machines.

use std::{io, path::PathBuf, time::Duration};

/// Why a guest could not be booted or did not complete its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something the machine needs is missing; the text names it and how to get it.
    #[error("{0}")]
    Missing(String),
    /// A specification that no guest of this kind can meet.
    #[error("guest {guest}: {reason}")]
    Spec {
        /// The guest's name.
        guest: String,
        /// What is wrong, and what would be valid.
        reason: String,
    },
    /// A topology that this kind of machine cannot have; the text names the key and what would be valid.
    #[error("topology: {0}")]
    Topology(String),
    /// The guest's agent did not come up.
    #[error(
        "guest {guest} ({image}) {reason}; its console, kept in {}, ends:\n{console}",
        log.display()
    )]
    Boot {
        /// The guest's name.
        guest: String,
        /// What was booted. Boxed to keep `Result`s small.
        image: Box<str>,
        /// How it failed.
        reason: String,
        /// Whether the only sign of failure is that its time ran out.
        silent: bool,
        /// The console's log.
        log: PathBuf,
        /// The log's last lines.
        console: String,
    },
    /// The agent could not execute a command.
    #[error("guest {guest}: {reason}")]
    Failed {
        /// The guest's name.
        guest: String,
        /// The agent's message.
        reason: String,
    },
    /// The guest ended while work was under way.
    #[error("guest {guest} ended unexpectedly: {how}")]
    Gone {
        /// The guest's name.
        guest: String,
        /// How that was noticed, with the last lines of its console if its host reported them.
        how: String,
    },
    /// The guest runs but does not answer.
    #[error("guest {guest} has not answered {}s after its work was to end", patience.as_secs())]
    Silent {
        /// The guest's name.
        guest: String,
        /// How long past the expected end the answer was awaited.
        patience: Duration,
    },
    /// A request to a machine that replays a script differs from the recorded one.
    #[error(
        "guest {guest}: the request is {asked}, but its script has {recorded}; remove the script to record it again"
    )]
    Script {
        /// The guest's name.
        guest: String,
        /// The request.
        asked: String,
        /// The recorded request.
        recorded: String,
    },
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
    /// A file of counts does not have the format of the emulator's plugin.
    #[error("{}: {source}", path.display())]
    Counts {
        /// The file.
        path: PathBuf,
        /// The faulty line.
        source: FormatError,
    },
    /// A system call of the lab's own failed.
    #[error("{what}: {source}")]
    Io {
        /// The file or program, or the operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

/// A line of the counting plugin's output that does not have its format.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, `{text}`, is not {wanted}")]
pub struct FormatError {
    /// The line, from 1.
    pub line: usize,
    /// Its text.
    pub text: String,
    /// What it should have been.
    pub wanted: &'static str,
}

impl Error {
    /// A guest whose console was closed.
    pub(crate) fn gone(guest: &str) -> Error {
        Error::Gone { guest: guest.to_owned(), how: "the line to its agent was closed".to_owned() }
    }
}

/// Adds the operation to an input or output error.
pub(crate) trait IoContext<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
