//! The server: one thread accepts connections, and one thread per connection answers. None of them forwards frames.

use super::protocol::{self, Call, LINE, Misread, Reply, Request};
use crate::accept;
use crate::confinement;
use crate::error::Error;
use fairlane_port::vhost_user::{Access, directory_of, is_left_behind};
use fairlane_port::{handover, store};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockopt, listen, socket};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most connections at a time; further ones get an error and are closed.
const CONNECTIONS: usize = 16;

/// How long a connection may be silent, or not read its answer, before it is closed.
const SILENCE: Duration = Duration::from_secs(60);

/// How long an observer waits for each answer, which takes the workers' time: together observers get at most 320 a second.
const PACE: Duration = Duration::from_millis(50);

/// Answers requests with a value, or with a sentence why not.
pub type Answer = Arc<dyn Fn(Request) -> Result<serde_json::Value, Error> + Send + Sync>;

/// Hands everything over to the process of this number at the other end of a connection. Returns when that one serves it.
pub type HandOver = Arc<dyn Fn(&UnixStream, i32) -> Result<(), Error> + Send + Sync>;

/// A control socket, served until it is dropped.
pub struct Server {
    path: PathBuf,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// What the clients of a socket may do.
#[derive(Clone)]
enum Role {
    /// Anything. A process that has something to hand over does so.
    Owner(Option<HandOver>),
    /// Look.
    Observer,
}

impl Server {
    /// Creates the owner's socket, of mode 0600, and serves it. A socket left by a process that ended is replaced.
    ///
    /// # Errors
    /// The path is in use, is something else, or cannot be created.
    pub fn start(path: &Path, answer: Answer) -> Result<Server, Error> {
        Server::start_for_owner(path, answer, None)
    }

    /// The same of a process that can hand over to its successor.
    ///
    /// # Errors
    /// The same.
    pub fn start_for_owner(path: &Path, answer: Answer, hand_over: Option<HandOver>) -> Result<Server, Error> {
        let access = Access { mode: Some(0o600), ..Access::default() };
        Server::start_for(path, Role::Owner(hand_over), access, answer)
    }

    /// Creates the socket of those who may only look.
    ///
    /// # Errors
    /// The same.
    pub fn start_for_observers(path: &Path, access: Access, answer: Answer) -> Result<Server, Error> {
        Server::start_for(path, Role::Observer, access, answer)
    }

    /// Creates the socket of a role, for these users, and serves it; or serves the one that the former process gave.
    fn start_for(path: &Path, role: Role, access: Access, answer: Answer) -> Result<Server, Error> {
        let said = |error: &dyn Display| Error::failed(format!("cannot make control socket {}", path.display()), error);
        let listener = store::listener(path, || {
            directory_of(path).map_err(|error| said(&error))?;
            clear(path)?;
            listen_for(path, access).map_err(|error| said(&error))
        })?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| said(&error))?;
        let mut server = Server { path: path.to_owned(), bell: Arc::new(bell), thread: None };
        let bell = server.bell.clone();
        let meets = move || meet(&listener, &bell, Clients::new(role, answer));
        let thread = confinement::spawn(confinement::Kind::Control, "fairlane-control", meets);
        let thread = thread.map_err(|error| said(&error))?;
        server.thread = Some(thread);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let (Ok(_), Some(thread)) = (self.bell.write(1), self.thread.take()) {
            // It panics only because of a defect, which was reported then.
            let _ = thread.join();
        }
        if !store::is_others() {
            // It may be gone already; at the end this does not matter.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a stale socket from the path.
fn clear(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::failed(format!("cannot look at control socket {shown}"), error)),
        Ok(found) if !found.file_type().is_socket() => Err(Error::failed(
            format!("control socket {shown} exists and is not a socket"),
            "remove it or name another path",
        )),
        Ok(_) => match is_left_behind(path) {
            Ok(true) => std::fs::remove_file(path)
                .map_err(|error| Error::failed(format!("cannot remove stale control socket {shown}"), error)),
            Err(error) => Err(Error::failed(format!("control socket {shown} cannot be tried"), error)),
            Ok(false) => Err(Error::failed(
                format!("control socket {shown} is in use by a running process"),
                "stop it or name another path",
            )),
        },
    }
}

/// Listens on a socket. On Linux a socket's mode at `bind` is that of its descriptor, so it is never wider, and nobody can connect
/// before it listens.
fn listen_for(path: &Path, access: Access) -> io::Result<UnixListener> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let mode = access.mode.unwrap_or(0o600);
    fchmod(&fd, Mode::from_bits_truncate(mode))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    // The umask may have taken some of its mode away.
    Access { mode: Some(mode), ..access }.apply(path)?;
    listen(&fd, Backlog::new(CONNECTIONS as i32)?)?;
    Ok(UnixListener::from(fd))
}

