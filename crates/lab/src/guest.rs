//! A running guest. No process or file of it outlives its [`Guest`] or this process.

use std::{
    fs::{self, File},
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{fs::symlink, net::UnixStream, process::CommandExt},
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
    script::{Follow, Transport},
};

/// How the agents of a machine get their requests.
#[derive(Clone, Debug)]
pub(crate) enum ConsoleMode {
    /// Over the emulator's standard input, which is the agent's console.
    Live,
    /// The same, and the requests are recorded in this file.
    Record(PathBuf),
    /// The machine replays the script and writes its answers to a file, which must exist.
    Replay { script: PathBuf, answers: PathBuf },
}

/// A guest whose agent runs.
pub struct Guest {
    agent: Agent,
    home: PathBuf,
    process: Process,
}

impl Guest {
    /// Starts a machine and waits until its agent is ready. Its output is kept in `log`.
    pub(crate) fn start(name: &str, log: &Path, agent: &Path, machine: Launch) -> Result<Guest, Error> {
        Guest::start_for(&ConsoleMode::Live, name, log, agent, machine)
    }

    /// As [`Guest::start`], in another mode.
    pub(crate) fn start_for(
        mode: &ConsoleMode,
        name: &str,
        log: &Path,
        agent: &Path,
        machine: Launch,
    ) -> Result<Guest, Error> {
        let (guest, ready) = Guest::spawn(mode, name, log, agent, &machine)?;
        ready.wait().map(|_| guest).map_err(|error| {
            let silent = matches!(error, Error::Silent { .. });
            let reason = match error {
                Error::Interrupted => return error,
                Error::Silent { patience, .. } => format!("did not come up within {} s", patience.as_secs()),
                Error::Failed { reason, .. } => format!("could not prepare itself: {reason}"),
                _ => "ended before its agent was ready".to_owned(),
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

    /// Starts a machine. The job ends when its agent is ready.
    pub(crate) fn spawn(
        mode: &ConsoleMode,
        name: &str,
        log: &Path,
        agent: &Path,
        machine: &Launch,
    ) -> Result<(Guest, Job), Error> {
        let home = tempfile::Builder::new().prefix("fairlane-").tempdir();
        let home = home.doing(|| "a temporary directory".to_owned())?;
        let (console, theirs) = UnixStream::pair().doing(|| "a pair of sockets".to_owned())?;
        // In append mode: the guest's own programs write to it as well.
        let output = File::create(log).and_then(|_| File::options().append(true).open(log));
        let output = output.doing(|| log.display().to_string())?;
        let errors = output.try_clone().doing(|| log.display().to_string())?;
        for (name, file) in &machine.links {
            symlink(file, home.path().join(name)).doing(|| file.display().to_string())?;
        }
        let child = Program::new(agent)
            .arg("keep")
            .arg(home.path())
            .arg(&machine.program)
            .args(&machine.arguments)
            .current_dir(home.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output)
            .stderr(errors)
            // In its own process group, so that an interrupt from the terminal reaches this process only.
            .process_group(0)
            .spawn()
            .doing(|| agent.display().to_string())?;
        // The keeper removes the directory, even if this process is killed.
        let home = home.keep();
        let process = Process { keeper: child, console };

        let lines = || process.console.try_clone().doing(|| "the guest's console".to_owned());
        let (agent, ready) = match mode {
            ConsoleMode::Live => Agent::listen(name, Transport::Live(lines()?), lines()?, machine.limit)?,
            ConsoleMode::Record(script) => {
                let transport = Transport::Record(lines()?, Mutex::default(), script.clone());
                Agent::listen(name, transport, lines()?, machine.limit)?
            }
            ConsoleMode::Replay { script, answers } => {
                let file = File::open(answers).doing(|| answers.display().to_string())?;
                let answers = Follow { file, end: lines()? };
                Agent::listen(name, Transport::replay(script)?, answers, machine.limit)?
            }
        };
        Ok((Guest { agent, home, process }, ready))
    }

    /// Its agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Its own temporary directory, removed when it ends.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// The switch of the guest's CPUs: the process of its kernel or emulator, which is the keeper's only child.
    ///
    /// # Errors
    /// [`Error::Gone`] if it has ended.
    pub fn switch(&self) -> Result<CpuSwitch, Error> {
        let keeper = self.process.keeper.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let name = self.agent.name();
        child.map(|child| CpuSwitch::of(name, child)).ok_or_else(|| gone(name))
    }

    /// As [`CpuSwitch::suspend`].
    ///
    /// # Errors
    /// [`Error::Gone`] if it has ended.
    pub fn suspend(&self) -> Result<(), Error> {
        self.switch()?.suspend()
    }

    /// As [`CpuSwitch::resume`].
    ///
    /// # Errors
    /// [`Error::Gone`] if it has ended.
    pub fn resume(&self) -> Result<(), Error> {
        self.switch()?.resume()
    }

    /// Powers the guest off and waits until it ends. After five seconds it is killed.
    ///
    /// # Errors
    /// As [`Job::wait`]; the guest has ended in that case too.
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

/// Stops a guest's CPUs and lets them run, as a host does that runs other guests.
#[derive(Clone, Debug)]
pub struct CpuSwitch {
    guest: String,
    process: Pid,
}

impl CpuSwitch {
    /// The switch of a guest that is this process.
    pub(crate) fn of(guest: &str, process: u32) -> CpuSwitch {
        CpuSwitch { guest: guest.to_owned(), process: Pid::from_raw(process.cast_signed()) }
    }

    /// Stops the guest's CPUs until [`CpuSwitch::resume`].
    ///
    /// # Errors
    /// [`Error::Gone`] if it has ended.
    pub fn suspend(&self) -> Result<(), Error> {
        kill(self.process, Signal::SIGSTOP).map_err(|_| gone(&self.guest))
    }

    /// Lets the guest's CPUs run again.
    ///
    /// # Errors
    /// [`Error::Gone`] if it has ended.
    pub fn resume(&self) -> Result<(), Error> {
        kill(self.process, Signal::SIGCONT).map_err(|_| gone(&self.guest))
    }
}

fn gone(guest: &str) -> Error {
    Error::Gone { guest: guest.to_owned(), how: "its process has exited".to_owned() }
}

/// A guest's processes, ended on drop.
struct Process {
    keeper: Child,
    /// The keeper watches the other end: when this one closes, it ends the guest.
    console: UnixStream,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.console.shutdown(Shutdown::Both);
        let _ = self.keeper.wait();
    }
}
