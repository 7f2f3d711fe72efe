//! The capabilities of this machine.

use crate::process;
use anyhow::Result;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fmt, thread};

/// Something that a part needs and the machine lacks. The part is skipped and does not fail.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The capabilities of the machine.
pub struct Machine {
    /// Whether real-time scheduling is permitted.
    pub real_time: bool,
    /// Whether this process runs as root.
    pub root: bool,
    cores: usize,
}

/// The words that start a program with real-time scheduling, above the threads that poll: what controls and observes them must not
/// wait for them.
pub(crate) const REAL_TIME: [&str; 3] = ["chrt", "--rr", "60"];

/// The words that start a program all of whose threads have the priority of those that poll.
pub(crate) const POLLING: [&str; 3] = ["chrt", "--rr", "50"];

/// Gives a thread that polls its real-time priority, below that of [`REAL_TIME`].
///
/// # Errors
/// The system refuses.
pub(crate) fn make_poller(thread: &str) -> Result<()> {
    let [chrt, policy, priority] = POLLING;
    process::output(&[chrt, policy, "--pid", priority, thread]).map(drop)
}

/// Keeps this thread above the threads that poll, so that it acts when a slice is over. The processes and threads that it starts
/// are not. Ends on drop.
pub(crate) struct Ahead(String);

impl Ahead {
    /// Raises this thread, if the machine permits it.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn start(machine: &Machine) -> Result<Option<Ahead>> {
        if !machine.real_time {
            return Ok(None);
        }
        let thread = nix::unistd::gettid().to_string();
        let [chrt, policy, priority] = REAL_TIME;
        process::output(&[chrt, "--reset-on-fork", policy, "--pid", priority, &thread])?;
        Ok(Some(Ahead(thread)))
    }
}

/// Gives this thread, and what it starts, precedence over other programs of a busy machine. Ends on drop.
pub(crate) struct Favoured(String);

impl Favoured {
    /// Raises this thread, if the machine permits it.
    pub(crate) fn start() -> Favoured {
        let thread = nix::unistd::gettid().to_string();
        // On an idle machine it makes no difference.
        let _ = process::output(&["renice", "-n", "-20", "--pid", &thread]);
        Favoured(thread)
    }
}

impl Drop for Favoured {
    fn drop(&mut self) {
        let _ = process::output(&["renice", "-n", "0", "--pid", &self.0]);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // A thread that stays ahead sleeps most of the time.
        let _ = process::output(&["chrt", "--other", "--pid", "0", &self.0]);
    }
}

impl Machine {
    /// Probes the machine.
    pub fn probe() -> Machine {
        let [chrt, policy, priority] = REAL_TIME;
        let status = Command::new(chrt).args([policy, priority, "true"]).stderr(Stdio::null()).status();
        Machine {
            real_time: status.is_ok_and(|status| status.success()),
            root: nix::unistd::geteuid().is_root(),
            cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Requires two cores: one for the backend, one for its guests.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn two_cores(&self) -> Result<(), Missing> {
        if self.cores >= 2 { Ok(()) } else { Err(Missing("two cores are needed, but there is only one".to_owned())) }
    }
}

/// Finds a program on the PATH.
///
/// # Errors
/// [`Missing`], naming the Debian package it comes with.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf, Missing> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Missing(format!("{program} is not installed: run `apt-get install {package}`")))
}

/// The packages of the peers that are installed, with their versions.
pub(crate) fn versions() -> Vec<(&'static str, String)> {
    let version = |package| {
        let query = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]).output().ok()?;
        query.status.success().then(|| (package, String::from_utf8_lossy(&query.stdout).into_owned()))
    };
    ["dpdk-dev", "openvswitch-switch-dpdk", "valgrind", "user-mode-linux", "wrk", "apache2-utils", "nghttp2-client"]
        .into_iter()
        .filter_map(version)
        .collect()
}
