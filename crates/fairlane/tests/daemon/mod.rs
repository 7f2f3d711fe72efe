//! `fairlane up` as a process. Its policy, its control socket and what it complains of are in one directory.
#![allow(dead_code)] // each test program uses its part

use fairlane_core::packet::Mac;
use fairlane_engine::snapshot::{PortState, Snapshot};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

/// A running daemon; ended when dropped.
pub struct Daemon {
    process: Child,
    directory: PathBuf,
}

impl Daemon {
    /// Has one started by the text of a policy, in which `DIR` stands for the directory, and waits until it serves.
    pub fn start(directory: &Path, policy: &str, spawn: impl FnOnce(Command) -> io::Result<Child>) -> Daemon {
        write_policy(directory, policy);
        Daemon::serve(directory, spawn)
    }

    /// The same by the policy that is there.
    pub fn serve(directory: &Path, spawn: impl FnOnce(Command) -> io::Result<Child>) -> Daemon {
        let log = File::options().create(true).append(true).open(directory.join("daemon.log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(["up", "--log", "error"]).arg(policy_file(directory)).stdin(Stdio::null()).stderr(log);
        let process = spawn(command).expect("the daemon starts");
        let mut daemon = Daemon { process, directory: directory.to_owned() };
        let control = daemon.control();
        while UnixStream::connect(&control).is_err() {
            assert!(daemon.lives(), "the daemon did not start\n{}", daemon.log());
            thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    fn control(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks it.
    pub fn ctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(["ctl", "--control"]).arg(self.control()).args(arguments).output().expect("ctl runs")
    }

    /// What is shown of it.
    pub fn snapshot(&self) -> Snapshot {
        let asked = self.ctl(&["show", "--json"]);
        assert!(asked.status.success(), "{}\n{}", String::from_utf8_lossy(&asked.stderr), self.log());
        serde_json::from_slice(&asked.stdout).expect("a snapshot")
    }

    /// Whether it lives.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().expect("a child").is_none()
    }

    /// What it complained of.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.join("daemon.log")).unwrap_or_default()
    }

    /// Sends it a signal that ends it, and waits for its end.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        kill(Pid::from_raw(self.process.id() as i32), signal).expect("it lives");
        self.process.wait().expect("a child")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have been ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn policy_file(directory: &Path) -> PathBuf {
    directory.join("policy.toml")
}

/// Writes the policy that a daemon in this directory starts by, or reads again; answers its file.
pub fn write_policy(directory: &Path, policy: &str) -> PathBuf {
    let text = policy.replace("DIR", directory.to_str().expect("a temporary directory has a plain name"));
    let file = policy_file(directory);
    std::fs::write(&file, text).expect("the policy is written");
    file
}

/// The part of a policy about a vif, its socket named after it.
pub fn vif_text(name: &str, link: &str, mac: [u8; 6]) -> String {
    let mac = Mac(mac);
    format!("[[vif]]\nname = \"{name}\"\nlink = \"{link}\"\nsocket = \"DIR/{name}.sock\"\nmac = \"{mac}\"\n")
}

/// A vif of a snapshot.
pub fn vif<'a>(snapshot: &'a Snapshot, name: &str) -> &'a PortState {
    &snapshot.vifs.iter().find(|vif| vif.name == name).expect("a vif of the policy").port
}
