//! A host, a backend and a guest, ready to send from the one to the other.

use crate::guest::{Guest, Life};
use crate::namespace::Namespace;
use crate::transfer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const POLICY: &str = r#"control = "DIR/control.sock"
[[link]]
name = "lan"
rate = "1Gbit/s"
uplink = { tap = "fl0" }
[[vif]]
name = "web"
socket = "DIR/web.sock"
early_ack = MODE
"#;

/// Where the guest listens.
const GUEST: &str = "10.9.0.2:7000";

/// All of it.
pub struct Stage {
    pub guest: Guest,
    backend: Child,
    host: Namespace,
    // Dropped last: guest and backend are in it.
    directory: tempfile::TempDir,
}

impl Stage {
    /// A guest with this life, and early ack of this mode for it.
    pub fn new(mode: &str, life: Life) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path().to_str().unwrap();
        let policy = POLICY.replace("DIR", here).replace("MODE", mode);
        std::fs::write(directory.path().join("policy.toml"), policy).unwrap();
        let host = Namespace::new().unwrap();
        // It stays while no backend runs, with all that the host knows of it.
        for setup in ["tuntap add dev fl0 mode tap", "addr add 10.9.0.1/24 dev fl0", "link set fl0 up"] {
            host.ip(setup);
        }
        let backend = start(&host, directory.path());
        let inside = Namespace::new().unwrap();
        let socket = directory.path().join("web.sock");
        let guest = inside.run(move || Guest::start(socket, life));
        for setup in ["addr add 10.9.0.2/24 dev eth0", "link set eth0 up"] {
            inside.ip(setup);
        }
        inside.spawn(|| transfer::serve(GUEST));
        Stage { guest, backend, host, directory }
    }

    /// Runs a sender on the host.
    pub fn sends<R: Send + 'static>(&self, work: impl FnOnce(SocketAddr) -> R + Send + 'static) -> JoinHandle<R> {
        self.host.spawn(|| work(GUEST.parse().unwrap()))
    }

    /// Asks the backend; what it prints.
    pub fn ctl(&self, arguments: &str) -> String {
        let here = self.directory.path().to_str().unwrap();
        let arguments = arguments.replace("DIR", here);
        let control = format!("{here}/control.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        let asked = command.args(["ctl", "--control", &control]).args(arguments.split(' ')).output().unwrap();
        assert!(asked.status.success(), "ctl {arguments}: {}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8(asked.stdout).unwrap()
    }

    /// What is shown of the guest's early ack.
    pub fn early(&self) -> Value {
        let shown: Value = serde_json::from_str(&self.ctl("show --json")).unwrap();
        shown["vifs"][0]["early_ack"].clone()
    }

    /// Bytes that senders were told of and the guest has not acknowledged.
    pub fn owed(&self) -> u64 {
        let flows: Value = serde_json::from_str(&self.ctl("show --json flows")).unwrap();
        flows.as_array().unwrap().iter().filter_map(|flow| flow["owed"].as_u64()).sum()
    }

    /// Pauses the guest once a transfer is under way, and waits until the sender was told of bytes that the guest does not
    /// have, and can send no more. Returns how many.
    pub fn pause_and_owe(&self) -> u64 {
        self.until("a transfer is under way", |stage| stage.early()["flows"].as_u64() > Some(0));
        self.guest.pause(true);
        let mut owed = 0;
        self.until("as much as can be is owed to the guest", |stage| {
            let before = std::mem::replace(&mut owed, stage.owed());
            owed > 0 && owed == before
        });
        owed
    }

    /// Waits, for at most some seconds.
    pub fn until(&self, what: &str, mut is: impl FnMut(&Stage) -> bool) {
        wait_for(what, || is(self));
    }

    /// Whether memory is kept for the guest's flows.
    pub fn keeps(&self) -> bool {
        self.kept().exists()
    }

    /// Removes that memory, as if the backend had run on another machine.
    pub fn forget(&self) {
        std::fs::remove_file(self.kept()).unwrap();
    }

    fn kept(&self) -> PathBuf {
        self.directory.path().join("control.sock.early-ack/web")
    }

    /// Ends the backend.
    pub fn kill(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.backend.id() as i32), signal).unwrap();
        self.backend.wait().unwrap();
    }

    /// Starts the next.
    pub fn restart(&mut self) {
        self.backend = start(&self.host, self.directory.path());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A test may have ended it.
        let _ = self.backend.kill();
        let _ = self.backend.wait();
    }
}

/// Starts a backend, and waits until it serves.
fn start(host: &Namespace, directory: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlane"));
    command.args(["up", "--log", "warn"]).arg(directory.join("policy.toml")).stdin(Stdio::null());
    let backend = host.run(move || command.spawn().unwrap());
    let control = directory.join("control.sock");
    wait_for("the backend", || UnixStream::connect(&control).is_ok());
    backend
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited 30 s in vain: {what}");
}
