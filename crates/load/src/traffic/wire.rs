//! What a request of our own patterns looks like: twelve bytes that say what is asked for, then filling.
//!
//! Magic (1), kind (1), zero (2), request bytes in all (4), response bytes (4), big endian. No HTTP request begins with
//! the magic byte, which is how a server tells them apart; a response begins with another, by which a client knows that
//! its server is one.
//!
//! A datagram begins with its sequence number (8). The highest one is a question, with a number of its own (8), which the
//! server answers with that number and what came from the asker: datagrams, bytes, reordered (8 each).

use super::{Arrived, Pattern, Sizes};

/// Bytes of a request's header, and so the least a request can have.
pub const HEADER: usize = 12;
/// The first byte of a request.
pub const REQUEST: u8 = 0xfa;
/// The first byte of a response, and of all a server sends for [`Kind::Pour`].
pub const RESPONSE: u8 = 0xfb;

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A response of so many bytes to a request of so many.
    Exchange(Sizes),
    /// To take all that follows, and at its end to answer how many bytes that were, in 8 bytes big endian, this header
    /// counted.
    Sink,
    /// To send until the connection ends.
    Pour,
}

/// The header that asks for `kind`.
pub fn header(kind: Kind) -> [u8; HEADER] {
    let (code, sizes) = match kind {
        Kind::Exchange(sizes) => (1, sizes),
        Kind::Sink => (2, Sizes { request: 0, response: 0 }),
        Kind::Pour => (3, Sizes { request: 0, response: 0 }),
    };
    let mut header = [0; HEADER];
    (header[0], header[1]) = (REQUEST, code);
    header[4..8].copy_from_slice(&sizes.request.to_be_bytes());
    header[8..].copy_from_slice(&sizes.response.to_be_bytes());
    header
}

/// What a header asks for; none if it breaks the format.
pub fn parse(header: &[u8; HEADER]) -> Option<Kind> {
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let sizes = Sizes { request: number(4), response: number(8) };
    match header[..4] {
        [REQUEST, 1, 0, 0] if sizes.request as usize >= HEADER && sizes.response > 0 => Some(Kind::Exchange(sizes)),
        [REQUEST, 2, 0, 0] => Some(Kind::Sink),
        [REQUEST, 3, 0, 0] => Some(Kind::Pour),
        _ => None,
    }
}

/// Bytes of an answer to a question.
pub const ANSWER: usize = 32;

/// Question `number` about what came.
pub fn question(number: u64) -> [u8; 16] {
    let mut question = [0xff; 16];
    question[8..].copy_from_slice(&number.to_be_bytes());
    question
}

/// The number of a question; none if the datagram is none.
pub fn parse_question(datagram: &[u8]) -> Option<u64> {
    let (sequence, number) = (number_at(datagram, 0)?, number_at(datagram, 8)?);
    (sequence == u64::MAX && datagram.len() == 16).then_some(number)
}

/// The answer to question `number`.
pub fn answer(number: u64, arrived: &Arrived) -> [u8; ANSWER] {
    let mut answer = [0; ANSWER];
    let numbers = [number, arrived.datagrams, arrived.bytes, arrived.reordered];
    for (bytes, number) in answer.chunks_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_be_bytes());
    }
    answer
}

/// Which question is answered, and what came; none if it is no answer.
pub fn parse_answer(datagram: &[u8]) -> Option<(u64, Arrived)> {
    let at = |index: usize| number_at(datagram, index * 8);
    let arrived = Arrived { datagrams: at(1)?, bytes: at(2)?, reordered: at(3)? };
    (datagram.len() == ANSWER).then_some((at(0)?, arrived))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The bytes of one request of a pattern that has requests over TCP.
pub fn request(pattern: &Pattern) -> Vec<u8> {
    match pattern {
        Pattern::Crr(sizes) | Pattern::Rr(sizes) => {
            let mut request = header(Kind::Exchange(*sizes)).to_vec();
            request.resize(sizes.request as usize, 0);
            request
        }
        Pattern::Http { host, path, keep_alive } => {
            let version = if *keep_alive { "1.1" } else { "1.0" };
            format!("GET {path} HTTP/{version}\r\nHost: {host}\r\nUser-Agent: fairlane\r\n\r\n").into_bytes()
        }
        Pattern::Stream => header(Kind::Sink).to_vec(),
        Pattern::Maerts => header(Kind::Pour).to_vec(),
        Pattern::Udp { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A header says what it was made from, and nothing else is taken for one.
        #[test]
        fn a_header_comes_back(request in HEADER as u32.., response in 1u32..) {
            let kind = Kind::Exchange(Sizes { request, response });
            prop_assert_eq!(parse(&header(kind)), Some(kind));
        }

        #[test]
        fn rubbish_is_refused_or_in_range(bytes: [u8; HEADER]) {
            if let Some(kind) = parse(&bytes) {
                prop_assert_eq!(&header(kind)[..4], &bytes[..4]);
            }
        }
    }

    proptest! {
        #[test]
        fn questions_and_answers_come_back(number: u64, datagrams: u64, bytes: u64, reordered: u64, other: Vec<u8>) {
            let arrived = Arrived { datagrams, bytes, reordered };
            prop_assert_eq!(parse_question(&question(number)), Some(number));
            prop_assert_eq!(parse_answer(&answer(number, &arrived)), Some((number, arrived)));
            prop_assert_eq!(parse_answer(&other).is_some(), other.len() == ANSWER);
        }
    }

    #[test]
    fn requests_too_short_for_their_header_are_refused() {
        for sizes in [Sizes { request: 11, response: 1 }, Sizes { request: 12, response: 0 }] {
            assert_eq!(parse(&header(Kind::Exchange(sizes))), None);
        }
        assert_eq!(parse(&header(Kind::Sink)), Some(Kind::Sink));
        assert_eq!(parse(&header(Kind::Pour)), Some(Kind::Pour));
    }
}
