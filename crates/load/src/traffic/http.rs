//! The subset of HTTP/1 (RFC 9112) that the load needs: parsing of request heads for the server and of responses for the client.

mod response;

pub use response::{Reader, Reading};

/// The longest accepted head, in bytes.
pub const HEAD: usize = 4096;

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes of its head.
    pub head: usize,
    /// Bytes of its body.
    pub body: u64,
    /// The requested size of the object in bytes, as in httpterm's `/?s=16k`; zero if not given.
    pub size: u64,
    /// Whether the connection stays open.
    pub keep_alive: bool,
    /// Whether only the response's head is requested (`HEAD`).
    pub head_only: bool,
}

/// Parses the request at the start of `bytes`; none if its head is incomplete.
///
/// # Errors
/// The HTTP status of the refusal.
pub fn request(bytes: &[u8]) -> Result<Option<Request>, u16> {
    // A method is in upper case (RFC 9110, 9.1), so other bytes are refused before the head is complete.
    if !bytes.iter().take_while(|byte| **byte != b' ').all(u8::is_ascii_uppercase) {
        return Err(400);
    }
    let Some(head) = head_length(bytes) else { return if bytes.len() >= HEAD { Err(431) } else { Ok(None) } };
    let mut lines = lines(&bytes[..head]);
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version), None) = (method, target, version, words.next()) else {
        return Err(400);
    };
    let keep_alive = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(505),
    };
    let size = size_in(target).ok_or(400u16)?;
    let mut request = Request { head, body: 0, size, keep_alive, head_only: method == b"HEAD" };
    for line in lines {
        let Some((name, value)) = field(line) else { continue };
        if name.eq_ignore_ascii_case(b"content-length") {
            request.body = number(value).ok_or(400u16)?;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(501);
        } else if name.eq_ignore_ascii_case(b"connection") {
            request.keep_alive = stays(value, request.keep_alive);
        }
    }
    Ok(Some(request))
}

/// Parses a size such as `512`, `16k`, `2M` or `1g`, with factors of 1024; none if it is invalid or larger than 1 TiB.
pub fn parse_size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'k' => (&text[..text.len() - 1], 1 << 10),
        b'm' => (&text[..text.len() - 1], 1 << 20),
        b'g' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number(digits.as_bytes())?.checked_mul(factor).filter(|size| *size <= 1 << 40)
}

/// The size in a target's query, zero without one; none if it is invalid.
fn size_in(target: &[u8]) -> Option<u64> {
    let Some(query) = target.iter().position(|byte| *byte == b'?') else { return Some(0) };
    let mut words = target[query + 1..].split(|byte| matches!(byte, b'&' | b'/'));
    match words.find_map(|word| word.strip_prefix(b"s=")) {
        Some(size) => parse_size(std::str::from_utf8(size).ok()?),
        None => Some(0),
    }
}

/// The length of a head including its final empty line.
fn head_length(bytes: &[u8]) -> Option<usize> {
    let bytes = &bytes[..bytes.len().min(HEAD)];
    bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

/// A head's lines, without line ends.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// A field's name and value.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// Whether a connection stays open by the value of a `Connection` field; `default` is the version's default.
fn stays(value: &[u8], default: bool) -> bool {
    let has =
        |option: &[u8]| value.split(|byte| *byte == b',').any(|word| word.trim_ascii().eq_ignore_ascii_case(option));
    if default { !has(b"close") } else { has(b"keep-alive") }
}

fn number(digits: &[u8]) -> Option<u64> {
    let all = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    all.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<Option<Request>, u16> {
        request(text.as_bytes())
    }

    #[test]
    fn requests_of_common_clients_are_parsed() {
        let plain = Request { head: 0, body: 0, size: 0, keep_alive: false, head_only: false };
        for (text, expected) in [
            ("GET / HTTP/1.0\r\n\r\n", plain),
            ("GET /?s=16k HTTP/1.1\r\nHost: a\r\n\r\n", Request { size: 16384, keep_alive: true, ..plain }),
            ("GET /x?k=1&s=3M HTTP/1.1\r\nConnection: close\r\n\r\n", Request { size: 3 << 20, ..plain }),
            (
                "GET /?s=1/k=0 HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n",
                Request { size: 1, keep_alive: true, ..plain },
            ),
            ("HEAD / HTTP/1.0\r\n\r\n", Request { head_only: true, ..plain }),
            ("POST / HTTP/1.0\r\nContent-Length: 12\r\n\r\n", Request { body: 12, ..plain }),
        ] {
            assert_eq!(parsed(text), Ok(Some(Request { head: text.len(), ..expected })), "{text:?}");
        }
    }

    #[test]
    fn invalid_requests_are_refused() {
        for (text, status) in [
            ("get / HTTP/1.0\r\n\r\n", 400),
            ("\u{1}\u{2}", 400),
            ("GET /\r\n\r\n", 400),
            ("GET / HTTP/2\r\n\r\n", 505),
            ("GET /?s=big HTTP/1.0\r\n\r\n", 400),
            ("GET /?s=2000000g HTTP/1.0\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ] {
            assert_eq!(parsed(text), Err(status), "{text:?}");
        }
        assert_eq!(request(&[b'A'; HEAD]), Err(431));
        assert_eq!(request(&[b'A'; HEAD - 1]), Ok(None));
    }

    proptest! {
        /// Any bytes are parsed without a panic, and a complete head is not longer than the input.
        #[test]
        fn any_bytes_are_parsed(bytes: Vec<u8>) {
            if let Ok(Some(request)) = request(&bytes) {
                prop_assert!(request.head <= bytes.len());
            }
        }

        /// A request is incomplete before its last byte, and does not depend on what follows.
        #[test]
        fn a_head_ends_with_its_empty_line(size in 0u64..1 << 20, more: Vec<u8>) {
            let text = format!("GET /?s={size} HTTP/1.1\r\n\r\n").into_bytes();
            prop_assert_eq!(request(&text[..text.len() - 1]), Ok(None));
            let whole = request(&text).unwrap().unwrap();
            prop_assert_eq!((whole.head, whole.size), (text.len(), size));
            prop_assert_eq!(request(&[text, more].concat()), Ok(Some(whole)));
        }
    }
}
