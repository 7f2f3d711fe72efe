//! Runs the real binary in a temporary directory.

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

/// A policy with one vif on a link with a wire.
pub(crate) const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "near"
rate = "100Mbit/s"
uplink = { wire = "far" }
[[link]]
name = "far"
[[vif]]
name = "web"
link = "near"
socket = "DIR/web.sock"
weight = 30
min_rate = "20Mbit/s"
"#;

/// The result of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Outcome {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Asserts that a run succeeded and printed `out`.
#[track_caller]
pub(crate) fn assert_done(outcome: &Outcome, out: &str) {
    assert_eq!((outcome.code, outcome.out.as_str(), outcome.err.as_str()), (Some(0), out, ""));
}

/// Asserts that a run failed with this status, and with `err` on standard error.
#[track_caller]
pub(crate) fn assert_refused(outcome: &Outcome, code: i32, err: &str) {
    assert_eq!((outcome.code, outcome.out.as_str(), outcome.err.as_str()), (Some(code), "", err));
}

/// A directory with policies and sockets; `DIR` in a policy's text and in arguments stands for it.
pub(crate) struct Workspace(tempfile::TempDir);

impl Workspace {
    /// An empty directory.
    pub(crate) fn new() -> Workspace {
        Workspace(tempfile::tempdir().unwrap())
    }

    /// A directory with [`POLICY`] in `policy.toml`.
    pub(crate) fn with_policy() -> Workspace {
        let workspace = Workspace::new();
        workspace.write("policy.toml", POLICY);
        workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn expand(&self, text: &str) -> String {
        text.replace("DIR", self.0.path().to_str().unwrap())
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), self.expand(text)).unwrap();
    }

    /// Writes a drop-in file of `policy.toml`.
    pub(crate) fn write_drop_in(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path("policy.d")).unwrap();
        self.write(&format!("policy.d/{name}"), text);
    }

    /// The names of all entries, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(self.expand(arguments).split_whitespace()).env_remove("RUST_LOG").current_dir(self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end. In its output, `DIR` replaces the directory.
    pub(crate) fn run(&self, arguments: &str) -> Outcome {
        self.run_with_input(arguments, "")
    }

    /// The same with text at its standard input.
    pub(crate) fn run_with_input(&self, arguments: &str, input: &str) -> Outcome {
        let piped = |command: &mut Command| {
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
            // A command may end without reading it.
            let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
            child.wait_with_output()
        };
        self.outcome(piped(&mut self.command(arguments)).unwrap())
    }

    /// Runs another program in the directory.
    pub(crate) fn run_program(&self, program: &str, arguments: &[&str]) -> Outcome {
        let output = Command::new(program).args(arguments).current_dir(self.0.path()).stdin(Stdio::null()).output();
        self.outcome(output.unwrap())
    }

    fn outcome(&self, output: Output) -> Outcome {
        let mut outcome = Outcome::from(output);
        for text in [&mut outcome.out, &mut outcome.err] {
            *text = text.replace(self.0.path().to_str().unwrap(), "DIR");
        }
        outcome
    }

    /// Runs `fairlane ctl` with the backend of this directory.
    pub(crate) fn ctl(&self, arguments: &str) -> Outcome {
        self.run(&format!("ctl --control DIR/control.sock {arguments}"))
    }

    /// Runs a command whose standard output is a closed pipe.
    pub(crate) fn run_unread(&self, arguments: &str) -> Outcome {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Outcome::from(self.command(arguments).stdout(writer).output().unwrap())
    }

    /// Starts a backend and waits until it serves.
    pub(crate) fn up(&self) -> Backend {
        self.up_with("", &[])
    }

    /// The same, with additional arguments and environment variables.
    pub(crate) fn up_with(&self, arguments: &str, environment: &[(&str, &str)]) -> Backend {
        let mut command = self.command(&format!("up policy.toml {arguments}"));
        command.envs(environment.iter().map(|(name, value)| (name, self.expand(value))));
        self.started(command)
    }

    /// The same, with a limit on open file descriptors.
    pub(crate) fn up_with_descriptors(&self, most: u32) -> Backend {
        self.up_after(&format!("ulimit -n {most}"))
    }

    /// The same, in a shell that has run a command.
    pub(crate) fn up_after(&self, command: &str) -> Backend {
        let script = format!("{command}; exec {} up policy.toml", env!("CARGO_BIN_EXE_fairlane"));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env_remove("RUST_LOG").current_dir(self.0.path()).stdin(Stdio::null());
        self.started(command)
    }

    /// Starts a backend whose log is a full pipe that nobody reads, and waits until it answers.
    pub(crate) fn up_with_full_log(&self) -> (Backend, PipeReader) {
        const BYTES: usize = 4096;
        let (reader, mut writer) = std::io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(BYTES as i32)).unwrap();
        writer.write_all(&[b'\n'; BYTES]).unwrap();
        let child = self.command("up policy.toml").stderr(writer).spawn().unwrap();
        let backend = Backend { child, log: None, startup_log: String::new(), metrics: None };
        for _ in 0..600 {
            if self.ctl("show").code == Some(0) {
                return (backend, reader);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("no answer at the control socket");
    }

    fn started(&self, mut command: Command) -> Backend {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut backend = Backend { child, log: Some(log), startup_log: String::new(), metrics: None };
        backend.startup_log = backend.read_log_until("serving ");
        let log = &backend.startup_log;
        let metrics = log.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics"));
        backend.metrics = metrics.map(|(address, _)| address.to_owned());
        backend
    }
}

/// A running backend, killed on drop.
pub(crate) struct Backend {
    child: Child,
    log: Option<BufReader<ChildStderr>>,
    /// The log lines until it served.
    pub startup_log: String,
    /// The address of the metrics.
    pub metrics: Option<String>,
}

impl Backend {
    /// Reads the log up to a line with this text. Returns all lines read.
    pub(crate) fn read_log_until(&mut self, text: &str) -> String {
        let mut read = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.log.as_mut().unwrap().read_line(&mut line).unwrap(), 0, "no {text:?} in:\n{read}");
            read += &line;
            if line.contains(text) {
                return read;
            }
        }
    }

    /// Reads the log until the process ends.
    pub(crate) fn rest_of_log(&mut self) -> String {
        std::io::read_to_string(self.log.as_mut().unwrap()).unwrap()
    }

    /// Closes the log, so that it cannot be written any more.
    pub(crate) fn close_log(&mut self) {
        self.log = None;
    }

    /// The processor time it used, in hundredths of a second.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let numbers = stat.rsplit_once(')').unwrap().1.split_whitespace();
        numbers.skip(11).take(2).map(|number| number.parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Its threads: id, name and `/proc` status. Threads that end meanwhile are left out.
    pub(crate) fn threads(&self) -> Vec<(Pid, String, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let thread = |task: std::path::PathBuf| {
            let text = |name: &str| std::fs::read_to_string(task.join(name)).ok();
            let number = task.file_name()?.to_str()?.parse().ok()?;
            Some((Pid::from_raw(number), text("comm")?.trim().to_owned(), text("status")?))
        };
        tasks.filter_map(|task| thread(task.ok()?.path())).collect()
    }

    /// The number of open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end. Returns its exit status.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // It has usually ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
