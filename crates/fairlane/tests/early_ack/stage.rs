//! A host, a backend and a guest, ready to send from the one to the other.

use crate::backend::{Backend, wait_for};
use crate::daemon::write_policy;
use crate::guest::{Guest, Life};
use crate::namespace::Namespace;
use fairlane_lab::Error;
use fairlane_load::{ServeSpec, digest};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

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
const PORT: u16 = 7000;
const GUEST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2)), PORT);

/// For longer than any test.
const SERVING: f64 = 3600.0;

/// All of it.
pub struct Stage {
    pub guest: Guest,
    pub backend: Backend,
    host: Namespace,
    inside: Namespace,
    // Dropped last: guest and backend are in it.
    directory: tempfile::TempDir,
}

impl Stage {
    /// A guest with this life, and early ack of this mode for it.
    pub fn new(mode: &str, life: Life) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        write_policy(directory.path(), &POLICY.replace("MODE", mode));
        let host = Namespace::new().unwrap();
        // It stays while no backend runs, with all that the host knows of it.
        for setup in ["tuntap add dev fl0 mode tap", "addr add 10.9.0.1/24 dev fl0", "link set fl0 up"] {
            host.ip(setup);
        }
        let backend = Backend::start(&host, directory.path());
        let inside = Namespace::new().unwrap();
        let socket = directory.path().join("web.sock");
        let guest = inside.run(move || Guest::start(socket, life));
        for setup in ["addr add 10.9.0.2/24 dev eth0", "link set eth0 up"] {
            inside.ip(setup);
        }
        // It listens before anyone sends.
        let (listens, listening) = channel();
        let serving = ServeSpec { port: PORT, seconds: SERVING };
        inside.spawn(move || digest::serve(&serving, |address| listens.send(address).unwrap()));
        listening.recv().unwrap();
        Stage { guest, backend, host, inside, directory }
    }

    /// Has the guest's packet filter drop one of so many packets to its server.
    ///
    /// # Errors
    /// What is missing.
    pub fn filter_one_in(&self, many: u32) -> Result<(), Error> {
        let missing = |error| Error::Missing(format!("nft, which drops packets in the guest (nftables): {error}"));
        self.inside.drop_one_in(many, PORT).map_err(missing)
    }

    /// Runs a sender on the host.
    pub fn sends<R: Send + 'static>(&self, work: impl FnOnce(SocketAddr) -> R + Send + 'static) -> JoinHandle<R> {
        self.host.spawn(|| work(GUEST))
    }

    /// What is shown of the guest's early ack.
    pub fn early(&self) -> Value {
        self.backend.vif()["early_ack"].take()
    }

    /// Pauses the guest once a transfer is under way, and waits until the sender was told of bytes that the guest does not
    /// have, and can send no more. Returns how many.
    pub fn pause_and_owe(&self) -> u64 {
        self.until("a transfer is under way", |stage| stage.early()["flows"].as_u64() > Some(0));
        self.guest.pause(true);
        let mut owed = 0;
        self.until("as much as can be is owed to the guest", |stage| {
            let before = std::mem::replace(&mut owed, stage.backend.owed());
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

    /// Starts the next.
    pub fn restart(&mut self) {
        self.backend = Backend::start(&self.host, self.directory.path());
    }
}
