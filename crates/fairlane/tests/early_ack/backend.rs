//! A backend as a process, with a policy of its own.

use crate::namespace::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A running backend; ended when dropped.
pub struct Backend {
    process: Child,
    directory: PathBuf,
}

impl Backend {
    /// Starts one by the policy that is in a directory, and waits until it serves.
    pub fn start(host: &Namespace, directory: &Path) -> Backend {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        command.args(["up", "--log", "warn"]).arg(directory.join("policy.toml")).stdin(Stdio::null());
        let process = host.run(move || command.spawn().unwrap());
        let backend = Backend { process, directory: directory.to_owned() };
        let control = directory.join("control.sock");
        wait_for("the backend", || UnixStream::connect(&control).is_ok());
        backend
    }

    /// Asks it; what it prints. DIR stands for its directory.
    pub fn ctl(&self, arguments: &str) -> String {
        let here = self.directory.to_str().unwrap();
        let arguments = arguments.replace("DIR", here);
        let control = format!("{here}/control.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        let asked = command.args(["ctl", "--control", &control]).args(arguments.split(' ')).output().unwrap();
        assert!(asked.status.success(), "ctl {arguments}: {}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).unwrap()
    }

    /// What is shown of its only vif.
    pub fn vif(&self) -> Value {
        let mut shown: Value = serde_json::from_str(&self.ctl("show --json")).unwrap();
        shown["vifs"][0].take()
    }

    /// The flows that early ack knows.
    pub fn flows(&self) -> Vec<Value> {
        serde_json::from_str(&self.ctl("show --json flows")).unwrap()
    }

    /// Bytes that senders were told of and the guest has not acknowledged.
    pub fn owed(&self) -> u64 {
        self.flows().iter().filter_map(|flow| flow["owed"].as_u64()).sum()
    }

    /// Ends it.
    pub fn kill(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.process.id() as i32), signal).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // A test may have ended it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits, for at most half a minute.
pub fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited 30 s in vain: {what}");
}
