//! Notifications to a service manager: ready, reloading, stopping, and the keep-alive, which depends on the workers' answers.

use crate::workspace::{Backend, POLICY, Workspace};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// A service manager with a backend.
struct Manager {
    socket: UnixDatagram,
    workspace: Workspace,
    backend: Backend,
}

impl Manager {
    fn start(environment: &[(&str, &str)]) -> Manager {
        let workspace = Workspace::with_policy();
        let socket = UnixDatagram::bind(workspace.path("notify")).unwrap();
        let backend = workspace.up_with("", &[environment, &[("NOTIFY_SOCKET", "DIR/notify")]].concat());
        Manager { socket, workspace, backend }
    }

    /// The next notification of a state, if one arrives within a timeout.
    fn receive_within(&self, timeout: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(timeout)).unwrap();
        let mut message = [0; 256];
        loop {
            match self.socket.recv(&mut message) {
                Ok(_) if message.starts_with(b"FDSTORE=1\n") => {}
                Ok(bytes) => return Some(String::from_utf8(message[..bytes].to_vec()).unwrap()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A receive with a timeout is interrupted if the whole process was stopped (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the manager cannot receive: {error}"),
            }
        }
    }

    /// The next notification.
    fn receive(&self) -> String {
        self.receive_within(Duration::from_secs(60)).expect("no notification for a minute")
    }
}

#[test]
fn each_state_is_notified() {
    let mut manager = Manager::start(&[]);
    assert_eq!(manager.receive(), "READY=1\n");
    manager.workspace.write("policy.toml", &POLICY.replace("weight = 30", "weight = 70"));
    manager.backend.signal(Signal::SIGHUP);
    let reloading = manager.receive();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(manager.receive(), "READY=1\n");
    manager.backend.signal(Signal::SIGTERM);
    assert_eq!(manager.receive(), "STOPPING=1\n");
    assert_eq!(manager.backend.wait(), Some(0));
}

#[test]
fn keep_alives_are_sent_while_every_worker_answers() {
    const INTERVAL: Duration = Duration::from_millis(100);
    let mut manager = Manager::start(&[("WATCHDOG_USEC", "200000")]);
    assert_eq!(manager.receive(), "READY=1\n");
    for _ in 0..3 {
        assert_eq!(manager.receive(), "WATCHDOG=1\n");
    }
    let threads = manager.backend.threads();
    let (worker, ..) = threads.iter().find(|(_, name, _)| name == "fairlane-worker").unwrap();
    ptrace::seize(*worker, ptrace::Options::empty()).unwrap();
    ptrace::interrupt(*worker).unwrap();
    waitpid(*worker, Some(WaitPidFlag::__WALL)).unwrap();
    // The worker is stopped. A keep-alive for its last answer may still arrive.
    let stops = (0..20).any(|_| manager.receive_within(5 * INTERVAL).is_none());
    let stays_stopped = manager.receive_within(10 * INTERVAL).is_none();
    // Before the assertion: this thread could not wait for a process that it has stopped.
    ptrace::detach(*worker, None).unwrap();
    assert!(stops && stays_stopped, "keep-alives are sent while a worker is stopped");
    assert_eq!(manager.receive(), "WATCHDOG=1\n");
    manager.backend.signal(Signal::SIGTERM);
    while manager.receive() != "STOPPING=1\n" {}
    assert_eq!(manager.backend.wait(), Some(0));
}
