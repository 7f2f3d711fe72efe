//! An agent from the host's side: what takes work, wherever it runs.
//!
//! Agents are reached over a line, a socket that is a console's other end. An agent may itself pass requests on to
//! the guests of its own host: those share the line, and are told apart by name.

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
    script::Way,
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
    way: Way,
    switchboard: Mutex<Switchboard>,
}

impl Agent {
    /// Opens the line, with a thread that reads `answers` to their end. The job ends when the agent is ready.
    pub(crate) fn listen(
        name: &str,
        way: Way,
        answers: impl Read + Send + 'static,
        limit: Duration,
    ) -> Result<(Agent, Job), Error> {
        let limit = limit * way.patience();
        let mut switchboard = Switchboard::default();
        // What is done without being asked is answered before it is asked for.
        way.ids().into_iter().for_each(|id| switchboard.expect(id));
        let answer = switchboard.connect(0);
        let ready = Job::new(name.to_owned(), answer, Instant::now() + limit, limit);
        let line = Arc::new(Line { way, switchboard: Mutex::new(switchboard) });
        let agent = Agent { name: name.to_owned(), to: None, line: line.clone() };
        thread::spawn(move || listen(answers, &line.switchboard));
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
    /// [`Error::Gone`] where its machine has ended; on a computer with a script [`Error::Script`].
    pub fn start_job(&self, run: Command) -> Result<Job, Error> {
        self.start_job_later(0.0, run)
    }

    /// As [`Agent::start_job`], to begin so many seconds later.
    ///
    /// # Errors
    /// As [`Agent::start_job`].
    pub fn start_job_later(&self, delay: f64, run: Command) -> Result<Job, Error> {
        let line = &self.line;
        let patience = Duration::from_secs(20) * line.way.patience();
        let work = Duration::from_secs_f64((delay + duration(&run)).clamp(0.0, 86_400.0));
        let deadline = Instant::now() + work * line.way.patience() + patience;
        let mut switchboard = line.switchboard.lock().expect("no thread panics while it dispatches");
        let id = switchboard.unused_id();
        let answer = switchboard.connect(id);
        let after = switchboard.heard();
        // Sent under the lock, so that lines do not mix.
        line.way.send(&self.name, after, Request { id, to: self.to.clone(), delay, run })?;
        Ok(Job::new(self.name.clone(), answer, deadline, patience))
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
        match self.run(Command::Run { argv: owned(argv) })? {
            Outcome::Ran { status: Some(0), stdout, .. } => Ok(stdout),
            Outcome::Ran { stderr, .. } => Err(self.failed(format!("{}: {}", argv.join(" "), stderr.trim()))),
            other => Err(self.failed(format!("a program was to run, and the answer is {other:?}"))),
        }
    }

    /// Has the agent run a program until it ends well and prints the text; answers what it printed then.
    ///
    /// # Errors
    /// [`Error::Failed`] where it does not in time, and as [`Job::wait`].
    pub(crate) fn await_output(&self, argv: &[&str], text: &str) -> Result<String, Error> {
        const SECONDS: f64 = 20.0;
        match self.run(Command::Await { argv: owned(argv), text: text.to_owned(), seconds: SECONDS })? {
            Outcome::Ran { stdout, .. } => Ok(stdout),
            other => Err(self.failed(format!("a program was to run, and the answer is {other:?}"))),
        }
    }

    /// Has the agent read a file.
    ///
    /// # Errors
    /// As [`Job::wait`].
    pub(crate) fn read(&self, path: &str) -> Result<String, Error> {
        match self.run(Command::Read { path: path.into() })? {
            Outcome::Text(text) => Ok(text),
            other => Err(self.failed(format!("a file was to be read, and the answer is {other:?}"))),
        }
    }

    fn failed(&self, reason: String) -> Error {
        Error::Failed { guest: self.name.clone(), reason }
    }
}

fn owned(argv: &[&str]) -> Vec<String> {
    argv.iter().map(|word| (*word).to_owned()).collect()
}

/// Reads the answers to their end and passes each message to its job; other lines are noise.
fn listen(answers: impl Read, switchboard: &Mutex<Switchboard>) {
    let mut input = BufReader::new(answers);
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
        // As many standstills as there may be, none of which is to count as an answer that is missing.
        Command::DigestSend(_) => 600.0,
        Command::DelayServe(spec) | Command::TransferServe(spec) | Command::DigestServe(spec) => spec.seconds,
        Command::RequestServe(spec) => spec.seconds.unwrap_or(86_400.0),
        Command::RequestSend(spec) => spec.seconds + spec.timeout,
        Command::Processors(spec) => spec.seconds,
        // It reads before and after that time, and asks tools, which emulated may take long.
        Command::Doctor(spec) => spec.seconds + 40.0,
        Command::Proxy(spec) => spec.seconds,
        Command::MpiRun(spec) => spec.seconds,
        Command::MpiServe(spec) => spec.seconds,
        Command::Busy(spec) => spec.seconds,
        Command::Await { seconds, .. } => *seconds,
        Command::Disk(spec) => spec.seconds,
        // Emulated, on a computer that has other work, a program may take so long, and a guest to boot.
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
