//! A service manager that stores descriptors, as systemd does (`FDSTORE=1` of sd_notify(3)), and passes them to each process of its
//! service (sd_listen_fds(3)). No other process gets them: tests run beside each other, and one that inherits what another's manager
//! holds keeps it open.

use crate::daemon::{Daemon, write_policy};
use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::{scope, sleep};
use std::time::Duration;

/// A manager with a service that runs.
pub(crate) struct Manager {
    directory: PathBuf,
    socket: UnixDatagram,
    /// What it holds, by name.
    held: Vec<(String, OwnedFd)>,
    /// The main process that was named last.
    main: Option<u32>,
    /// How many keep-alives for its watchdog came.
    keep_alives: u32,
    pub(crate) daemon: Daemon,
}

impl Manager {
    /// Starts a service with a policy, in which `DIR` stands for the directory.
    pub(crate) fn start(directory: &Path, policy: &str) -> Manager {
        write_policy(directory, policy);
        let socket = UnixDatagram::bind(directory.join("notify")).expect("a socket for notifications");
        socket.set_nonblocking(true).expect("a socket");
        let daemon = Daemon::launch(directory, command(directory, &[]), |mut command| command.spawn());
        Manager { directory: directory.to_owned(), socket, held: Vec::new(), main: None, keep_alives: 0, daemon }
    }

    /// Ends the process by a signal and starts the next one.
    pub(crate) fn restart(&mut self, signal: Signal) -> ExitStatus {
        let status = self.daemon.end(signal);
        self.receive();
        let (directory, next) = (self.directory.clone(), command(&self.directory, &self.held));
        self.daemon = scope(|scope| {
            let launched = scope.spawn(|| Daemon::launch(&directory, next, |mut command| command.spawn()));
            // It may need something closed before it serves.
            while !launched.is_finished() {
                self.receive();
                sleep(Duration::from_millis(1));
            }
            launched.join().expect("it serves")
        });
        status
    }

    /// Whether a frontend's connection ends within 30 s. It does not while a message with it waits to be received here.
    pub(crate) fn sees_end(&mut self, frontend: &mut UnixStream) -> io::Result<bool> {
        frontend.set_read_timeout(Some(Duration::from_millis(10)))?;
        for _ in 0..3000 {
            match frontend.read(&mut [0]) {
                Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
                    self.receive();
                }
                read => return read.map(|bytes| bytes == 0),
            }
        }
        Ok(false)
    }

    /// Has a successor take over while the process serves. False if it fails; the process then serves on.
    pub(crate) fn hand_over(&mut self) -> bool {
        let mut next = Command::new(env!("CARGO_BIN_EXE_fairlane"));
        next.env("NOTIFY_SOCKET", self.directory.join("notify"));
        let Some(next) = self.daemon.succeeded_by(next, |mut next| next.spawn()) else { return false };
        let mut former = std::mem::replace(&mut self.daemon, next);
        assert!(former.wait().success(), "{}", self.daemon.log());
        let before = self.keep_alives;
        self.receive();
        assert_eq!(self.keep_alives, before + 1, "the watchdog does not know of the new process");
        assert_eq!(self.main, Some(self.daemon.pid()), "the service's main process");
        true
    }

    /// The names of what it holds.
    pub(crate) fn held(&mut self) -> Vec<&str> {
        self.receive();
        self.held.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Waits until the connection of each vif that it holds is kept: for a moment after each message it is not, and a process that is
    /// killed then leaves nothing.
    pub(crate) fn wait_until_kept(&mut self) {
        self.receive();
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let is_full = |fd: &OwnedFd| recv(fd, &mut [0; 1], flags).is_ok();
        let vifs: Vec<&(String, OwnedFd)> = self.held.iter().filter(|(name, _)| name.starts_with("vif ")).collect();
        // A vif's two descriptors are the ends of one keeper.
        for ends in vifs.chunks(2) {
            while !ends.iter().any(|(_, fd)| is_full(fd)) {
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// Receives what was stored and removed.
    fn receive(&mut self) {
        loop {
            let (mut bytes, mut space) = ([0; 512], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))]);
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let Ok(message) = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) else {
                return;
            };
            let fds = control.drain().filter_map(|control| match control {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let fds: Vec<OwnedFd> = fds.flatten().collect();
            let text = std::str::from_utf8(&bytes[..message.bytes]).expect("a notification");
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
            self.keep_alives += u32::from(text == "WATCHDOG=1\n");
            let main = text.lines().find_map(|line| line.strip_prefix("MAINPID="));
            self.main = main.map(|main| main.parse().expect("a number")).or(self.main);
            if text.contains("FDSTORE=1\n") {
                assert!(text.contains("FDPOLL=0\n"), "systemd would close it: {text}");
                self.held.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
            } else if text.contains("FDSTOREREMOVE=1\n") {
                self.held.retain(|(held, _)| *held != name);
            }
        }
    }
}

/// A command to which the arguments of the program are still to be added, with these descriptors from 3 on.
fn command(directory: &Path, held: &[(String, OwnedFd)]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_fairlane")]);
    command.env("NOTIFY_SOCKET", directory.join("notify"));
    if !held.is_empty() {
        let names: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    let mappings = held
        .iter()
        .zip(3..)
        .map(|((_, fd), child_fd)| FdMapping { parent_fd: fd.try_clone().expect("a descriptor"), child_fd });
    command.fd_mappings(mappings.collect()).expect("different numbers");
    command
}
