//! `fairlane up` as a process. Its policy, its control socket and its log are in one directory.
#![allow(dead_code)] // each test program uses some of it

use fairlane_core::packet::Mac;
use fairlane_engine::snapshot::{PortState, Snapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

/// A running daemon, killed on drop.
pub(crate) struct Daemon {
    process: Child,
    directory: PathBuf,
}

impl Daemon {
    /// Starts a daemon with a policy, in which `DIR` stands for the directory, and waits until it serves. `spawn` starts the process.
    pub(crate) fn start(directory: &Path, policy: &str, spawn: impl FnOnce(Command) -> io::Result<Child>) -> Daemon {
        write_policy(directory, policy);
        Daemon::serve(directory, spawn)
    }

    /// Starts a daemon with the policy file that is in the directory.
    pub(crate) fn serve(directory: &Path, spawn: impl FnOnce(Command) -> io::Result<Child>) -> Daemon {
        Daemon::launch(directory, Command::new(env!("CARGO_BIN_EXE_fairlane")), spawn)
    }

    /// The same by a command, which is given the program's arguments.
    pub(crate) fn launch(
        directory: &Path,
        mut command: Command,
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Daemon {
        let log = File::options().create(true).append(true).open(directory.join("daemon.log")).expect("a log");
        command.args(["up", "--log", "error"]).arg(policy_file(directory)).stdin(Stdio::null()).stderr(log);
        let process = spawn(command).expect("the daemon starts");
        let mut daemon = Daemon { process, directory: directory.to_owned() };
        let control = daemon.control();
        while UnixStream::connect(&control).is_err() {
            assert!(daemon.is_running(), "the daemon did not start\n{}", daemon.log());
            thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    /// Starts a process that takes over from this one, and waits until it has; none if it fails. The command is given the program's
    /// arguments; `spawn` starts the process.
    pub(crate) fn succeeded_by(
        &self,
        mut command: Command,
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Option<Daemon> {
        let log = File::options().create(true).append(true).open(self.directory.join("daemon.log")).expect("a log");
        command.args(["up", "--take-over", "--log", "error"]).arg(policy_file(&self.directory));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = spawn(command).expect("it starts");
        let mut line = String::new();
        let said = BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line);
        let successor = Daemon { process, directory: self.directory.clone() };
        (said.is_ok() && line == "taken over\n").then_some(successor)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("a child process")
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs `fairlane ctl` with these arguments.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(["ctl", "--control"]).arg(self.control()).args(arguments).output().expect("ctl runs")
    }

    /// The daemon's counters and states.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let output = self.ctl(&["show", "--json"]);
        assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
        serde_json::from_slice(&output.stdout).expect("a snapshot")
    }

    /// Whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("a child process").is_none()
    }

    /// The errors that it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("daemon.log")).unwrap_or_default()
    }

    /// Sends the daemon a signal that ends it, and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.process.id() as i32), signal).expect("the daemon runs");
        self.wait()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn policy_file(directory: &Path) -> PathBuf {
    directory.join("policy.toml")
}

/// Writes the policy file of a daemon in this directory. Returns its path.
pub(crate) fn write_policy(directory: &Path, policy: &str) -> PathBuf {
    let text = policy.replace("DIR", directory.to_str().expect("the path of a temporary directory is valid UTF-8"));
    let file = policy_file(directory);
    std::fs::write(&file, text).expect("the policy is written");
    file
}

/// The section of a policy for a vif, whose socket has the vif's name.
pub(crate) fn vif_text(name: &str, link: &str, mac: [u8; 6]) -> String {
    let mac = Mac(mac);
    format!("[[vif]]\nname = \"{name}\"\nlink = \"{link}\"\nsocket = \"DIR/{name}.sock\"\nmac = \"{mac}\"\n")
}

/// The port of a vif in a snapshot.
pub(crate) fn vif<'a>(snapshot: &'a Snapshot, name: &str) -> &'a PortState {
    &snapshot.vifs.iter().find(|vif| vif.name == name).expect("a vif of the policy").port
}
