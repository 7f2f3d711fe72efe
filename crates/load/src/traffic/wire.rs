//! The wire format of Fairlane's own patterns: a request is a header of twelve bytes, then padding.
//!
//! The header: magic (1), kind (1), zero (2), total request bytes (4), response bytes (4), big endian. No HTTP request starts with
//! the magic byte, by which the server distinguishes them. A response starts with another magic byte, by which the client
//! recognizes the server.
//!
//! A datagram starts with its sequence number (8). The highest sequence number marks a report request, which has its own number (8).
//! The server answers it with a report: that number, and the client's datagrams, bytes and reordered datagrams (8 each).

use super::{Arrived, Pattern, Sizes};

/// Bytes of a request's header, and the least size of a request.
pub const HEADER: usize = 12;
/// The first byte of a request.
pub(super) const REQUEST: u8 = 0xfa;
/// The first byte of a response, and of a stream from the server ([`Kind::Source`]).
pub(super) const RESPONSE: u8 = 0xfb;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A request and a response of these sizes.
    Exchange(Sizes),
    /// A stream to the server. At its end the server answers with the number of its bytes, including this header, in 8 bytes
    /// big endian.
    Sink,
    /// A stream from the server until the connection ends.
    Source,
}

/// The header of a request.
pub(super) fn header(kind: Kind) -> [u8; HEADER] {
    let (code, sizes) = match kind {
        Kind::Exchange(sizes) => (1, sizes),
        Kind::Sink => (2, Sizes { request: 0, response: 0 }),
        Kind::Source => (3, Sizes { request: 0, response: 0 }),
    };
    let mut header = [0; HEADER];
    (header[0], header[1]) = (REQUEST, code);
    header[4..8].copy_from_slice(&sizes.request.to_be_bytes());
    header[8..].copy_from_slice(&sizes.response.to_be_bytes());
    header
}

/// Parses a header; none if it is invalid.
pub(super) fn parse(header: &[u8; HEADER]) -> Option<Kind> {
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let sizes = Sizes { request: number(4), response: number(8) };
    match header[..4] {
        [REQUEST, 1, 0, 0] if sizes.request as usize >= HEADER && sizes.response > 0 => Some(Kind::Exchange(sizes)),
        [REQUEST, 2, 0, 0] => Some(Kind::Sink),
        [REQUEST, 3, 0, 0] => Some(Kind::Source),
        _ => None,
    }
}

/// Bytes of a report.
pub(super) const REPORT: usize = 32;

/// Report request `number`.
pub(super) fn report_request(number: u64) -> [u8; 16] {
    let mut request = [0xff; 16];
    request[8..].copy_from_slice(&number.to_be_bytes());
    request
}

/// The number of a report request; none if the datagram is no such request.
pub(super) fn parse_report_request(datagram: &[u8]) -> Option<u64> {
    let (sequence, number) = (number_at(datagram, 0)?, number_at(datagram, 8)?);
    (sequence == u64::MAX && datagram.len() == 16).then_some(number)
}

/// The answer to report request `number`.
pub(super) fn report(number: u64, arrived: &Arrived) -> [u8; REPORT] {
    let mut report = [0; REPORT];
    let numbers = [number, arrived.datagrams, arrived.bytes, arrived.reordered];
    for (bytes, number) in report.chunks_mut(8).zip(numbers) {
        bytes.copy_from_slice(&number.to_be_bytes());
    }
    report
}

/// The number of the request that a report answers, and its counts; none if the datagram is no report.
pub(super) fn parse_report(datagram: &[u8]) -> Option<(u64, Arrived)> {
    let at = |index: usize| number_at(datagram, index * 8);
    let arrived = Arrived { datagrams: at(1)?, bytes: at(2)?, reordered: at(3)? };
    (datagram.len() == REPORT).then_some((at(0)?, arrived))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The bytes of one request of a TCP pattern.
pub(super) fn request(pattern: &Pattern) -> Vec<u8> {
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
        Pattern::Maerts => header(Kind::Source).to_vec(),
        Pattern::Udp { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A header is parsed to the kind it was made from.
        #[test]
        fn a_header_is_parsed(request in HEADER as u32.., response in 1u32..) {
            let kind = Kind::Exchange(Sizes { request, response });
            prop_assert_eq!(parse(&header(kind)), Some(kind));
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_a_valid_header(bytes: [u8; HEADER]) {
            if let Some(kind) = parse(&bytes) {
                prop_assert_eq!(&header(kind)[..4], &bytes[..4]);
            }
        }
    }

    proptest! {
        #[test]
        fn report_requests_and_reports_are_parsed(number: u64, datagrams: u64, bytes: u64, reordered: u64, other: Vec<u8>) {
            let arrived = Arrived { datagrams, bytes, reordered };
            prop_assert_eq!(parse_report_request(&report_request(number)), Some(number));
            prop_assert_eq!(parse_report(&report(number, &arrived)), Some((number, arrived)));
            prop_assert_eq!(parse_report(&other).is_some(), other.len() == REPORT);
        }
    }

    #[test]
    fn requests_too_short_for_their_header_are_refused() {
        for sizes in [Sizes { request: 11, response: 1 }, Sizes { request: 12, response: 0 }] {
            assert_eq!(parse(&header(Kind::Exchange(sizes))), None);
        }
        assert_eq!(parse(&header(Kind::Sink)), Some(Kind::Sink));
        assert_eq!(parse(&header(Kind::Source)), Some(Kind::Source));
    }
}
