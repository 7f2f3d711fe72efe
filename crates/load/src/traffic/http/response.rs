//! An incremental parser of responses.

use super::{HEAD, field, head_length, lines, number, stays};

/// Parses one response after another, with the same memory.
#[derive(Debug)]
pub struct Reader {
    at: At,
    /// An incomplete head, or an incomplete line of a chunked body.
    partial: Vec<u8>,
    status: u16,
    keep_alive: bool,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Head,
    /// The remaining bytes of a body.
    Body(u64),
    /// The line with a chunk's size.
    Size,
    /// The remaining bytes of a chunk.
    Chunk(u64),
    /// The lines after the last chunk.
    Trailer,
    /// A body that ends with the connection.
    ToTheEnd,
}

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It is incomplete.
    More,
    /// It is complete.
    Done {
        /// Its status.
        status: u16,
        /// Whether the connection stays open.
        keep_alive: bool,
    },
    /// It is no HTTP/1 response.
    Wrong,
}

impl Reader {
    /// A parser at the start of a response.
    pub fn new() -> Reader {
        Reader { at: At::Head, partial: Vec::with_capacity(HEAD), status: 0, keep_alive: false }
    }

    /// Discards the current response, for another connection.
    pub fn reset(&mut self) {
        self.at = At::Head;
        self.partial.clear();
    }

    /// Whether a response has started.
    pub fn begun(&self) -> bool {
        !(matches!(self.at, At::Head) && self.partial.is_empty())
    }

    /// Parses received bytes. After a complete response, further bytes are unexpected and end the connection.
    pub fn take(&mut self, mut bytes: &[u8]) -> Reading {
        while !bytes.is_empty() {
            let read = match self.at {
                At::Head => self.head(bytes),
                At::Body(left) => self.body(bytes, left),
                At::Size | At::Trailer => self.line(bytes),
                At::Chunk(left) => {
                    let used = at_most(bytes, left);
                    self.at = if left == used as u64 { At::Size } else { At::Chunk(left - used as u64) };
                    Ok((used, false))
                }
                At::ToTheEnd => return Reading::More,
            };
            match read {
                Ok((used, true)) => {
                    self.reset();
                    let keep_alive = self.keep_alive && used == bytes.len();
                    return Reading::Done { status: self.status, keep_alive };
                }
                Ok((used, false)) => bytes = &bytes[used..],
                Err(()) => return Reading::Wrong,
            }
        }
        Reading::More
    }

    /// Handles the end of the connection; returns whether it completes the response.
    pub fn end(&mut self) -> Reading {
        let whole = matches!(self.at, At::ToTheEnd);
        self.reset();
        if whole { Reading::Done { status: self.status, keep_alive: false } } else { Reading::More }
    }

    /// Parses a head; returns how many bytes it used, and whether the response is complete.
    fn head(&mut self, bytes: &[u8]) -> Result<(usize, bool), ()> {
        if self.partial.is_empty() {
            // A head usually arrives at once and need not be copied.
            if let Some(length) = head_length(bytes) {
                return Ok((length, self.begin(&bytes[..length])?));
            }
        }
        let old = self.partial.len();
        let added = bytes.len().min(HEAD - old);
        self.partial.extend_from_slice(&bytes[..added]);
        let start = &self.partial[..self.partial.len().min(5)];
        if !b"HTTP/".starts_with(start) {
            return Err(());
        }
        match head_length(&self.partial) {
            Some(length) => {
                let head = std::mem::take(&mut self.partial);
                let done = self.begin(&head[..length]);
                self.partial = head;
                self.partial.clear();
                Ok((length - old, done?))
            }
            None if self.partial.len() == HEAD => Err(()),
            None => Ok((added, false)),
        }
    }

    /// Parses a complete head; returns whether the response has no body.
    fn begin(&mut self, head: &[u8]) -> Result<bool, ()> {
        let mut lines = lines(head);
        let first = lines.next().unwrap_or_default();
        self.keep_alive = match first.get(..9) {
            Some(b"HTTP/1.1 ") => true,
            Some(b"HTTP/1.0 ") => false,
            _ => return Err(()),
        };
        self.status = first.get(9..12).and_then(number).ok_or(())? as u16;
        let (mut length, mut chunked) = (None, false);
        for line in lines {
            let Some((name, value)) = field(line) else { continue };
            if name.eq_ignore_ascii_case(b"content-length") {
                length = Some(number(value).ok_or(())?);
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                chunked = value.to_ascii_lowercase().ends_with(b"chunked");
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.keep_alive = stays(value, self.keep_alive);
            }
        }
        self.at = match (self.status, length) {
            // An interim response precedes the final one (RFC 9110, 15.2).
            (100..200, _) => At::Head,
            (204 | 304, _) => return Ok(true),
            _ if chunked => At::Size,
            (_, Some(0)) => return Ok(true),
            (_, Some(length)) => At::Body(length),
            (_, None) => At::ToTheEnd,
        };
        Ok(false)
    }

