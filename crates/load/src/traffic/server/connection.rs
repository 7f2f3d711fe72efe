//! One connection of the server: the state of its request and answer.
//!
//! It buffers at most a head of received bytes, and none to send: an answer's padding is generated at each call.

use std::{
    io::{Cursor, Write},
    net::{Shutdown, TcpStream},
};

use nix::errno::Errno;

use super::counters::{Counters, add};
use crate::traffic::{
    HEADER,
    http::{self, HEAD},
    sockets::{receive, send, send_both},
    wire::{self, Kind, RESPONSE},
};

/// Bytes of padding per write, and of a read whose bytes are discarded.
pub(super) const CHUNK: usize = 128 << 10;
/// Consecutive reads and writes before other connections are served.
const TURN: usize = 16;

/// A connection.
pub(super) struct Connection {
    stream: TcpStream,
    doing: Doing,
    /// Received bytes of an incomplete request, and how many of them have been parsed without a result.
    partial: Vec<u8>,
    parsed: usize,
    /// The time of its last progress: its start, the end of a request, or a transfer of bytes. Nanoseconds since the server's start.
    pub since: u64,
    /// Whether its socket is polled for writing.
    pub writing: bool,
}

enum Doing {
    /// Waits for a request's head.
    Head,
    /// Receives the rest of a request.
    Rest { left: u64, then: Answer },
    /// Sends an answer.
    Answer(Answer),
    /// Receives a stream, and reports its length at the end.
    Sink { bytes: u64 },
    /// Sends a stream until the client closes.
    Source { begun: bool },
    /// Has refused a request, and reads until the client closes so that it gets the reason.
    Drain,
}

/// An answer, from which its bytes are generated as needed.
#[derive(Clone, Copy)]
struct Answer {
    what: What,
    /// Bytes sent so far.
    sent: u64,
}

#[derive(Clone, Copy)]
enum What {
    /// Padding of this size; the first byte identifies the protocol.
    Padding { size: u64 },
    /// An HTTP response. A refusal has no body.
    Http { status: u16, size: u64, keep_alive: bool, head_only: bool },
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Bytes to receive.
    Read,
    /// Room to send.
    Write,
    /// Nothing: it can be closed.
    Close,
}

/// The resources of a thread that its connections share.
pub(super) struct Shared<'a> {
    pub scratch: &'a mut [u8],
    pub padding: &'a [u8],
    pub counters: &'a Counters,
    pub now: u64,
}

impl Connection {
    /// A newly accepted connection.
    pub(super) fn new(stream: TcpStream, now: u64) -> Connection {
        Connection { stream, doing: Doing::Head, partial: Vec::new(), parsed: 0, since: now, writing: false }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Continues until it would block, or others should be served.
    pub(super) fn advance(&mut self, shared: &mut Shared) -> Next {
        for _ in 0..TURN {
            let step = match self.doing {
                Doing::Head => self.head(shared),
                Doing::Rest { left, then } => self.rest(left, then, shared),
                Doing::Answer(answer) => self.answer(answer, shared),
                Doing::Sink { bytes } => self.sink(bytes, shared),
                Doing::Source { begun } => self.source(begun, shared),
                Doing::Drain => receive(&self.stream, shared.scratch).map(|read| (read == 0).then_some(Next::Close)),
            };
            match step {
                Ok(None) => (),
                Ok(Some(next)) => return next,
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    add(&shared.counters.reset, 1);
                    return Next::Close;
                }
            }
        }
        match self.doing {
            Doing::Answer(_) | Doing::Source { .. } => Next::Write,
            _ => Next::Read,
        }
    }

    /// Receives and parses a request's head.
    fn head(&mut self, shared: &mut Shared) -> Result<Option<Next>, Errno> {
        if self.partial.len() == self.parsed {
            let read = receive(&self.stream, &mut shared.scratch[..HEAD - self.parsed])?;
            add(&shared.counters.received, read as u64);
            if read == 0 {
                return Ok(Some(Next::Close));
            }
            if self.parsed > 0 {
                self.partial.extend_from_slice(&shared.scratch[..read]);
            } else {
                // A request usually arrives at once, and nothing is buffered.
                let (doing, used) = parse(&shared.scratch[..read]);
                return Ok(self.start(doing, used, read, shared, true));
            }
        }
        let (doing, used) = parse(&self.partial);
        Ok(self.start(doing, used, self.partial.len(), shared, false))
    }

    /// Starts what a head requests, and buffers the bytes after it. `used` of the `there` received bytes are the head; they are in the
    /// scratch memory if `fresh`, else in the buffer.
    fn start(&mut self, doing: Doing, used: usize, there: usize, shared: &mut Shared, fresh: bool) -> Option<Next> {
        if let Doing::Answer(Answer { what: What::Http { status: 400.., .. }, .. }) = doing {
            add(&shared.counters.refused, 1);
        }
        let more = matches!(doing, Doing::Head);
        // The rest of a request and the bytes of a stream are discarded, not buffered.
        let (doing, used) = match doing {
            Doing::Rest { left, then } => {
                let here = ((there - used) as u64).min(left);
                let (left, used) = (left - here, used + here as usize);
                (if left == 0 { Doing::Answer(then) } else { Doing::Rest { left, then } }, used)
            }
            Doing::Sink { .. } => (Doing::Sink { bytes: there as u64 }, there),
            doing => (doing, used),
        };
        if fresh {
            if used < there {
                self.partial.extend_from_slice(&shared.scratch[used..there]);
            }
        } else {
            self.partial.drain(..used);
        }
        self.parsed = if more { self.partial.len() } else { 0 };
        if !more {
            self.since = shared.now;
        }
        self.doing = doing;
        None
    }

