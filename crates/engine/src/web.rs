//! The live page, its figures and Prometheus' metrics over HTTP/1.1: one thread, a limited number of connections, one request each.
//!
//! Every local user may connect, so the server waits for no client: one that is silent or does not read occupies one of a few
//! places for a few seconds, less if others need it. Figures are made at most once a second, however often they are requested.

mod answer;
mod history;
mod page;
mod request;
mod site;
mod watch;

use crate::accept;
use crate::confinement;
use crate::error::Error;
use crate::snapshot::Snapshot;
use answer::Answer;
use fairlane_port::store;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use request::Guard;
use site::Site;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most connections at a time.
const PLACES: usize = 16;

/// Longest head of a request in bytes.
const HEAD: usize = 8 << 10;

/// How long a client may take to send its request, and for each further part of the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a client keeps its place even if others wait: longer than a request takes to follow its connection.
const GRACE: Duration = Duration::from_millis(20);

/// Returns a snapshot, or a sentence why there is none.
pub type Source = Arc<dyn Fn() -> Result<Snapshot, Error> + Send + Sync>;

/// An HTTP server that answers until it is dropped.
pub struct Server {
    address: SocketAddr,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on an address; port 0 chooses a free one. Clients must know the token in a file, if one is given.
    ///
    /// # Errors
    /// The address is in use, or not loopback although there is no token; the token cannot be read.
    pub fn start(address: SocketAddr, token: Option<&Path>, source: Source) -> Result<Server, Error> {
        let guard = match token {
            Some(file) => Guard::with_token(file)
                .map_err(|error| Error::failed(format!("cannot use the token in {}", file.display()), error))?,
            None if address.ip().is_loopback() => Guard::default(),
            None => {
                return Err(Error::Policy(format!(
                    "without a token metrics are served on loopback only, for example 127.0.0.1:9477, not on {address}"
                )));
            }
        };
        let said = |error: &dyn fmt::Display| Error::failed(format!("cannot serve metrics on {address}"), error);
        let name = format!("web {address}");
        let listener = store::named_listener(&name, || TcpListener::bind(address)).map_err(|error| said(&error))?;
        listener.set_nonblocking(true).map_err(|error| said(&error))?;
        let address = listener.local_addr().map_err(|error| said(&error))?;
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| said(&error))?);
        let rung = bell.clone();
        let site = Site::new(source, guard);
        let mut desk = Desk { listener, connections: Vec::new(), site, refused: None };
        let serves = move || while desk.turn(&rung) {};
        let thread = confinement::spawn(confinement::Kind::Web, "fairlane-web", serves);
        let thread = thread.map_err(|error| said(&error))?;
        Ok(Server { address, bell, thread: Some(thread) })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let (Ok(_), Some(thread)) = (self.bell.write(1), self.thread.take()) {
            // It panics only because of a defect, which was reported then.
            let _ = thread.join();
        }
    }
}

/// The accepting and answering loop.
struct Desk {
    listener: Arc<TcpListener>,
    connections: Vec<Connection>,
    site: Site,
    /// When the system last refused to accept.
    refused: Option<Instant>,
}

