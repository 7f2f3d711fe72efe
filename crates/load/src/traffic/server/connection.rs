//! One connection of a server: what it has asked for, and how far the answer is.
//!
//! It keeps no more than a head's worth of bytes that came, and none of what goes: answers are filling, made anew at each
//! call.

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

/// Bytes of filling sent at once, and of what is received to be thrown away.
pub const CHUNK: usize = 128 << 10;
/// Reads and writes in a row before others have their turn.
const TURN: usize = 16;

/// A connection.
pub struct Connection {
    stream: TcpStream,
    doing: Doing,
    /// What came of a request that is not complete, and how much of it has been looked at.
    partial: Vec<u8>,
    looked: usize,
    /// When it last got on: began, ended a request, or moved bytes of one. Nanoseconds since the server's start.
    pub since: u64,
    /// Whether its events are those of a socket that can be written.
    pub writing: bool,
}

enum Doing {
    /// Awaits a request's head.
    Head,
    /// Takes the rest of a request.
    Rest { left: u64, then: Answer },
    /// Sends an answer.
    Answer(Answer),
    /// Takes all, to say at the end how much it was.
    Sink { bytes: u64 },
    /// Sends until the other side has enough.
    Pour { begun: bool },
    /// Was refused, and may read the reason: reads to the end.
    Linger,
}

/// An answer: made from this anew as often as needed.
#[derive(Clone, Copy)]
struct Answer {
    what: What,
    /// Bytes that are sent.
    sent: u64,
}

#[derive(Clone, Copy)]
enum What {
    /// Filling of so many bytes, the first of which says whose it is.
    Filling { size: u64 },
    /// A response of HTTP. A refusal has no object.
    Http { status: u16, size: u64, keep_alive: bool, head_only: bool },
}

/// What a connection waits for next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Bytes to come.
    Read,
    /// Room for bytes to go.
    Write,
    /// Nothing: it is over.
    Close,
}

/// What a thread lends its connections.
pub struct Lent<'a> {
    pub scratch: &'a mut [u8],
    pub filling: &'a [u8],
    pub counters: &'a Counters,
    pub now: u64,
}

