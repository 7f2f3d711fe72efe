//! A place for one connection and the request on it.

use std::os::fd::OwnedFd;

use crate::traffic::{
    Pattern,
    http::{Reader, Reading},
    wire::RESPONSE,
};

/// One connection, or room for one.
pub struct Slot {
    pub socket: Option<OwnedFd>,
    pub state: State,
    /// When the request was meant to begin, and when it began.
    pub due: u64,
    pub begun: u64,
    /// Bytes of the request that are sent.
    pub sent: usize,
    pub response: Response,
}

/// What a slot waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A request: it may have a connection that stays.
    Idle,
    /// The connection, and then the socket's taking the request.
    Connecting,
    /// The socket's taking more of the request.
    Sending,
    /// The response.
    Receiving,
    /// The server's end of a connection whose response is complete.
    Ending,
}

/// A response as it comes.
pub enum Response {
    /// Of our own patterns.
    Fixed {
        /// Bytes in all.
        size: u64,
        /// Bytes to come.
        left: u64,
    },
    /// Of HTTP.
    Http(Box<Reader>),
}

impl Slot {
    /// An empty place.
    pub fn new(pattern: &Pattern) -> Slot {
        let response = match pattern {
            Pattern::Crr(sizes) | Pattern::Rr(sizes) => {
                Response::Fixed { size: sizes.response.into(), left: sizes.response.into() }
            }
            _ => Response::Http(Box::default()),
        };
        Slot { socket: None, state: State::Idle, due: 0, begun: 0, sent: 0, response }
    }
}

impl Response {
    /// Expects a response from its beginning.
    pub fn reset(&mut self) {
        match self {
            Response::Fixed { size, left } => *left = *size,
            Response::Http(reader) => reader.reset(),
        }
    }

    /// Takes what has come.
    pub fn take(&mut self, bytes: &[u8]) -> Reading {
        match self {
            Response::Fixed { size, left } => {
                if *left == *size && bytes.first() != Some(&RESPONSE) || bytes.len() as u64 > *left {
                    return Reading::Wrong;
                }
                *left -= bytes.len() as u64;
                if *left > 0 { Reading::More } else { Reading::Done { status: 200, keep_alive: true } }
            }
            Response::Http(reader) => reader.take(bytes),
        }
    }

    /// The connection ended.
    pub fn end(&mut self) -> Reading {
        match self {
            Response::Fixed { .. } => Reading::More,
            Response::Http(reader) => reader.end(),
        }
    }
}