impl Desk {
    /// Waits for events and handles them. Returns false once the stop event is set.
    fn turn(&mut self, bell: &EventFd) -> bool {
        let now = Instant::now();
        let meets = self.meets_from();
        let due =
            self.connections.iter().map(|connection| connection.since + PATIENCE).chain(meets.filter(|at| *at > now));
        let timeout = due.chain([self.site.next_step()]).min().map_or(PollTimeout::NONE, |due| {
            // Rounded up, or the last part of a millisecond would be a busy loop.
            PollTimeout::try_from(due.saturating_duration_since(now) + Duration::from_millis(1))
                .unwrap_or(PollTimeout::MAX)
        });
        let waited_for =
            self.connections.iter().map(|connection| PollFd::new(connection.stream.as_fd(), connection.wants()));
        let mut ready = vec![PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        ready.extend(waited_for);
        if meets.is_none_or(|at| at <= now) {
            ready.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut ready, timeout) {
            Ok(_) => {}
            Err(Errno::EINTR) => return true,
            // Lack of memory, at most; handled like an error of accept.
            Err(_) => std::thread::sleep(accept::PAUSE),
        }
        let mut ready = ready.iter().map(|fd| fd.any() == Some(true)).collect::<Vec<_>>().into_iter();
        if ready.next() == Some(true) {
            return false;
        }
        let (now, site) = (Instant::now(), &mut self.site);
        site.step(now);
        self.connections.retain_mut(|connection| match ready.next() {
            Some(true) => connection.goes_on(site),
            _ => now < connection.since + PATIENCE,
        });
        if ready.next() == Some(true) {
            self.meet();
        }
        true
    }

    /// When the next client may be accepted, if not at any time: a while after the system refused a descriptor, if another client
    /// may be disconnected for it.
    fn meets_from(&self) -> Option<Instant> {
        let spared = self.refused.map(|refused| refused + accept::PAUSE);
        let free = self.first_to_go().map(|place| self.connections[place].since + GRACE);
        spared.max(free)
    }

    /// The client to disconnect for the next one if all places are occupied: the one that has been silent the longest, or else has
    /// not read the longest.
    fn first_to_go(&self) -> Option<usize> {
        let places = 0..self.connections.len();
        let first = places.min_by_key(|place| {
            let connection = &self.connections[*place];
            (connection.answer.is_some(), connection.since)
        });
        first.filter(|_| self.connections.len() == PLACES)
    }

    fn meet(&mut self) {
        match self.listener.accept().and_then(|(stream, _)| Connection::new(stream)) {
            Ok(connection) => {
                if let Some(place) = self.first_to_go() {
                    self.connections.remove(place);
                }
                self.connections.push(connection);
                self.refused = None;
            }
            Err(error) if accept::is_of_the_client(&error) => {}
            Err(error) => {
                if self.refused.is_none() {
                    tracing::warn!(%error, "no client of the live page and the metrics can be met for now");
                }
                self.refused = Some(Instant::now());
            }
        }
    }
}

/// A client, from its connection to the end of its answer.
struct Connection {
    stream: TcpStream,
    /// When it connected, or last read a part of the answer.
    since: Instant,
    request: Vec<u8>,
    answer: Option<Answer>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        Ok(Connection { stream, since: Instant::now(), request: Vec::new(), answer: None })
    }

    fn wants(&self) -> PollFlags {
        if self.answer.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Reads and writes as much as possible. Returns false when the client is finished.
    fn goes_on(&mut self, site: &mut Site) -> bool {
        let step = if self.answer.is_none() { self.hears(site) } else { Ok(true) };
        // A client that disconnects is not an error.
        let answers = matches!(step, Ok(true)).then(|| self.answers());
        match (step, answers) {
            (_, Some(Ok(done))) => !done,
            (Ok(false), _) => self.since.elapsed() < PATIENCE,
            _ => false,
        }
    }

    /// Reads. Returns true if there is an answer to write.
    fn hears(&mut self, site: &mut Site) -> io::Result<bool> {
        let mut part = [0; HEAD];
        match self.stream.read(&mut part[self.request.len()..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => self.request.extend(&part[self.request.len()..][..bytes]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let whole = self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
        if whole {
            self.answer = Some(site.answer(&self.request));
        } else if self.request.len() == HEAD {
            self.answer =
                Some(Answer::refusal("431 Request Header Fields Too Large", "a request's head has at most 8 KiB\n"));
        }
        self.since = if self.answer.is_some() { Instant::now() } else { self.since };
        Ok(self.answer.is_some())
    }

    /// Writes. Returns true if everything is written.
    fn answers(&mut self) -> io::Result<bool> {
        let Some(answer) = &mut self.answer else { return Ok(false) };
        while let Some(part) = answer.rest() {
            match self.stream.write(part) {
                Ok(bytes) => {
                    answer.wrote(bytes);
                    self.since = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
