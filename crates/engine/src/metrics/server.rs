//! Answers `GET /metrics` over HTTP/1.1: one thread, a limited number of connections, one request each.
//!
//! Every local user may connect, so the server waits for no client: one that is silent or does not read occupies one of a few
//! places for a few seconds, less if others need it. The page is made at most once a second, however often it is requested.

use super::{Source, page};
use crate::accept;
use crate::confinement;
use crate::error::Error;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
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

/// Oldest age of a page.
const FRESH: Duration = Duration::from_secs(1);

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An HTTP server that answers `GET /metrics` until it is dropped.
pub struct Server {
    address: SocketAddr,
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on a loopback address; port 0 chooses a free one.
    ///
    /// # Errors
    /// The address is not loopback, or in use.
    pub fn start(address: SocketAddr, source: Source) -> Result<Server, Error> {
        if !address.ip().is_loopback() {
            return Err(Error::Policy(format!(
                "metrics are served on loopback only, for example 127.0.0.1:9464, not on {address}"
            )));
        }
        let said = |error: &dyn fmt::Display| Error::failed(format!("cannot serve metrics on {address}"), error);
        let listener = TcpListener::bind(address).map_err(|error| said(&error))?;
        listener.set_nonblocking(true).map_err(|error| said(&error))?;
        let address = listener.local_addr().map_err(|error| said(&error))?;
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(|error| said(&error))?);
        let rung = bell.clone();
        let mut desk = Desk { listener, connections: Vec::new(), pages: Pages { source, last: None }, refused: None };
        let serves = move || while desk.turn(&rung) {};
        let thread = confinement::spawn(confinement::Kind::Metrics, "fairlane-metrics", serves);
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
    listener: TcpListener,
    connections: Vec<Connection>,
    pages: Pages,
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
        let timeout = due.min().map_or(PollTimeout::NONE, |due| {
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
        let (now, pages) = (Instant::now(), &mut self.pages);
        self.connections.retain_mut(|connection| match ready.next() {
            Some(true) => connection.goes_on(pages),
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
                    tracing::warn!(%error, "no client of the metrics can be met for now");
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
    fn goes_on(&mut self, pages: &mut Pages) -> bool {
        let step = if self.answer.is_none() { self.hears(pages) } else { Ok(true) };
        // A client that disconnects is not an error.
        let answers = matches!(step, Ok(true)).then(|| self.answers());
        match (step, answers) {
            (_, Some(Ok(done))) => !done,
            (Ok(false), _) => self.since.elapsed() < PATIENCE,
            _ => false,
        }
    }

    /// Reads. Returns true if there is an answer to write.
    fn hears(&mut self, pages: &mut Pages) -> io::Result<bool> {
        let mut part = [0; HEAD];
        match self.stream.read(&mut part[self.request.len()..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => self.request.extend(&part[self.request.len()..][..bytes]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let whole = self.request.windows(4).any(|bytes| bytes == b"\r\n\r\n");
        if whole {
            self.answer = Some(pages.answer(&self.request));
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
                    answer.written += bytes;
                    self.since = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// An answer being written. Simultaneous answers share the page.
struct Answer {
    head: String,
    body: Arc<str>,
    written: usize,
}

impl Answer {
    fn new(status: &str, kind: &str, body: Arc<str>) -> Answer {
        let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
        );
        Answer { head, body, written: 0 }
    }

    fn refusal(status: &str, sentence: &str) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", sentence.into())
    }

    /// The next part to write.
    fn rest(&self) -> Option<&[u8]> {
        let (head, body) = (self.head.as_bytes(), self.body.as_bytes());
        let rest = head.get(self.written..).filter(|rest| !rest.is_empty());
        rest.or_else(|| body.get(self.written - head.len()..)).filter(|rest| !rest.is_empty())
    }
}

/// A page, or a sentence why there is none.
type Page = Result<Arc<str>, Arc<str>>;

/// The page, and when it was made.
struct Pages {
    source: Source,
    last: Option<(Instant, Page)>,
}

impl Pages {
    fn answer(&mut self, request: &[u8]) -> Answer {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let mut words = line.split(|byte| *byte == b' ');
        let (method, target) = (words.next(), words.next().unwrap_or_default());
        match (method, target.split(|byte| *byte == b'?').next()) {
            (Some(b"GET"), Some(b"/metrics")) => match self.page() {
                Ok(page) => Answer::new("200 OK", OPEN_METRICS, page),
                Err(sentence) => Answer::refusal("503 Service Unavailable", &sentence),
            },
            (Some(b"GET"), _) => Answer::refusal("404 Not Found", "metrics are at /metrics\n"),
            _ => Answer::refusal("405 Method Not Allowed", "only GET is answered\n"),
        }
    }

    /// The page, made again if it is too old. An error is kept as long: workers that do not respond are not asked again at once.
    fn page(&mut self) -> Page {
        match &self.last {
            Some((made, page)) if made.elapsed() < FRESH => page.clone(),
            _ => {
                let made =
                    (self.source)().map(|snapshot| page(snapshot).into()).map_err(|error| error.to_string().into());
                self.last = Some((Instant::now(), made.clone()));
                made
            }
        }
    }
}

#[cfg(test)]
mod tests;
