//! A slot: one connection and the request on it.

use std::os::fd::OwnedFd;

use crate::traffic::{
    Pattern,
    http::{Reader, Reading},
    wire::RESPONSE,
};

/// A connection, or a place for one.
pub(super) struct Slot {
    pub socket: Option<OwnedFd>,
    pub state: State,
    /// When the request was due, and when it started.
    pub due: u64,
    pub begun: u64,
    /// Bytes of the request sent so far.
    pub sent: usize,
    pub response: Response,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Without a request; it may have an open connection.
    Idle,
    /// Waits for the connection, to send the request.
    Connecting,
    /// Waits for room in the socket, to send the rest of the request.
    Sending,
    /// Waits for the response.
    Receiving,
    /// The response is complete; waits for the server to close the connection.
    Ending,
}

/// The state of a response.
pub(super) enum Response {
    /// A response of known size, of Fairlane's own protocol.
    Fixed {
        /// Its size in bytes.
        size: u64,
        /// Bytes that have not arrived.
        left: u64,
    },
    /// An HTTP response.
    Http(Box<Reader>),
}

impl Slot {
    /// An idle slot without a connection.
    pub(super) fn new(pattern: &Pattern) -> Slot {
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
    /// Resets it for the next response.
    pub(super) fn reset(&mut self) {
        match self {
            Response::Fixed { size, left } => *left = *size,
            Response::Http(reader) => reader.reset(),
        }
    }

    /// Processes received bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Reading {
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

    /// Processes the end of the connection.
    pub(super) fn end(&mut self) -> Reading {
        match self {
            Response::Fixed { .. } => Reading::More,
            Response::Http(reader) => reader.end(),
        }
    }
}
