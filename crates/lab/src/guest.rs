//! A guest that runs: booted, given work, ended. Nothing of it outlives its [`Guest`], nor this process.

use std::{
    fs::{self, File},
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use fairlane_agent::Command;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    agent::Agent,
    console::last_lines,
    error::{Error, IoContext},
    job::Job,
    launch::Launch,
    script::{Follow, Way},
};

/// How a machine is talked with.
#[derive(Clone, Debug)]
pub(crate) enum Talk {
    /// Over its standard input, which is its agent's console.
    Live,
    /// The same, and what it is asked is kept in this file.
    Rehearsal(PathBuf),
    /// It has the script with it, and answers into a file, which is there.
    Performance { script: PathBuf, answers: PathBuf },
}

/// A guest that is up.
pub struct Guest {
    agent: Agent,
    home: PathBuf,
    process: Process,
}

impl Guest {
    /// Starts a machine and waits until its agent serves. What it prints is kept in `log`.
    pub(crate) fn start(name: &str, log: &Path, agent: &Path, machine: Launch) -> Result<Guest, Error> {
        Guest::start_for(&Talk::Live, name, log, agent, machine)
    }

    /// As [`Guest::start`], for a talk of another kind.
    pub(crate) fn start_for(
        talk: &Talk,
        name: &str,
        log: &Path,
        agent: &Path,
        machine: Launch,
    ) -> Result<Guest, Error> {
        let (guest, ready) = Guest::spawn(talk, name, log, agent, &machine)?;
        ready.wait().map(|_| guest).map_err(|error| {
            let silent = matches!(error, Error::Silent { .. });
            let reason = match error {
                Error::Interrupted => return error,
                Error::Silent { patience, .. } => format!("did not come up within {} s", patience.as_secs()),
                Error::Failed { reason, .. } => format!("could not prepare itself: {reason}"),
                _ => "ended before it was up".to_owned(),
            };
            Error::Boot {
                guest: name.to_owned(),
                image: format!("{}, {}", machine.system, machine.image).into(),
                reason,
                silent,
                log: log.to_owned(),
                console: last_lines(log, ""),
            }
        })
    }

    /// Starts a machine. The job ends when its agent serves.
    pub(crate) fn spawn(
        talk: &Talk,
        name: &str,
        log: &Path,
        agent: &Path,
        machine: &Launch,
    ) -> Result<(Guest, Job), Error> {
        let home = tempfile::Builder::new().prefix("fairlane-").tempdir();
        let home = home.doing(|| "a temporary directory".to_owned())?;
        let (console, theirs) = UnixStream::pair().doing(|| "a pair of sockets".to_owned())?;
        // Appended to by the guest's own programs as well.
        let output = File::create(log).and_then(|_| File::options().append(true).open(log));
        let output = output.doing(|| log.display().to_string())?;
        let errors = output.try_clone().doing(|| log.display().to_string())?;
        let child = Program::new(agent)
            .arg("keep")
            .arg(home.path())
            .arg(&machine.program)
            .args(&machine.arguments)
            .current_dir(home.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output)
            .stderr(errors)
            // A group of its own: an interrupt from the terminal is for this process to handle.
            .process_group(0)
            .spawn()
            .doing(|| agent.display().to_string())?;
        // The directory is the keeper's to remove, so that it goes even where this process is killed.
        let home = home.keep();
        let process = Process { keeper: child, console };

        let lines = || process.console.try_clone().doing(|| "the guest's console".to_owned());
        let (agent, ready) = match talk {
            Talk::Live => Agent::listen(name, Way::Live(lines()?), lines()?, machine.limit)?,
            Talk::Rehearsal(script) => {
                let way = Way::Rehearsal(lines()?, Mutex::default(), script.clone());
                Agent::listen(name, way, lines()?, machine.limit)?
            }
            Talk::Performance { script, answers } => {
                let file = File::open(answers).doing(|| answers.display().to_string())?;
                let answers = Follow { file, end: lines()? };
                Agent::listen(name, Way::performance(script)?, answers, machine.limit)?
            }
        };
        Ok((Guest { agent, home, process }, ready))
    }

    /// What takes its work.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// A directory of its own, which goes with it.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Takes the CPU from it until [`Guest::resume`], as a host does that has others to run.
    ///
    /// # Errors
    /// It has ended.
    pub fn suspend(&self) -> Result<(), Error> {
        self.signal(Signal::SIGSTOP)
    }

    /// Gives the CPU back to it.
    ///
    /// # Errors
    /// It has ended.
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::SIGCONT)
    }

    /// Signals the process that is the guest's kernel or its emulator: the keeper's only child.
    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let keeper = self.process.keeper.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let done = child.map(|child| kill(Pid::from_raw(child), signal));
        let how = "it has no process any more".to_owned();
        let gone = || Error::Gone { guest: self.agent.name().to_owned(), how };
        done.and_then(Result::ok).ok_or_else(gone)
    }

    /// Powers the guest off and waits for it to end; one that takes more than five seconds is killed.
    ///
    /// # Errors
    /// As [`Job::wait`]; the guest has ended even so.
    pub fn stop(mut self) -> Result<(), Error> {
        self.agent.run(Command::PowerOff)?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if self.process.keeper.try_wait().doing(|| format!("wait for guest {}", self.agent.name()))?.is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// A guest's processes, all ended when dropped.
struct Process {
    keeper: Child,
    /// What the keeper watches as well: its end is the guest's.
    console: UnixStream,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.console.shutdown(Shutdown::Both);
        let _ = self.keeper.wait();
    }
}
