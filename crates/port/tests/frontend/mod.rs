//! A frontend ([`guest`]) and, for tests of the port alone, the backend's port that it is connected to.
#![allow(dead_code)] // each test program uses a part

mod guest;
#[path = "../worker/mod.rs"]
mod worker;

use fairlane_core::packet::checksum::Sum;
use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};
use fairlane_core::stats::DropReason;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Control, Refusal, Status};
pub(crate) use guest::*;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
pub(crate) use worker::*;

/// A backend's port and its worker.
pub(crate) type Backend = Worker<VhostUser>;

impl Backend {
    pub(crate) fn listen(path: &Path, queues: u16) -> Backend {
        Backend::new(VhostUser::listen("test", path, queues).unwrap().with_packed_rings())
    }

    /// Handles events until it carries frames and all messages are handled.
    pub(crate) fn until_up(&mut self) {
        self.until(|port| port.status() == Status::Up);
        self.settle();
    }

    /// Handles events until it is disabled; returns the reason.
    pub(crate) fn until_disabled(&mut self) -> String {
        self.until(|port| matches!(port.status(), Status::Disabled(_)));
        let Status::Disabled(reason) = self.port.status() else { unreachable!() };
        reason
    }

    /// Checks that it is disabled by now, and why.
    #[track_caller]
    pub(crate) fn assert_disabled(&self, reason: &str) {
        let Status::Disabled(why) = self.port.status() else { panic!("it is {:?}", self.port.status()) };
        assert!(why.contains(reason), "the reason is: {why}");
    }
}

/// Waits until threads that close files of frontends have done it, or have begun.
#[track_caller]
pub(crate) fn until(right: impl Fn() -> bool) {
    for _ in 0..3000 {
        if right() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("files are still open, or none is closed");
}

/// A path for a socket, removed with its directory.
pub(crate) fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vif.sock");
    (dir, path)
}

/// A device that is up, with rings of `size`, and the frontend that acknowledged `features`.
pub(crate) fn connected(features: u64, size: u16) -> (TempDir, PathBuf, Backend, Frontend) {
    let (dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let frontend = Frontend::connect(&path, size);
    frontend.set_up(features, 2);
    backend.until_up();
    (dir, path, backend, frontend)
}

/// Sets a device up, breaks a rule on it by `wrong`, and checks that this disables it with `reason`, and that the next
/// frontend finds a working device.
#[track_caller]
pub(crate) fn disabled_by(features: u64, reason: &str, wrong: impl FnOnce(&mut Frontend)) {
    let (_dir, path, mut backend, mut frontend) = connected(features, 8);
    wrong(&mut frontend);
    assert!(backend.take().is_empty(), "nothing of a broken ring is passed on");
    backend.put(&frame(0, 1000), Offload::default());
    backend.assert_disabled(reason);
    let down = backend.put(&frame(0, 100), Offload::default());
    assert_eq!(down.refusal, Some(Refusal::Never(DropReason::ReceiverDown)));
    assert!(backend.take().is_empty());
    // A kick on a disabled device neither revives it nor keeps the worker awake.
    frontend.kick(1);
    backend.settle();
    assert!(backend.take().is_empty());
    drop(frontend);
    works_again(features, &path, &mut backend);
}

/// A frontend that keeps the rules is served, whatever the one before did.
#[track_caller]
pub(crate) fn works_again(features: u64, path: &Path, backend: &mut Backend) {
    let mut frontend = Frontend::connect(path, 8);
    frontend.set_up(features, 2);
    backend.until_up();
    frontend.transmit(0, NO_HEADER, &frame(1, 200));
    assert_eq!(backend.take(), [(frame(1, 200), Offload::default())]);
}

/// A TCP frame over IPv4 with this much payload and a partial TCP checksum.
pub(crate) fn tcp_frame(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(((40 + payload) as u16).to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
    let sum = Sum::default().with(&bytes[14..34]).checksum();
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
    let pseudo = Sum::default().with(&bytes[26..34]).with(&[0, 6]).with(&((20 + payload) as u16).to_be_bytes());
    bytes.extend(pseudo.folded().to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(frame(1, payload));
    bytes
}

/// The offload of such a frame, segmented into `size` bytes of payload each if given.
pub(crate) fn tcp_offload(size: Option<u16>) -> Offload {
    let gso = size.map(|size| Gso { kind: GsoKind::Tcp4, ecn: false, size, header: 54 });
    Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso }
}
