//! The socket between frontend and backend: one listens, the other connects.

use super::access::Access;
use crate::descriptor::apart;
use crate::poller::Watcher;
use crate::store;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often to try to connect to a frontend that does not listen yet.
const RETRY: Duration = Duration::from_millis(200);

/// The socket's number in the port's poller.
const SOCKET: u32 = 0;

enum Role {
    Listener(Arc<Listener>),
    /// Connects each time the timer fires.
    Connector(TimerFd),
}

/// A listening socket. Frontends in its queue may have sent files already, so it is closed [apart](apart), too.
struct Listener(ManuallyDrop<UnixListener>);

impl From<OwnedFd> for Listener {
    fn from(socket: OwnedFd) -> Listener {
        Listener(ManuallyDrop::new(socket.into()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        let listener = unsafe { ManuallyDrop::take(&mut self.0) };
        apart(move || drop(listener));
    }
}

/// Checks that the directory of a socket exists.
///
/// # Errors
/// Text that names the directory.
pub fn directory_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) if !parent.is_dir() => {
            let why = format!("there is no directory {}: make it, or name another path", parent.display());
            Err(io::Error::new(io::ErrorKind::NotFound, why))
        }
        _ => Ok(()),
    }
}

/// Whether no process listens at a socket, nor will: only a refused connection proves that. Does not wait for a
/// listener that is slow to accept.
///
/// # Errors
/// The system's error: the connection could not be tried.
pub fn is_left_behind(path: &Path) -> io::Result<bool> {
    match connect(path) {
        Err(Errno::ECONNREFUSED) => Ok(true),
        // A full queue has a listener as well.
        Ok(_) | Err(Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A listening socket, removed when dropped, or the path of one to connect to.
pub(super) struct Socket {
    path: PathBuf,
    role: Role,
}

impl Socket {
    /// Listens on `path`, with this access control. Replaces a socket left by a dead process, and goes on with that of a
    /// process which this one succeeds.
    ///
    /// # Errors
    /// Text that names the path.
    pub(super) fn listen(path: &Path, access: &Access) -> io::Result<Socket> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("socket {}: {error}", path.display()));
        let listener = store::listener(path, || bind_to(path))?;
        // From here on it is ours to remove.
        let socket = Socket { path: path.to_owned(), role: Role::Listener(listener.clone()) };
        access.apply(path).map_err(|error| {
            let what = format!("cannot set its owner, group or mode: {error}");
            at(io::Error::new(error.kind(), what))
        })?;
        listen(&*listener, Backlog::MAXCONN).map_err(|error| at(error.into()))?;
        Ok(socket)
    }

    /// Connects to `path` as soon as there is a listener.
    ///
    /// # Errors
    /// The system's error for the timer.
    pub(super) fn connect(path: &Path) -> io::Result<Socket> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        Ok(Socket { path: path.to_owned(), role: Role::Connector(timer) })
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a frontend, or connects to one, if there is one now.
    pub(super) fn accept(&self) -> Option<UnixStream> {
        match &self.role {
            Role::Listener(listener) => listener.0.accept().ok().map(|(stream, _)| stream),
            Role::Connector(_) => connect(&self.path).ok(),
        }
    }

    /// Handles the socket's own event.
    pub(super) fn event(&self) {
        if let Role::Connector(timer) = &self.role {
            // The timer fired or it did not: in that case the next attempt only comes sooner.
            let _ = timer.wait();
        }
    }

    /// Stops watching, as a frontend is connected. Others wait in the socket's own queue.
    pub(super) fn pause(&self, watcher: &Watcher) {
        match &self.role {
            Role::Listener(listener) => watcher.remove(&**listener),
            Role::Connector(timer) => watcher.remove(timer),
        }
    }

    /// Watches for a frontend.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn wait(&self, watcher: &Watcher) -> io::Result<()> {
        match &self.role {
            Role::Listener(listener) => watcher.add(&**listener, SOCKET),
            Role::Connector(timer) => {
                timer.set(Expiration::Interval(TimeSpec::from_duration(RETRY)), TimerSetTimeFlags::empty())?;
                watcher.add(timer, SOCKET)
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if matches!(self.role, Role::Listener(_)) && !store::is_others() {
            // It may have been removed already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A socket at a path, which does not listen yet.
fn bind_to(path: &Path) -> io::Result<Listener> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("socket {}: {error}", path.display()));
    if path.symlink_metadata().is_ok_and(|info| info.file_type().is_socket()) {
        match is_left_behind(path) {
            Ok(true) => std::fs::remove_file(path).map_err(at)?,
            Ok(false) => {
                let why = format!("socket {} is in use by another process; end it or name another", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            // It was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(error)),
        }
    }
    directory_of(path).map_err(at)?;
    let socket = stream_socket().map_err(|error| at(error.into()))?;
    let address = UnixAddr::new(path).map_err(|error| at(error.into()))?;
    bind(socket.as_raw_fd(), &address).map_err(|error| at(error.into()))?;
    Ok(socket.into())
}

/// Connects without blocking: a full queue is an error, and the connection is tried again later.
fn connect(path: &Path) -> nix::Result<UnixStream> {
    let socket = stream_socket()?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}
