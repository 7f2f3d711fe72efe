//! The capabilities of this machine.

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

/// Real-time scheduling with round robin, since two spinning threads on one core must alternate.
pub(crate) const REAL_TIME: [&str; 3] = ["chrt", "--rr", "50"];

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
    ["dpdk-dev", "openvswitch-switch-dpdk", "user-mode-linux", "wrk", "apache2-utils", "nghttp2-client"]
        .into_iter()
        .filter_map(version)
        .collect()
}
