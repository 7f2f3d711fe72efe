//! What a service manager is told: that the backend serves, reloads, stops, and is well, which it is only while its workers answer.

use crate::place::{Backend, POLICY, Place};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// A service manager that listens, and what it started.
struct Manager {
    socket: UnixDatagram,
    place: Place,
    backend: Backend,
}

impl Manager {
    fn start(environment: &[(&str, &str)]) -> Manager {
        let place = Place::with_policy();
        let socket = UnixDatagram::bind(place.path("notify")).unwrap();
        let backend = place.up_with("", &[environment, &[("NOTIFY_SOCKET", "DIR/notify")]].concat());
        Manager { socket, place, backend }
    }

    /// What it is told within some time.
    fn hears_in(&self, patience: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut said = [0; 256];
        loop {
            match self.socket.recv(&mut said) {
                Ok(bytes) => return Some(String::from_utf8(said[..bytes].to_vec()).unwrap()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A wait with a limit is interrupted where the whole process stood still (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the manager cannot hear: {error}"),
            }
        }
    }

    /// What it is told next.
    fn hears(&self) -> String {
        self.hears_in(Duration::from_secs(60)).expect("nothing is told for a minute")
    }
}

#[test]
fn a_manager_is_told_of_each_state() {
    let mut manager = Manager::start(&[]);
    assert_eq!(manager.hears(), "READY=1\n");
    manager.place.write("policy.toml", &POLICY.replace("weight = 30", "weight = 70"));
    manager.backend.signal(Signal::SIGHUP);
    let reloading = manager.hears();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(manager.hears(), "READY=1\n");
    manager.backend.signal(Signal::SIGTERM);
    assert_eq!(manager.hears(), "STOPPING=1\n");
    assert_eq!(manager.backend.ends(), Some(0));
}

#[test]
fn all_is_well_while_every_worker_answers() {
    const INTERVAL: Duration = Duration::from_millis(100);
    let mut manager = Manager::start(&[("WATCHDOG_USEC", "200000")]);
    assert_eq!(manager.hears(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(manager.hears(), "WATCHDOG=1\n");
    }
    let threads = manager.backend.threads();
    let (worker, ..) = threads.iter().find(|(_, name, _)| name == "fairlane-worker").unwrap();
    ptrace::seize(*worker, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(*worker).unwrap();
    waitpid(*worker, Some(WaitPidFlag::__WALL)).unwrap();
    // It stands still. What it had answered before is told yet.
    let falls_silent = (0..20).any(|_| manager.hears_in(5 * INTERVAL).is_none());
    let stays_silent = manager.hears_in(10 * INTERVAL).is_none();
    // First of all: what is held by this thread cannot be waited for by it.
    ptrace::detach(*worker, None).unwrap();
    assert!(falls_silent && stays_silent, "all is said to be well while a worker stands still");
    assert_eq!(manager.hears(), "WATCHDOG=1\n");
    manager.backend.signal(Signal::SIGTERM);
    while manager.hears() != "STOPPING=1\n" {}
    assert_eq!(manager.backend.ends(), Some(0));
}