/// Accepts clients until the stop event, and disconnects them then.
fn meet(listener: &UnixListener, bell: &EventFd, clients: Clients) {
    loop {
        let mut ready =
            [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        let met = match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) if ready[1].any() == Some(true) => break,
            Ok(_) => listener.accept().and_then(|(stream, _)| clients.take_in(stream)),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = met
            && !accept::is_of_the_client(&error)
        {
            tracing::warn!(%error, "a control client could not be served");
            // Returns at once if the stop event is set. An error of this poll occurs again in the next.
            let mut bell = [PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut bell, PollTimeout::try_from(accept::PAUSE).unwrap_or(PollTimeout::ZERO));
        }
    }
    for stream in clients.open().values() {
        // Data already written are still delivered. A client that is gone needs no disconnect.
        let _ = stream.shutdown(Shutdown::Read);
    }
}

/// The clients of a socket.
#[derive(Clone)]
struct Clients {
    role: Role,
    answer: Answer,
    /// Those that are connected, by the descriptors of their connections.
    open: Arc<Mutex<HashMap<RawFd, Arc<UnixStream>>>>,
}

impl Clients {
    fn new(role: Role, answer: Answer) -> Clients {
        Clients { role, answer, open: Arc::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<RawFd, Arc<UnixStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that serves a client until it disconnects, if a place is free.
    fn take_in(&self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        let (number, stream) = (stream.as_raw_fd(), Arc::new(stream));
        if self.open().len() == CONNECTIONS {
            // The socket buffer has room for a sentence, as nothing was written yet; a client that is gone needs none.
            let _ = reply(&stream, Err(format!("{CONNECTIONS} clients are connected already; try again later")));
            return Ok(());
        }
        self.open().insert(number, stream.clone());
        let clients = self.clone();
        let spawned = std::thread::Builder::new().name("fairlane-control".to_owned()).spawn(move || {
            // A client that disconnects is not an error.
            let _ = clients.converse(&stream);
            // Until then its descriptor is open, so no other connection has this number.
            clients.open().remove(&number);
        });
        spawned.map(drop).inspect_err(|_| drop(self.open().remove(&number)))
    }
    /// Answers line by line.
    fn converse(&self, stream: &UnixStream) -> io::Result<()> {
        let peer = Peer::of(stream)?;
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            lines.by_ref().take(LINE as u64).read_until(b'\n', &mut line)?;
            if line.is_empty() {
                return Ok(());
            }
            if line.len() == LINE && line.last() != Some(&b'\n') {
                return reply(stream, Err(Misread::Long(LINE)));
            }
            match Call::parse(&line) {
                Ok(Request::HandOver(asked)) => match self.hand_over(&asked, stream, &peer) {
                    // The successor has the connection until this process ends.
                    Ok(()) => std::thread::park(),
                    Err(why) => reply(stream, Err(why))?,
                },
                Ok(request) => reply(stream, self.execute(request, &peer))?,
                Err(misread) => reply(stream, Err(misread))?,
            }
        }
    }

    /// Executes a request, and logs who made it if it is not only a look.
    fn execute(&self, request: Request, peer: &Peer) -> Result<serde_json::Value, Error> {
        if matches!(self.role, Role::Observer) {
            std::thread::sleep(PACE);
        }
        let Some(asked) = request.change() else { return (self.answer)(request) };
        let done = match self.role {
            Role::Owner(_) => (self.answer)(request),
            Role::Observer => Err(Error::ReadOnly),
        };
        tell(&asked, peer, done)
    }

    /// Hands everything over to a client, which must be a process of the same user.
    fn hand_over(&self, asked: &protocol::HandOver, stream: &UnixStream, peer: &Peer) -> Result<(), Error> {
        let refused = |why: String| Err(Error::failed("this backend does not hand over", why));
        let done = match &self.role {
            Role::Owner(Some(_)) if peer.user != geteuid().as_raw() => {
                refused(format!("its user is {}, and the client's is {}", geteuid(), peer.user))
            }
            Role::Owner(Some(_)) if asked.format != handover::FORMAT => {
                refused(format!("it gives in format {}, and the client takes {}", handover::FORMAT, asked.format))
            }
            Role::Owner(Some(hand_over)) => hand_over(stream, peer.process),
            Role::Owner(None) => refused("it has nothing to give".to_owned()),
            Role::Observer => Err(Error::ReadOnly),
        };
        tell("hand over", peer, done)
    }
}

/// Logs who asked for something, and whether it was done.
fn tell<T>(asked: &str, peer: &Peer, done: Result<T, Error>) -> Result<T, Error> {
    match &done {
        Ok(_) => tracing::info!("{asked}, by {peer}"),
        Err(why) => tracing::warn!("{asked}, by {peer}: refused: {why}"),
    }
    done
}

/// The process at the other end, as the kernel recorded it when the process connected.
struct Peer {
    process: i32,
    user: u32,
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Peer> {
        let found = getsockopt(stream, PeerCredentials)?;
        Ok(Peer { process: found.pid(), user: found.uid() })
    }
}

impl Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} of user {}", self.process, self.user)
    }
}

/// Tells a client that it is given what it asked for.
///
/// # Errors
/// The system's error.
pub(crate) fn agree(stream: &UnixStream) -> io::Result<()> {
    reply(stream, Ok::<_, Error>(serde_json::Value::Null))
}

fn reply(mut stream: &UnixStream, answer: Result<serde_json::Value, impl Display>) -> io::Result<()> {
    let reply = answer.map_or_else(|error| Reply::Error(error.to_string()), Reply::Ok);
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}
