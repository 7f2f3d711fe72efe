//! The socket at which frontend and backend meet: one listens, the other connects.

use super::access::Access;
use crate::poller::Watcher;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a frontend that is not there is looked for.
const RETRY: Duration = Duration::from_millis(200);

/// The socket's number in the port's poller.
const SOCKET: u32 = 0;

enum Role {
    Listener(UnixListener),
    /// Connects each time the timer fires.
    Caller(TimerFd),
}

/// Sees that the directory a socket is to be in is there.
///
/// # Errors
/// A sentence that names the directory.
pub fn directory_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) if !parent.is_dir() => {
            let why = format!("there is no directory {}: make it, or name another path", parent.display());
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        _ => Ok(()),
    }
}

/// Whether nobody listens at a socket, and nobody will: only a refused connection proves that. It does not wait for who is slow to
/// accept.
///
/// # Errors
/// What the system says: it cannot be tried.
pub fn is_left_behind(path: &Path) -> io::Result<bool> {
    match connect(path) {
        Err(Errno::ECONNREFUSED) => Ok(true),
        // With a full queue there is somebody as well.
        Ok(_) | Err(Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A listening socket, removed when dropped, or the place of one to connect to.
pub struct Socket {
    path: PathBuf,
    role: Role,
}

impl Socket {
    /// Listens on `path`, for who has access. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// A sentence that names the path.
    pub fn listen(path: &Path, access: &Access) -> io::Result<Socket> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("socket {}: {error}", path.display()));
        let stale = path.symlink_metadata().is_ok_and(|info| info.file_type().is_socket());
        if stale {
            match is_left_behind(path) {
                Ok(true) => std::fs::remove_file(path).map_err(at)?,
                Ok(false) => {
                    let why = format!("socket {} is in use by another process; end it or name another", path.display());
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
                }
                // It went in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(at(error)),
            }
        }
        directory_of(path).map_err(at)?;
        let listener = stream_socket().map_err(|error| at(error.into()))?;
        let address = UnixAddr::new(path).map_err(|error| at(error.into()))?;
        bind(listener.as_raw_fd(), &address).map_err(|error| at(error.into()))?;
        // From here on it is ours to remove.
        let socket = Socket { path: path.to_owned(), role: Role::Listener(listener.into()) };
        access.give(path).map_err(|error| {
            let what = format!("cannot be given its owner, group or mode: {error}");
            at(io::Error::new(error.kind(), what))
        })?;
        if let Role::Listener(listener) = &socket.role {
            listen(listener, Backlog::MAXCONN).map_err(|error| at(error.into()))?;
        }
        Ok(socket)
    }

    /// Will connect to `path` whenever somebody listens there.
    ///
    /// # Errors
    /// What the system says of a timer.
    pub fn connect(path: &Path) -> io::Result<Socket> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        Ok(Socket { path: path.to_owned(), role: Role::Caller(timer) })
    }

    /// A frontend, if one is there now.
    pub fn accept(&self) -> Option<UnixStream> {
        match &self.role {
            Role::Listener(listener) => listener.accept().ok().map(|(stream, _)| stream),
            Role::Caller(_) => connect(&self.path).ok(),
        }
    }

    /// Handles the socket's own event.
    pub fn event(&self) {
        if let Role::Caller(timer) = &self.role {
            // It fired, or it did not: then the next try only comes sooner.
            let _ = timer.wait();
        }
    }

    /// Stops waiting: there is a frontend. Others wait in the socket's own queue.
    pub fn pause(&self, watcher: &Watcher) {
        match &self.role {
            Role::Listener(listener) => watcher.remove(listener),
            Role::Caller(timer) => watcher.remove(timer),
        }
    }

    /// Waits for a frontend.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, watcher: &Watcher) -> io::Result<()> {
        match &self.role {
            Role::Listener(listener) => watcher.add(listener, SOCKET),
            Role::Caller(timer) => {
                timer.set(Expiration::Interval(TimeSpec::from_duration(RETRY)), TimerSetTimeFlags::empty())?;
                watcher.add(timer, SOCKET)
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if matches!(self.role, Role::Listener(_)) {
            // Whoever removed it before did what was to be done.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Connects without waiting: who does not accept now is asked again later.
fn connect(path: &Path) -> nix::Result<UnixStream> {
    let socket = stream_socket()?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
