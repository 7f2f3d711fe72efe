//! An agent from the host's side: what takes work, wherever it runs.
//!
//! Agents are reached over a line, a socket that is a console's other end. An agent may itself pass requests on to
//! the guests of its own host: those share the line, and are told apart by name.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use fairlane_agent::{Command, Message, Outcome, Request, encode};

use crate::{
    error::{Error, IoContext},
    job::{Job, Switchboard},
};

/// An agent that serves. Clones reach the same one.
#[derive(Clone)]
pub struct Agent {
    name: String,
    /// The agent is behind another, on whose line it has this name.
    to: Option<String>,
    line: Arc<Line>,
}

/// The way to one or more agents.
struct Line {
    console: UnixStream,
    switchboard: Mutex<Switchboard>,
}

impl Agent {
    /// Opens the line over `console`, with a thread that reads it to its end. The job ends when the agent is ready.
    pub(crate) fn listen(name: &str, console: UnixStream, limit: Duration) -> Result<(Agent, Job), Error> {
        let lines = console.try_clone().doing(|| format!("the console of {name}"))?;
        let mut switchboard = Switchboard::default();
        let ready = Job::new(name.to_owned(), switchboard.connect(0), Instant::now() + limit, limit);
        let line = Arc::new(Line { console, switchboard: Mutex::new(switchboard) });
        let agent = Agent { name: name.to_owned(), to: None, line: line.clone() };
        thread::spawn(move || listen(lines, &line.switchboard));
        Ok((agent, ready))
    }

    /// The name of the machine it serves.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The agent called `name` of a guest of this agent's host, reached over it once the job of attaching it ends.
    pub(crate) fn behind(&self, name: &str) -> Agent {
        Agent { name: name.to_owned(), to: Some(name.to_owned()), line: self.line.clone() }
    }

    /// Gives the agent work, and does not wait for it.
    ///
    /// # Errors
    /// [`Error::Gone`] where its machine has ended.
    pub fn start_job(&self, run: Command) -> Result<Job, Error> {
        const PATIENCE: Duration = Duration::from_secs(20);
        let deadline = Instant::now() + Duration::from_secs_f64(duration(&run).clamp(0.0, 86_400.0)) + PATIENCE;
        let mut switchboard = self.line.switchboard.lock().expect("no thread panics while it dispatches");
        let id = switchboard.unused_id();
        let events = switchboard.connect(id);
        // Written under the lock, so that lines do not mix.
        (&self.line.console)
            .write_all(&encode(&Request { id, to: self.to.clone(), run }))
            .map_err(|_| Error::Gone { guest: self.name.clone() })?;
        Ok(Job::new(self.name.clone(), events, deadline, PATIENCE))
    }

    /// Gives the agent work and waits for its outcome.
    ///
    /// # Errors
    /// As [`Job::wait`].
    pub fn run(&self, run: Command) -> Result<Outcome, Error> {
        self.start_job(run)?.wait()
    }

    /// Has the agent run a program to its end; answers what it printed.
    ///
    /// # Errors
    /// [`Error::Failed`] where it fails, with its words; and as [`Job::wait`].
    pub fn output(&self, argv: &[&str]) -> Result<String, Error> {
        let failed = |reason| Error::Failed { guest: self.name.clone(), reason };
        match self.run(Command::Run { argv: argv.iter().map(|word| (*word).to_owned()).collect() })? {
            Outcome::Ran { status: Some(0), stdout, .. } => Ok(stdout),
            Outcome::Ran { stderr, .. } => Err(failed(format!("{}: {}", argv.join(" "), stderr.trim()))),
            other => Err(failed(format!("a program was to run, and the answer is {other:?}"))),
        }
    }
}

/// Reads the console to its end and passes each message to its job; other lines are noise.
fn listen(console: UnixStream, switchboard: &Mutex<Switchboard>) {
    let mut input = BufReader::new(console);
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if let Ok(Message { id, event }) = serde_json::from_slice(&line) {
            switchboard.lock().expect("no thread panics while it writes").dispatch(id, event);
        }
        line.clear();
    }
    switchboard.lock().expect("no thread panics while it writes").hang_up();
}

/// How long the work itself takes, in seconds.
fn duration(command: &Command) -> f64 {
    match command {
        Command::UdpSend(spec) => spec.seconds,
        Command::TcpSend(spec) => spec.seconds,
        Command::UdpReceive(spec) | Command::TcpReceive(spec) => spec.seconds,
        Command::Ping(spec) => f64::from(spec.count) * spec.interval + spec.patience,
        Command::DelaySend(spec) => f64::from(spec.count) * spec.interval + spec.patience,
        Command::TransferSend(spec) => spec.seconds,
        Command::DelayServe(spec) | Command::TransferServe(spec) => spec.seconds,
        Command::AllToAll(spec) => spec.seconds,
        Command::Busy(spec) => spec.seconds,
        Command::Disk(spec) => spec.seconds,
        // Emulated, on a computer that has other work, a program may take so long, and a guest to boot.
        Command::Run { .. } => 40.0,
        Command::Attach { .. } | Command::Spawn { .. } => 100.0,
        Command::Hello
        | Command::Counters
        | Command::Write { .. }
        | Command::Mark
        | Command::Symbols { .. }
        | Command::PowerOff => 0.0,
    }
}
