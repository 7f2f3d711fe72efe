//! The real binary, in a directory of its own.

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

/// A policy of one vif on a wire.
pub const POLICY: &str = r#"control = "DIR/control.sock"
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

/// What a run came to.
#[derive(Debug, PartialEq)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// That a run did what it was told and printed this.
#[track_caller]
pub fn assert_done(ran: &Ran, out: &str) {
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), out, ""));
}

/// That a run ended with this status and these lines on standard error.
#[track_caller]
pub fn assert_refused(ran: &Ran, code: i32, err: &str) {
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(code), "", err));
}

/// A directory with policies and sockets; `DIR` in a policy's text and in arguments stands for it.
pub struct Place(tempfile::TempDir);

impl Place {
    /// An empty one.
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    /// One that has [`POLICY`] in `policy.toml`.
    pub fn with_policy() -> Place {
        let place = Place::new();
        place.write("policy.toml", POLICY);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn filled(&self, text: &str) -> String {
        text.replace("DIR", self.0.path().to_str().unwrap())
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), self.filled(text)).unwrap();
    }

    /// Names of all that is there.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(self.filled(arguments).split_whitespace()).env_remove("RUST_LOG").current_dir(self.0.path());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a command to its end. What it prints has `DIR` for the directory.
    pub fn run(&self, arguments: &str) -> Ran {
        let mut ran = Ran::from(self.command(arguments).output().unwrap());
        for text in [&mut ran.out, &mut ran.err] {
            *text = text.replace(self.0.path().to_str().unwrap(), "DIR");
        }
        ran
    }

    /// Asks the backend of this place.
    pub fn ctl(&self, arguments: &str) -> Ran {
        self.run(&format!("ctl --control DIR/control.sock {arguments}"))
    }

    /// Runs a command whose standard output has no reader.
    pub fn run_unread(&self, arguments: &str) -> Ran {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Ran::from(self.command(arguments).stdout(writer).output().unwrap())
    }

    /// Starts a backend and waits until it serves.
    pub fn up(&self) -> Backend {
        self.up_with("", &[])
    }

    /// The same, with words behind the command's own, and more in its environment.
    pub fn up_with(&self, words: &str, environment: &[(&str, &str)]) -> Backend {
        let mut command = self.command(&format!("up policy.toml {words}"));
        command.envs(environment.iter().map(|(name, value)| (name, self.filled(value))));
        self.started(command)
    }

    /// The same, of a process that may have so many descriptors.
    pub fn up_with_descriptors(&self, most: u32) -> Backend {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {most}; exec {} up policy.toml", env!("CARGO_BIN_EXE_fairlane"));
        command.args(["-c", &script]).env_remove("RUST_LOG").current_dir(self.0.path()).stdin(Stdio::null());
        self.started(command)
    }

    /// Starts one whose log nobody reads and that finds no room for a byte of it, and waits until it answers.
    pub fn up_with_full_log(&self) -> (Backend, PipeReader) {
        const BYTES: usize = 4096;
        let (reader, mut writer) = std::io::pipe().unwrap();
        fcntl(&writer, FcntlArg::F_SETPIPE_SZ(BYTES as i32)).unwrap();
        writer.write_all(&[b'\n'; BYTES]).unwrap();
        let child = self.command("up policy.toml").stderr(writer).spawn().unwrap();
        let backend = Backend { child, log: None, began: String::new(), metrics: None };
        for _ in 0..600 {
            if self.ctl("show").code == Some(0) {
                return (backend, reader);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nobody answers at the control socket");
    }

    fn started(&self, mut command: Command) -> Backend {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut backend = Backend { child, log: Some(log), began: String::new(), metrics: None };
        backend.began = backend.logs("serving ");
        let said = &backend.began;
        let metrics = said.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics"));
        backend.metrics = metrics.map(|(address, _)| address.to_owned());
        backend
    }
}

/// A running backend; killed if a test ends before it.
pub struct Backend {
    child: Child,
    log: Option<BufReader<ChildStderr>>,
    /// What it logged until it served.
    pub began: String,
    /// Where it serves metrics.
    pub metrics: Option<String>,
}

impl Backend {
    /// Reads the log up to a line that has this text, and returns all that was read.
    pub fn logs(&mut self, text: &str) -> String {
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

    /// Reads the log to its end, that of the process.
    pub fn rest_of_log(&mut self) -> String {
        std::io::read_to_string(self.log.as_mut().unwrap()).unwrap()
    }

    /// Reads the log no longer, so that it cannot be written.
    pub fn close_log(&mut self) {
        self.log = None;
    }

    /// The processor time it took, in hundredths of a second.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let numbers = stat.rsplit_once(')').unwrap().1.split_whitespace();
        numbers.skip(11).take(2).map(|number| number.parse::<u64>().unwrap()).sum()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Its threads: number, name, and what `/proc` says of each. One that ends meanwhile is none.
    pub fn threads(&self) -> Vec<(Pid, String, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let thread = |task: std::path::PathBuf| {
            let text = |name: &str| std::fs::read_to_string(task.join(name)).ok();
            let number = task.file_name()?.to_str()?.parse().ok()?;
            Some((Pid::from_raw(number), text("comm")?.trim().to_owned(), text("status")?))
        };
        tasks.filter_map(|task| thread(task.ok()?.path())).collect()
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end; its status.
    pub fn ends(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // It has mostly ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
