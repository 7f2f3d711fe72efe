//! A host, a backend and a guest, ready for transfers from the host to the guest.

use crate::backend::{Backend, wait_for};
use crate::daemon::write_policy;
use crate::guest::{Behavior, Guest};
use crate::namespace::Namespace;
use fairlane_lab::Error;
use fairlane_load::{ServeSpec, digest};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::channel;
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

/// The port of the guest's server.
const PORT: u16 = 7000;
const GUEST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2)), PORT);

/// How long the guest's server runs, in seconds: longer than any test.
const SERVER_SECONDS: f64 = 3600.0;

/// The host, the backend and the guest.
pub(crate) struct Stage {
    pub guest: Guest,
    pub backend: Backend,
    host: Namespace,
    inside: Namespace,
    // Dropped last: guest and backend use it.
    directory: tempfile::TempDir,
}

impl Stage {
    /// Starts a guest with this behavior, and with this mode of early ack.
    pub(crate) fn new(mode: &str, behavior: Behavior) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        write_policy(directory.path(), &POLICY.replace("MODE", mode));
        let host = Namespace::new().unwrap();
        // A persistent tap stays while no backend runs, with the host's neighbour entries.
        for setup in ["tuntap add dev fl0 mode tap", "addr add 10.9.0.1/24 dev fl0", "link set fl0 up"] {
            host.ip(setup);
        }
        let backend = Backend::start(&host, directory.path());
        let inside = Namespace::new().unwrap();
        let socket = directory.path().join("web.sock");
        let guest = inside.run(move || Guest::start(socket, behavior));
        for setup in ["addr add 10.9.0.2/24 dev eth0", "link set eth0 up"] {
            inside.ip(setup);
        }
        // Wait until the server listens.
        let (sender, listening) = channel();
        let spec = ServeSpec { port: PORT, seconds: SERVER_SECONDS };
        inside.spawn(move || digest::serve(&spec, |address| sender.send(address).unwrap()));
        listening.recv().unwrap();
        Stage { guest, backend, host, inside, directory }
    }

    /// Makes the guest's packet filter drop one of `many` packets to its server.
    ///
    /// # Errors
    /// nftables is missing.
    pub(crate) fn filter_one_in(&self, many: u32) -> Result<(), Error> {
        let missing = |error| Error::Missing(format!("nft, which drops packets in the guest (nftables): {error}"));
        self.inside.drop_one_in(many, PORT).map_err(missing)
    }

    /// Runs a function on the host in a new thread, with the guest's address.
    pub(crate) fn spawn_sender<R: Send + 'static>(
        &self,
        work: impl FnOnce(SocketAddr) -> R + Send + 'static,
    ) -> JoinHandle<R> {
        self.host.spawn(|| work(GUEST))
    }

    /// The counters of the guest's early ack.
    pub(crate) fn early(&self) -> Value {
        self.backend.vif()["early_ack"].take()
    }

    /// Pauses the guest during a transfer, and waits until the backend has acknowledged data that the guest does not have, and the sender
    /// cannot send more. Returns the number of bytes.
    pub(crate) fn pause_and_owe(&self) -> u64 {
        // A guest that is paused during its handshake never has data.
        let is_open = |flow: &Value| flow["state"] != "opening";
        self.until("a transfer to start", |stage| stage.backend.flows().iter().any(is_open));
        for _ in 0..20 {
            self.guest.pause(true);
            let mut owed = 0;
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(10));
                let before = std::mem::replace(&mut owed, self.backend.owed());
                if owed > 0 && owed == before {
                    return owed;
                }
            }
            // Its window may happen to be closed: nothing more can be owed.
            self.guest.pause(false);
            thread::sleep(Duration::from_millis(10));
        }
        panic!("of 20 pauses none left data owed");
    }

    /// Waits until a condition holds, as [`wait_for`].
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Stage) -> bool) {
        wait_for(what, || holds(self));
    }

    /// Whether there is a file with the guest's flows.
    pub(crate) fn has_state(&self) -> bool {
        self.state_file().exists()
    }

    /// Removes the file with the guest's flows, as if the backend had run on another machine.
    pub(crate) fn remove_state(&self) {
        std::fs::remove_file(self.state_file()).unwrap();
    }

    fn state_file(&self) -> PathBuf {
        self.directory.path().join("control.sock.early-ack/web")
    }

    /// Starts the next backend.
    pub(crate) fn restart(&mut self) {
        self.backend = Backend::start(&self.host, self.directory.path());
    }

    /// Has the next backend take over.
    pub(crate) fn hand_over(&mut self) {
        self.backend.hand_over(&self.host);
    }
}
