//! A service manager that stores descriptors, as systemd does (`FDSTORE=1` of sd_notify(3)), and passes them to each process of its
//! service (sd_listen_fds(3)).

use crate::daemon::{Daemon, write_policy};
use nix::cmsg_space;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg};
use nix::unistd::close;
use std::fmt::Write;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Moves the descriptors of the first argument to 3 and so on, by way of numbers that no process here has, and executes the rest. A shell
/// cannot: it uses descriptors from 10 on itself.
const PASS: &str = "
    my @held = split /,/, shift;
    POSIX::dup2($held[$_], 500 + $_) for 0..$#held;
    POSIX::close($_) for @held;
    (POSIX::dup2(500 + $_, 3 + $_), POSIX::close(500 + $_)) for 0..$#held;
    $ENV{LISTEN_PID} = $$;
    exec @ARGV;
";

/// A manager with a service that runs.
pub(crate) struct Manager {
    directory: PathBuf,
    socket: UnixDatagram,
    /// What it holds, by name. Processes that are started inherit it.
    held: Vec<(String, RawFd)>,
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
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive(),
                read => return read.map(|bytes| bytes == 0),
            }
        }
        Ok(false)
    }

    /// Has a successor take over while the process serves. False if it fails; the process then serves on.
    pub(crate) fn hand_over(&mut self) -> bool {
        let mut close = String::new();
        self.held.iter().for_each(|(_, fd)| write!(close, " {fd}<&-").expect("text"));
        let mut next = Command::new("bash");
        next.args(["-c", &format!("exec{close}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_fairlane")]);
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
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let is_full = |fd: RawFd| recv(fd, &mut [0], flags).is_ok();
        let vifs: Vec<&(String, RawFd)> = self.held.iter().filter(|(name, _)| name.starts_with("vif ")).collect();
        // A vif's two descriptors are the ends of one keeper.
        for ends in vifs.chunks(2) {
            while !ends.iter().any(|(_, fd)| is_full(*fd)) {
                sleep(Duration::from_millis(1));
            }
        }
    }

    /// Receives what was stored and removed.
    fn receive(&mut self) {
        let (mut bytes, mut control) = ([0; 512], cmsg_space!([RawFd; 32]));
        loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::empty();
            let Ok(message) = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags) else {
                return;
            };
            let fds = message.cmsgs().expect("room for all descriptors").filter_map(|control| match control {
                ControlMessageOwned::ScmRights(fds) => Some(fds),
                _ => None,
            });
            let (fds, len) = (fds.flatten().collect::<Vec<_>>(), message.bytes);
            let text = std::str::from_utf8(&bytes[..len]).expect("a notification");
            let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
            self.keep_alives += u32::from(text == "WATCHDOG=1\n");
            let main = text.lines().find_map(|line| line.strip_prefix("MAINPID="));
            self.main = main.map(|main| main.parse().expect("a number")).or(self.main);
            if text.contains("FDSTORE=1\n") {
                assert!(text.contains("FDPOLL=0\n"), "systemd would close it: {text}");
                self.held.extend(fds.into_iter().map(|fd| (name.clone(), fd)));
            } else if text.contains("FDSTOREREMOVE=1\n") {
                let (gone, rest) = self.held.drain(..).partition(|(held, _)| *held == name);
                self.held = rest;
                close_all(gone);
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.receive();
        close_all(std::mem::take(&mut self.held));
    }
}

fn close_all(held: Vec<(String, RawFd)>) {
    held.into_iter().for_each(|(_, fd)| close(fd).expect("a descriptor"));
}

/// A command to which the arguments of the program are still to be added, with these descriptors.
fn command(directory: &Path, held: &[(String, RawFd)]) -> Command {
    let names: Vec<&str> = held.iter().map(|(name, _)| name.as_str()).collect();
    let fds: Vec<String> = held.iter().map(|(_, fd)| fd.to_string()).collect();
    let mut command = Command::new("perl");
    command.args(["-MPOSIX", "-e", PASS, &fds.join(",")]);
    command.arg(env!("CARGO_BIN_EXE_fairlane")).env("NOTIFY_SOCKET", directory.join("notify"));
    if !names.is_empty() {
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    command
}