    /// Receives and discards the rest of a request.
    fn rest(&mut self, left: u64, then: Answer, shared: &mut Shared) -> Result<Option<Next>, Errno> {
        let most = usize::try_from(left).map_or(shared.scratch.len(), |left| left.min(shared.scratch.len()));
        let read = self.receive_some(most, shared)?;
        self.doing = match left - read {
            0 => Doing::Answer(then),
            left => Doing::Rest { left, then },
        };
        Ok((read == 0).then_some(Next::Close))
    }

    fn receive_some(&mut self, most: usize, shared: &mut Shared) -> Result<u64, Errno> {
        let read = receive(&self.stream, &mut shared.scratch[..most])? as u64;
        add(&shared.counters.received, read);
        self.since = shared.now;
        Ok(read)
    }

    /// Sends an answer, or the rest of it.
    fn answer(&mut self, mut answer: Answer, shared: &mut Shared) -> Result<Option<Next>, Errno> {
        let mut head = [0; 256];
        let (length, size) = answer.head(&mut head);
        let all = length as u64 + size;
        let from = (answer.sent as usize).min(length);
        let body = (all - answer.sent.max(length as u64)).min(shared.padding.len() as u64) as usize;
        let sent = send_both(&self.stream, &head[from..length], &shared.padding[..body])? as u64;
        add(&shared.counters.sent, sent);
        answer.sent += sent;
        self.since = shared.now;
        if answer.sent < all {
            self.doing = Doing::Answer(answer);
            return Ok(None);
        }
        add(&shared.counters.requests, 1);
        match answer.what {
            What::Padding { .. } | What::Http { keep_alive: true, .. } => {
                self.doing = Doing::Head;
                // The next request has seldom arrived yet; an event will announce it.
                return Ok(self.partial.is_empty().then_some(Next::Read));
            }
            What::Http { status: 400.., .. } => {
                // Closing with unread bytes would reset the connection, and the client would not get the reason.
                self.stream.shutdown(Shutdown::Write).map_err(|_| Errno::ECONNRESET)?;
                self.doing = Doing::Drain;
            }
            What::Http { .. } => return Ok(Some(Next::Close)),
        }
        Ok(None)
    }

    fn sink(&mut self, bytes: u64, shared: &mut Shared) -> Result<Option<Next>, Errno> {
        let read = self.receive_some(shared.scratch.len(), shared)?;
        self.doing = Doing::Sink { bytes: bytes + read };
        if read > 0 {
            return Ok(None);
        }
        add(&shared.counters.requests, 1);
        let sent = send(&self.stream, &bytes.to_be_bytes())?;
        add(&shared.counters.sent, sent as u64);
        Ok(Some(Next::Close))
    }

    fn source(&mut self, begun: bool, shared: &mut Shared) -> Result<Option<Next>, Errno> {
        let first: &[u8] = if begun { &[] } else { &[RESPONSE] };
        let sent = match send_both(&self.stream, first, shared.padding) {
            // The client has closed.
            Err(Errno::ECONNRESET | Errno::EPIPE) => {
                add(&shared.counters.requests, 1);
                return Ok(Some(Next::Close));
            }
            result => result?,
        };
        add(&shared.counters.sent, sent as u64);
        self.since = shared.now;
        self.doing = Doing::Source { begun: true };
        Ok(None)
    }
}

/// Parses the head of a request: what to do, and the length of the head.
fn parse(bytes: &[u8]) -> (Doing, usize) {
    let refuse = |status| {
        let what = What::Http { status, size: 0, keep_alive: false, head_only: false };
        (Doing::Answer(Answer { what, sent: 0 }), bytes.len())
    };
    if bytes[0] == wire::REQUEST {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return (Doing::Head, 0) };
        return match wire::parse(header) {
            Some(Kind::Exchange(sizes)) => {
                let then = Answer { what: What::Padding { size: sizes.response.into() }, sent: 0 };
                (Doing::Rest { left: u64::from(sizes.request) - HEADER as u64, then }, HEADER)
            }
            Some(Kind::Sink) => (Doing::Sink { bytes: 0 }, HEADER),
            Some(Kind::Source) => (Doing::Source { begun: false }, HEADER),
            None => refuse(400),
        };
    }
    match http::request(bytes) {
        Ok(None) => (Doing::Head, 0),
        Ok(Some(http::Request { head, body, size, keep_alive, head_only })) => {
            let then = Answer { what: What::Http { status: 200, size, keep_alive, head_only }, sent: 0 };
            (Doing::Rest { left: body, then }, head)
        }
        Err(status) => refuse(status),
    }
}

impl Answer {
    /// Writes the part before the padding; returns its length, and the padding's.
    fn head(&self, to: &mut [u8; 256]) -> (usize, u64) {
        match self.what {
            What::Padding { size } => {
                to[0] = RESPONSE;
                (1, size - 1)
            }
            What::Http { status, size, keep_alive, head_only } => {
                let reason = match status {
                    200 => "OK",
                    400 => "Bad Request",
                    431 => "Request Header Fields Too Large",
                    501 => "Not Implemented",
                    _ => "HTTP Version Not Supported",
                };
                let connection = if keep_alive { "keep-alive" } else { "close" };
                let mut to = Cursor::new(&mut to[..]);
                // The longest head fits 256 bytes.
                let _ = write!(
                    to,
                    "HTTP/1.1 {status} {reason}\r\nContent-Length: {size}\r\nConnection: {connection}\r\n\r\n"
                );
                (to.position() as usize, if head_only { 0 } else { size })
            }
        }
    }
}
