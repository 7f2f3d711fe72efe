//! A backend with one vif, as a process.

use crate::daemon::Daemon;
use crate::namespace::Namespace;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A running backend, killed on drop.
pub(crate) struct Backend {
    daemon: Daemon,
    directory: PathBuf,
}

impl Backend {
    /// Starts a backend with the policy in a directory, and waits until it serves.
    pub(crate) fn start(host: &Namespace, directory: &Path) -> Backend {
        let daemon = Daemon::serve(directory, |mut command| host.run(move || command.spawn()));
        Backend { daemon, directory: directory.to_owned() }
    }

    /// Runs `fairlane ctl`, with `DIR` replaced by the backend's directory. Returns its output.
    pub(crate) fn ctl(&self, arguments: &str) -> String {
        let arguments = arguments.replace("DIR", self.directory.to_str().unwrap());
        let output = self.daemon.ctl(&arguments.split(' ').collect::<Vec<_>>());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ctl {arguments}: {errors}\n{}", self.daemon.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The state of its only vif.
    pub(crate) fn vif(&self) -> Value {
        let mut shown: Value = serde_json::from_str(&self.ctl("show --json")).unwrap();
        shown["vifs"][0].take()
    }

    /// The flows of early ack.
    pub(crate) fn flows(&self) -> Vec<Value> {
        serde_json::from_str(&self.ctl("show --json flows")).unwrap()
    }

    /// Bytes that the backend has acknowledged to senders but the guest has not acknowledged yet.
    pub(crate) fn owed(&self) -> u64 {
        self.flows().iter().filter_map(|flow| flow["owed"].as_u64()).sum()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Has another process take over.
    pub(crate) fn hand_over(&mut self, host: &Namespace) {
        let next = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        let next = self.daemon.succeeded_by(next, |mut command| host.run(move || command.spawn()));
        let mut former = std::mem::replace(&mut self.daemon, next.expect("it takes over"));
        assert!(former.wait().success(), "{}", self.daemon.log());
    }

    /// Ends the backend with a signal.
    pub(crate) fn kill(&mut self, signal: Signal) {
        self.daemon.end(signal);
    }
}

/// Waits until a condition holds, for at most two minutes: TCP tries again as late as its guest was paused, which on a busy host may
/// be long.
pub(crate) fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited two minutes for {what}");
}
