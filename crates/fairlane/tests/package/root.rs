//! A Debian root that runs systemd, in namespaces of its own: processes, mounts, network, cgroups. Nothing of it outlives it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Moves into a new control group of version 2, so that systemd finds one of its own, and into namespaces.
const START: &str = "mkdir \"$1\" && echo 0 > \"$1/cgroup.procs\" && shift && \
    exec unshare --pid --mount --net --ipc --uts --cgroup --fork --kill-child \"$@\"";

/// How long anything in it may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running root.
pub(crate) struct Root {
    /// unshare(1), whose only child is systemd.
    parent: Child,
    init: Pid,
    group: PathBuf,
    /// Where it is mounted, in its own namespace, and its console's output.
    home: tempfile::TempDir,
}

impl Root {
    /// Boots a copy-on-write view of a directory.
    ///
    /// # Errors
    /// This machine cannot; the message says what is missing.
    pub(crate) fn boot(lower: &Path) -> Result<Root, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("booting a root needs root".to_owned());
        }
        let home = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let groups = mounts.find(|mount| mount[2] == "cgroup2").ok_or("a cgroup2 file system is not there")?;
        let group = Path::new(groups[1]).join(format!("fairlane-package-{}", std::process::id()));
        let place = home.path().join("root");
        fs::create_dir(&place).map_err(|error| error.to_string())?;
        let console = fs::File::create(home.path().join("console")).map_err(|error| error.to_string())?;
        let boot = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/package/boot");
        let mut command = Command::new("sh");
        command.args(["-c", START, "start"]).arg(&group).args(["sh", boot]).arg(lower).arg(&place);
        let errors = console.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(console).stderr(errors);
        let parent = command.spawn().map_err(|error| error.to_string())?;
        let mut root = Root { parent, init: Pid::from_raw(0), group, home };
        root.init = root.wait_until("it boots", |root| {
            let parent = root.parent.id();
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
            let init = Pid::from_raw(children.split_whitespace().next()?.parse().ok()?);
            let name = fs::read_to_string(format!("/proc/{init}/comm")).unwrap_or_default();
            (name == "systemd\n").then_some(init)
        })?;
        root.wait_until("systemd is ready", |root| {
            let state = root.run("systemctl is-system-running");
            ["running", "degraded"].contains(&String::from_utf8_lossy(&state.stdout).trim()).then_some(())
        })?;
        Ok(root)
    }

    /// Repeats a look until it finds something.
    fn wait_until<T>(&mut self, what: &str, look: impl Fn(&Root) -> Option<T>) -> Result<T, String> {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            let ended = self.parent.try_wait().is_ok_and(|status| status.is_some());
            if ended || start.elapsed() > PATIENCE {
                let console = fs::read_to_string(self.home.path().join("console")).unwrap_or_default();
                return Err(format!("waited in vain until {what}\n{console}"));
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The same, where it is a failure of the test if it does not come true.
    pub(crate) fn wait_for(&mut self, what: &str, holds: impl Fn(&Root) -> bool) {
        self.wait_until(what, |root| holds(root).then_some(())).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A path in it, as this process sees it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Runs a line of shell in it, in the directory `/root`.
    pub(crate) fn run(&self, line: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--all", "env", "-i", "--chdir=/root", "HOME=/root"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", line]);
        command.stdin(Stdio::null()).output().expect("nsenter runs")
    }

    /// The same, for a line that must succeed. Returns what it printed.
    #[track_caller]
    pub(crate) fn done(&self, line: &str) -> String {
        let output = self.run(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        let log = || text(&self.run("journalctl --no-pager --unit=fairlane --lines=30").stdout);
        assert!(output.status.success(), "{line}: {}\n{out}{errors}\n{}", output.status, log());
        out
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // With systemd, all processes of its namespace end, and then unshare. Before systemd runs, it ends with unshare.
        let _ = match self.init.as_raw() {
            0 => self.parent.kill(),
            _ => kill(self.init, Signal::SIGKILL).map_err(Into::into),
        };
        let _ = self.parent.wait();
        // A group can be removed once the last process in it is gone.
        for _ in 0..100 {
            let _ = Command::new("find").arg(&self.group).args(["-depth", "-type", "d", "-delete"]).output();
            if !self.group.exists() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    }
}
