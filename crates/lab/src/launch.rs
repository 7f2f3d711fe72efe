//! The command that starts a machine.

use std::{
    path::{Path, PathBuf},
    process::Command as Program,
    sync::LazyLock,
    time::Duration,
};

use crate::program::output;

/// A command that starts a machine, and what is known about it.
pub(crate) struct Launch {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Files in its directory, in which it starts: links by name.
    pub links: Vec<(String, PathBuf)>,
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
            links: Vec::new(),
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

    /// The same with its threads taking turns: all on one CPU at the same real-time priority, so that each runs until it waits.
    pub(crate) fn in_turns(self, cpu: usize) -> Launch {
        let cpu = cpu.to_string();
        let program = self.program.display().to_string();
        let words = [&REAL_TIME[1..], &["taskset", "--cpu-list", &cpu, &program]].concat();
        let arguments = words.into_iter().map(str::to_owned).chain(self.arguments).collect();
        Launch { program: REAL_TIME[0].into(), arguments, ..self }
    }
}

/// Starts a program at a real-time priority.
const REAL_TIME: [&str; 3] = ["chrt", "--fifo", "1"];

/// Whether this process may start programs at a real-time priority, which needs root or a limit for it (RLIMIT_RTPRIO).
pub(crate) fn may_take_turns() -> bool {
    static MAY: LazyLock<bool> =
        LazyLock::new(|| output(Program::new(REAL_TIME[0]).args(&REAL_TIME[1..]).arg("true")).is_ok());
    *MAY
}
