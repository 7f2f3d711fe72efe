//! The command that starts a machine.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// A command that starts a machine, and what is known about it.
pub(crate) struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// The emulator or the like that runs it, in words, with its version.
    pub system: String,
    /// The files that it boots.
    pub image: String,
    /// How long it may take to come up.
    pub limit: Duration,
}

/// The description of a machine that is a process of this host.
pub(crate) const PROCESS: &str = "a process of this host, in a network namespace";

impl Launch {
    /// An agent as a process of this host; in a network namespace once it is [placed](Launch::placed).
    pub(crate) fn process(agent: &Path) -> Launch {
        Launch {
            program: agent.to_owned(),
            arguments: vec!["serve".to_owned()],
            system: PROCESS.to_owned(),
            image: agent.display().to_string(),
            limit: Duration::from_secs(20),
        }
    }

    /// The same in a network namespace of the host (`new`, `beside=PID`, `inside=PID`) and on the given CPUs; on any CPU if the list
    /// is empty. See `fairlane-agent place`.
    pub(crate) fn placed(self, agent: &Path, network: &str, cpus: &[usize]) -> Launch {
        let cpus = match cpus {
            [] => "any".to_owned(),
            cpus => cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
        };
        let place = ["place".to_owned(), network.to_owned(), cpus, self.program.display().to_string()];
        let arguments = place.into_iter().chain(self.arguments).collect();
        Launch { program: agent.to_owned(), arguments, ..self }
    }
}
