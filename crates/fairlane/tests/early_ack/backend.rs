//! A backend as a process, with a policy of its own.

use crate::daemon::Daemon;
use crate::namespace::Namespace;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// A running backend; ended when dropped.
pub struct Backend {
    daemon: Daemon,
    directory: PathBuf,
}

impl Backend {
    /// Starts one by the policy that is in a directory, and waits until it serves.
    pub fn start(host: &Namespace, directory: &Path) -> Backend {
        let daemon = Daemon::serve(directory, |mut command| host.run(move || command.spawn()));
        Backend { daemon, directory: directory.to_owned() }
    }

    /// Asks it; what it prints. DIR stands for its directory.
    pub fn ctl(&self, arguments: &str) -> String {
        let arguments = arguments.replace("DIR", self.directory.to_str().unwrap());
        let asked = self.daemon.ctl(&arguments.split(' ').collect::<Vec<_>>());
        let errors = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success(), "ctl {arguments}: {errors}\n{}", self.daemon.log());
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
        self.daemon.end(signal);
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
