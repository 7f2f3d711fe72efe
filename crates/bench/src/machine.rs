//! What this machine has and lets us do.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fmt, thread};

/// Something that a part needs and the machine lacks: a reason to skip, not to fail.
#[derive(Debug)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The machine.
pub struct Machine {
    /// Whether threads may be scheduled ahead of all ordinary ones.
    pub real_time: bool,
    /// Whether this is root.
    pub root: bool,
    cores: usize,
}

/// Round robin among threads of one priority, for of two spinning threads on a core each must have its turn.
pub const REAL_TIME: [&str; 3] = ["chrt", "--rr", "50"];

impl Machine {
    /// Tries what cannot be read.
    pub fn look() -> Machine {
        let [chrt, policy, priority] = REAL_TIME;
        let tried = Command::new(chrt).args([policy, priority, "true"]).stderr(Stdio::null()).status();
        Machine {
            real_time: tried.is_ok_and(|status| status.success()),
            root: nix::unistd::geteuid().is_root(),
            cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Asks for two cores: one for the backend, one for its guests.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn two_cores(&self) -> Result<(), Missing> {
        if self.cores >= 2 { Ok(()) } else { Err(Missing("two cores are needed, and there is one".to_owned())) }
    }
}

/// Finds a program on the PATH.
///
/// # Errors
/// [`Missing`], naming the Debian package it comes with.
pub fn find(program: &str, package: &str) -> Result<PathBuf, Missing> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| Missing(format!("{program} is not installed: `apt-get install {package}` brings it")))
}

/// Packages that take part, and their versions as far as they are installed from packages.
pub fn versions() -> Vec<(&'static str, String)> {
    let version = |package| {
        let query = Command::new("dpkg-query").args(["--show", "--showformat=${Version}", package]).output().ok()?;
        query.status.success().then(|| (package, String::from_utf8_lossy(&query.stdout).into_owned()))
    };
    ["dpdk-dev", "openvswitch-switch-dpdk", "user-mode-linux"].into_iter().filter_map(version).collect()
}