    fn body(&mut self, bytes: &[u8], left: u64) -> Result<(usize, bool), ()> {
        let used = at_most(bytes, left);
        self.at = At::Body(left - used as u64);
        Ok((used, left == used as u64))
    }

    /// Parses bytes up to the end of a line of a chunked body.
    fn line(&mut self, bytes: &[u8]) -> Result<(usize, bool), ()> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let used = end.unwrap_or(bytes.len());
        if self.partial.len() + used > HEAD {
            return Err(());
        }
        self.partial.extend_from_slice(&bytes[..used]);
        if end.is_none() {
            return Ok((used, false));
        }
        let line = self.partial.trim_ascii();
        let empty = line.is_empty();
        let done = match self.at {
            At::Trailer => empty,
            // The line end after a chunk's bytes.
            _ if empty => false,
            _ => {
                let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
                let digits = std::str::from_utf8(digits).map_err(drop)?;
                let size = u64::from_str_radix(digits, 16).map_err(drop)?;
                self.at = if size == 0 { At::Trailer } else { At::Chunk(size) };
                false
            }
        };
        self.partial.clear();
        Ok((used, done))
    }
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

fn at_most(bytes: &[u8], left: u64) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DONE: Reading = Reading::Done { status: 200, keep_alive: true };

    fn whole() -> impl Strategy<Value = Vec<u8>> {
        let body = prop::collection::vec(any::<u8>(), 0..3000);
        let plain = body.clone().prop_map(|body| {
            let head = format!("HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: {}\r\n\r\n", body.len());
            [head.into_bytes(), body].concat()
        });
        let chunked = (body, 1usize..700).prop_map(|(body, size)| {
            let mut text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
            for chunk in body.chunks(size) {
                text.extend(format!("{:x};x=y\r\n", chunk.len()).bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\nTrailer: 1\r\n\r\n");
            text
        });
        prop_oneof![plain, chunked]
    }

    proptest! {
        /// A response divided in any way is complete with its last byte and not before.
        #[test]
        fn a_divided_response_is_complete_with_its_last_byte(responses in prop::collection::vec(whole(), 1..4), size in 1usize..900) {
            let mut reader = Reader::new();
            for response in responses {
                let pieces = response.chunks(size);
                let last = pieces.len() - 1;
                for (nth, piece) in pieces.enumerate() {
                    prop_assert_eq!(reader.take(piece), if nth == last { DONE } else { Reading::More });
                }
                prop_assert!(!reader.begun());
            }
        }

        #[test]
        fn any_bytes_are_parsed(pieces: Vec<Vec<u8>>) {
            let mut reader = Reader::new();
            for piece in pieces {
                if reader.take(&piece) == Reading::Wrong {
                    break;
                }
            }
        }
    }

    #[test]
    fn the_head_determines_the_end_of_a_response() {
        let read = |text: &str| Reader::new().take(text.as_bytes());
        let done = |status, keep_alive| Reading::Done { status, keep_alive };
        assert_eq!(read("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"), done(200, false));
        assert_eq!(read("HTTP/1.1 404 No\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"), done(404, false));
        assert_eq!(read("HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 204 Nothing\r\n\r\n"), done(204, true));
        assert_eq!(read("HTTP/1.1 204 Nothing\r\n\r\nmore"), done(204, false));
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nall"), Reading::More);
        let mut reader = Reader::new();
        reader.take(b"HTTP/1.0 200 OK\r\n\r\nall");
        assert_eq!(reader.end(), done(200, false));
        reader.take(b"HTTP/1.0 200 OK\r\n");
        assert_eq!(reader.end(), Reading::More);
        for wrong in ["SSH-2.0-x\r\n", "HTTP/2 200\r\n\r\n", "HTTP/1.1 2x0 OK\r\n\r\n", "\u{0}"] {
            assert_eq!(read(wrong), Reading::Wrong, "{wrong:?}");
        }
    }
}
