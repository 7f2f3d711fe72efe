//! The lab's handle of an agent, which executes commands on a node.
//!
//! An agent is reached over a line: a socket that is the other end of a console. The agent of a host forwards requests to
//! its guests' agents; those share the host's line and are told apart by name.

use std::{
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use fairlane_agent::{Command, Message, Outcome, Request};

use crate::{
    error::Error,
    job::{Job, Switchboard},
    script::Transport,
};

/// An agent that accepts requests. Clones refer to the same agent.
#[derive(Clone)]
pub struct Agent {
    name: String,
    /// For a guest's agent reached through its host's: its name on the host's line.
    to: Option<String>,
    line: Arc<Line>,
}

/// The connection to one or more agents.
struct Line {
    transport: Transport,
    switchboard: Mutex<Switchboard>,
}

impl Agent {
    /// Opens the line, with a thread that reads `answers` until end of file. The job ends when the agent is ready.
    pub(crate) fn listen(
        name: &str,
        transport: Transport,
        answers: impl Read + Send + 'static,
        limit: Duration,
    ) -> Result<(Agent, Job), Error> {
        let limit = limit * transport.time_factor();
        let mut switchboard = Switchboard::default();
        // A replayed request may be answered before this process makes it.
        transport.ids().into_iter().for_each(|id| switchboard.expect(id));
        let answer = switchboard.connect(0);
        let ready = Job::new(name.to_owned(), answer, Instant::now() + limit, limit);
        let line = Arc::new(Line { transport, switchboard: Mutex::new(switchboard) });
        let agent = Agent { name: name.to_owned(), to: None, line: line.clone() };
        thread::spawn(move || listen(answers, &line.switchboard));
        Ok((agent, ready))
    }

    /// The name of the machine it runs on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The agent of the guest `name` of this agent's host. Requests reach it through this agent, once the job of
    /// `Command::Attach` has ended.
    pub(crate) fn guest(&self, name: &str) -> Agent {
        Agent { name: name.to_owned(), to: Some(name.to_owned()), line: self.line.clone() }
    }

    /// Starts a command and does not wait for it.
    ///
    /// # Errors
    /// [`Error::Gone`] if its machine has ended; [`Error::Script`] on a machine that replays a script.
    pub fn start_job(&self, run: Command) -> Result<Job, Error> {
        self.start_job_later(0.0, run)
    }

    /// As [`Agent::start_job`], with a delay in seconds, which the agent itself waits for.
    ///
    /// # Errors
    /// As [`Agent::start_job`].
    pub fn start_job_later(&self, delay: f64, run: Command) -> Result<Job, Error> {
        let line = &self.line;
        let patience = Duration::from_secs(20) * line.transport.time_factor();
        let work = Duration::from_secs_f64((delay + duration(&run)).clamp(0.0, 86_400.0));
        let deadline = Instant::now() + work * line.transport.time_factor() + patience;
        let mut switchboard = line.switchboard.lock().expect("no thread panics while it dispatches");
        let id = switchboard.unused_id();
        let answer = switchboard.connect(id);
        let after = switchboard.received();
        // Sent under the lock, so that lines are not interleaved.
        line.transport.send(&self.name, after, Request { id, to: self.to.clone(), delay, run })?;
        Ok(Job::new(self.name.clone(), answer, deadline, patience))
    }

    /// Runs a command and waits for its outcome.
    ///
    /// # Errors
    /// As [`Job::wait`].
    pub fn run(&self, run: Command) -> Result<Outcome, Error> {
        self.start_job(run)?.wait()
    }

    /// Runs a program on the agent's node and returns its standard output.
    ///
    /// # Errors
    /// [`Error::Failed`] with its standard error if it fails; and as [`Job::wait`].
    pub fn output(&self, argv: &[&str]) -> Result<String, Error> {
        match self.run(Command::Run { argv: owned(argv) })? {
            Outcome::Ran { status: Some(0), stdout, .. } => Ok(stdout),
            Outcome::Ran { stderr, .. } => Err(self.failed(format!("{}: {}", argv.join(" "), stderr.trim()))),
            other => Err(self.failed(format!("the answer to a command that runs a program is {other:?}"))),
        }
    }

    /// Runs a program again and again until it succeeds and prints `text`; returns the last standard output.
    ///
    /// # Errors
    /// [`Error::Failed`] if it does not within 20 seconds; and as [`Job::wait`].
    pub(crate) fn await_output(&self, argv: &[&str], text: &str) -> Result<String, Error> {
        const SECONDS: f64 = 20.0;
        match self.run(Command::Await { argv: owned(argv), text: text.to_owned(), seconds: SECONDS })? {
            Outcome::Ran { stdout, .. } => Ok(stdout),
            other => Err(self.failed(format!("the answer to a command that runs a program is {other:?}"))),
        }
    }

    /// Reads a file on the agent's node.
    ///
    /// # Errors
    /// As [`Job::wait`].
    pub(crate) fn read(&self, path: &str) -> Result<String, Error> {
        match self.run(Command::Read { path: path.into() })? {
            Outcome::Text(text) => Ok(text),
            other => Err(self.failed(format!("the answer to a command that reads a file is {other:?}"))),
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Failed { guest: self.name.clone(), reason }
    }
}

fn owned(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

/// Reads the answers until end of file and passes each message to its job. Lines that are no messages are kernel output.
fn listen(answers: impl Read, switchboard: &Mutex<Switchboard>) {
    let mut input = BufReader::new(answers);
    let mut line = Vec::new();
    while input.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        if let Ok(Message { id, event }) = serde_json::from_slice(&line) {
            switchboard.lock().expect("no thread panics while it dispatches").dispatch(id, event);
        }
        line.clear();
    }
    switchboard.lock().expect("no thread panics while it dispatches").close();
}

/// How long a command itself takes at most, in seconds.
fn duration(command: &Command) -> f64 {
    match command {
        Command::UdpSend(spec) => spec.seconds,
        Command::TcpSend(spec) => spec.seconds,
        Command::UdpReceive(spec) | Command::TcpReceive(spec) => spec.seconds,
        Command::Ping(spec) => f64::from(spec.count) * spec.interval + spec.patience,
        Command::DelaySend(spec) => f64::from(spec.count) * spec.interval + spec.patience,
        Command::TransferSend(spec) => spec.seconds,
        // A transfer may stall many times; no stall may count as a missing answer.
        Command::DigestSend(_) => 600.0,
        Command::DelayServe(spec) | Command::TransferServe(spec) | Command::DigestServe(spec) => spec.seconds,
        Command::RequestServe(spec) => spec.seconds.unwrap_or(86_400.0),
        Command::RequestSend(spec) => spec.seconds + spec.timeout,
        Command::Processors(spec) => spec.seconds,
        // The doctor reads before and after that time and runs tools, which may take long in emulation.
        Command::Doctor(spec) => spec.seconds + 40.0,
        Command::Proxy(spec) => spec.seconds,
        Command::MpiRun(spec) => spec.seconds,
        Command::MpiServe(spec) => spec.seconds,
        Command::Busy(spec) => spec.seconds,
        Command::Await { seconds, .. } => *seconds,
        Command::Disk(spec) => spec.seconds,
        // In emulation, on a busy host, a program may take this long; so may a guest's boot.
        Command::Run { .. } | Command::Symbols { .. } => 40.0,
        Command::Attach { .. } | Command::Spawn { .. } => 180.0,
        Command::Hello
        | Command::Counters
        | Command::Read { .. }
        | Command::Write { .. }
        | Command::Mark
        | Command::PowerOff => 0.0,
    }
}
