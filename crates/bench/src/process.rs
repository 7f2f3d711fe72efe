//! A program in its own process group: its output is read, and the group is killed at the end.

use anyhow::{Context, Result, bail};
use fairlane_lab::interrupt;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Number of last lines that an error shows.
const TAIL: usize = 12;

/// How often [`Process::ready`] checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running program. It is killed with its group on drop, and by the kernel if this process is killed.
pub(crate) struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    tail: VecDeque<String>,
}

impl Process {
    /// Starts a program without input. `words` are the program and its arguments.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start<W: AsRef<OsStr>>(words: &[W], environment: &[(&str, &OsStr)]) -> Result<Process> {
        let name = words[0].as_ref().to_string_lossy().into_owned();
        let (output, input) = std::io::pipe()?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(words).envs(environment.iter().copied());
        command.process_group(0).stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
        let child = command.spawn().with_context(|| format!("start {name} with setpriv"))?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).split(b'\n').map_while(std::io::Result::ok);
            let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
            // Ends when the receiver is dropped.
            lines.try_for_each(|line| sender.send(line))
        });
        Ok(Process { name, child, lines, tail: VecDeque::new() })
    }

    /// Waits until `ready` returns true. `what` describes the condition.
    ///
    /// # Errors
    /// The program ended, or is not ready in time, or the run was interrupted.
    pub(crate) fn ready(&mut self, what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        let (mut ended, mut is_ready) = (false, false);
        while !ended && !is_ready && Instant::now() < deadline {
            interrupt::check()?;
            ended = !matches!(self.child.try_wait(), Ok(None));
            is_ready = ready();
            if !is_ready {
                thread::sleep(POLL_INTERVAL);
            }
        }
        if ended || !is_ready {
            self.keep_tail();
            let how = if ended { "ended before".to_owned() } else { format!("took over {} s for", limit.as_secs()) };
            bail!("{} {how} {what}{}", self.name, self.last_lines());
        }
        Ok(())
    }

    /// Stops the group's threads where they are, until [`Process::resume`].
    ///
    /// # Errors
    /// The group has ended.
    pub(crate) fn suspend(&mut self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// As [`Process::suspend`], for a program whose main thread does not precede the one that polls, whose name begins with `prefix`:
    /// the latter handles the signal. The former would have to wait for its core.
    ///
    /// # Errors
    /// The program ended, or has no such thread.
    pub(crate) fn suspend_by(&mut self, prefix: &str) -> Result<()> {
        let threads = self.threads(prefix);
        let thread = threads.first().with_context(|| format!("{} has no thread {prefix}", self.name))?;
        Ok(kill(Pid::from_raw(thread.parse()?), Signal::SIGSTOP)?)
    }

    /// Lets the group's threads continue.
    ///
    /// # Errors
    /// The group has ended.
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.keep_tail();
            bail!("{} ended ({status}){}", self.name, self.last_lines());
        }
        Ok(killpg(Pid::from_raw(self.child.id() as i32), signal)?)
    }

    /// Waits until the program ends by itself.
    ///
    /// # Errors
    /// It fails, or runs for longer than `limit`, or the run was interrupted.
    pub(crate) fn finish(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            interrupt::check()?;
            self.keep_tail();
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} failed ({status}){}", self.name, self.last_lines()),
                None if Instant::now() > deadline => {
                    bail!("{} was not done in {} s{}", self.name, limit.as_secs(), self.last_lines())
                }
                None => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// The identifiers of its threads whose name begins with `prefix`.
    pub(crate) fn threads(&self, prefix: &str) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let named = tasks.filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(prefix))
        });
        named.map(|task| task.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Keeps the last lines that the program has printed so far.
    fn keep_tail(&mut self) {
        self.tail.extend(self.lines.try_iter());
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    fn last_lines(&self) -> String {
        let lines: Vec<String> = self.tail.iter().map(|line| format!("\n    {line}")).collect();
        format!("; its last lines:{}", lines.concat())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Before the wait, its id cannot belong to another group.
        let _ = killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Runs a program to its end. Returns its output.
///
/// # Errors
/// It cannot be started, or fails. The message has its standard error.
pub(crate) fn output<W: AsRef<OsStr>>(words: &[W]) -> Result<String> {
    let line = || words.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut command = Command::new(&words[0]);
    let output = command.args(&words[1..]).stdin(Stdio::null()).output().with_context(line)?;
    if !output.status.success() {
        bail!("{}: {}", line(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