impl Connection {
    /// A connection just accepted.
    pub fn new(stream: TcpStream, now: u64) -> Connection {
        Connection { stream, doing: Doing::Head, partial: Vec::new(), looked: 0, since: now, writing: false }
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Goes on until it would block, or others should have their turn.
    pub fn advance(&mut self, lent: &mut Lent) -> Next {
        for _ in 0..TURN {
            let step = match self.doing {
                Doing::Head => self.head(lent),
                Doing::Rest { left, then } => self.rest(left, then, lent),
                Doing::Answer(answer) => self.answer(answer, lent),
                Doing::Sink { bytes } => self.sink(bytes, lent),
                Doing::Pour { begun } => self.pour(begun, lent),
                Doing::Linger => receive(&self.stream, lent.scratch).map(|read| (read == 0).then_some(Next::Close)),
            };
            match step {
                Ok(None) => (),
                Ok(Some(next)) => return next,
                Err(Errno::EAGAIN) => break,
                Err(_) => {
                    add(&lent.counters.reset, 1);
                    return Next::Close;
                }
            }
        }
        match self.doing {
            Doing::Answer(_) | Doing::Pour { .. } => Next::Write,
            _ => Next::Read,
        }
    }

    /// Reads a request's head.
    fn head(&mut self, lent: &mut Lent) -> Result<Option<Next>, Errno> {
        if self.partial.len() == self.looked {
            let read = receive(&self.stream, &mut lent.scratch[..HEAD - self.looked])?;
            add(&lent.counters.received, read as u64);
            if read == 0 {
                return Ok(Some(Next::Close));
            }
            if self.looked > 0 {
                self.partial.extend_from_slice(&lent.scratch[..read]);
            } else {
                // Mostly a request comes as one, and nothing is kept.
                let (doing, used) = understand(&lent.scratch[..read]);
                return Ok(self.go_on(doing, used, read, lent, true));
            }
        }
        let (doing, used) = understand(&self.partial);
        Ok(self.go_on(doing, used, self.partial.len(), lent, false))
    }

    /// Goes on with what a head asks for; keeps what stands behind it.
    fn go_on(&mut self, doing: Doing, used: usize, there: usize, lent: &mut Lent, fresh: bool) -> Option<Next> {
        if let Doing::Answer(Answer { what: What::Http { status: 400.., .. }, .. }) = doing {
            add(&lent.counters.refused, 1);
        }
        let more = matches!(doing, Doing::Head);
        // What is thrown away needs no keeping: the rest of a request, a stream.
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
                self.partial.extend_from_slice(&lent.scratch[used..there]);
            }
        } else {
            self.partial.drain(..used);
        }
        self.looked = if more { self.partial.len() } else { 0 };
        if !more {
            self.since = lent.now;
        }
        self.doing = doing;
        None
    }

    /// Takes bytes of a request that mean nothing.
    fn rest(&mut self, left: u64, then: Answer, lent: &mut Lent) -> Result<Option<Next>, Errno> {
        let most = usize::try_from(left).map_or(lent.scratch.len(), |left| left.min(lent.scratch.len()));
        let read = self.receive_some(most, lent)?;
        self.doing = match left - read {
            0 => Doing::Answer(then),
            left => Doing::Rest { left, then },
        };
        Ok((read == 0).then_some(Next::Close))
    }

    fn receive_some(&mut self, most: usize, lent: &mut Lent) -> Result<u64, Errno> {
        let read = receive(&self.stream, &mut lent.scratch[..most])? as u64;
        add(&lent.counters.received, read);
        self.since = lent.now;
        Ok(read)
    }

    /// Sends an answer, or what is left of it.
    fn answer(&mut self, mut answer: Answer, lent: &mut Lent) -> Result<Option<Next>, Errno> {
        let mut head = [0; 256];
        let (length, size) = answer.head(&mut head);
        let all = length as u64 + size;
        let from = (answer.sent as usize).min(length);
        let body = (all - answer.sent.max(length as u64)).min(lent.filling.len() as u64) as usize;
        let sent = send_both(&self.stream, &head[from..length], &lent.filling[..body])? as u64;
        add(&lent.counters.sent, sent);
        answer.sent += sent;
        self.since = lent.now;
        if answer.sent < all {
            self.doing = Doing::Answer(answer);
            return Ok(None);
        }
        add(&lent.counters.requests, 1);
        match answer.what {
            What::Filling { .. } | What::Http { keep_alive: true, .. } => {
                self.doing = Doing::Head;
                // The next request is seldom there yet, and is told of if it is.
                return Ok(self.partial.is_empty().then_some(Next::Read));
            }
            What::Http { status: 400.., .. } => {
                // To close while bytes are there to be read would reset the connection, and lose the reason.
                self.stream.shutdown(Shutdown::Write).map_err(|_| Errno::ECONNRESET)?;
                self.doing = Doing::Linger;
            }
            What::Http { .. } => return Ok(Some(Next::Close)),
        }
        Ok(None)
    }

    fn sink(&mut self, bytes: u64, lent: &mut Lent) -> Result<Option<Next>, Errno> {
        let read = self.receive_some(lent.scratch.len(), lent)?;
        self.doing = Doing::Sink { bytes: bytes + read };
        if read > 0 {
            return Ok(None);
        }
        add(&lent.counters.requests, 1);
        let sent = send(&self.stream, &bytes.to_be_bytes())?;
        add(&lent.counters.sent, sent as u64);
        Ok(Some(Next::Close))
    }

    fn pour(&mut self, begun: bool, lent: &mut Lent) -> Result<Option<Next>, Errno> {
        let first: &[u8] = if begun { &[] } else { &[RESPONSE] };
        let sent = match send_both(&self.stream, first, lent.filling) {
            // The other side has had enough.
            Err(Errno::ECONNRESET | Errno::EPIPE) => {
                add(&lent.counters.requests, 1);
                return Ok(Some(Next::Close));
            }
            result => result?,
        };
        add(&lent.counters.sent, sent as u64);
        self.since = lent.now;
        self.doing = Doing::Pour { begun: true };
        Ok(None)
    }
}

/// What the bytes ask for, and how many of them are the head that does.
fn understand(bytes: &[u8]) -> (Doing, usize) {
    let refuse = |status| {
        let what = What::Http { status, size: 0, keep_alive: false, head_only: false };
        (Doing::Answer(Answer { what, sent: 0 }), bytes.len())
    };
    if bytes[0] == wire::REQUEST {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return (Doing::Head, 0) };
        return match wire::parse(header) {
            Some(Kind::Exchange(sizes)) => {
                let then = Answer { what: What::Filling { size: sizes.response.into() }, sent: 0 };
                (Doing::Rest { left: u64::from(sizes.request) - HEADER as u64, then }, HEADER)
            }
            Some(Kind::Sink) => (Doing::Sink { bytes: 0 }, HEADER),
            Some(Kind::Pour) => (Doing::Pour { begun: false }, HEADER),
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
    /// Writes what comes before the filling; answers its length, and the filling's.
    fn head(&self, to: &mut [u8; 256]) -> (usize, u64) {
        match self.what {
            What::Filling { size } => {
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
                // 256 bytes hold the longest of them.
                let _ = write!(
                    to,
                    "HTTP/1.1 {status} {reason}\r\nContent-Length: {size}\r\nConnection: {connection}\r\n\r\n"
                );
                (to.position() as usize, if head_only { 0 } else { size })
            }
        }
    }
}
