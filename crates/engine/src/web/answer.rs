//! An answer to a client, written in parts.

use std::fmt::Write;
use std::sync::Arc;

/// What every answer tells a browser: to take it for what it says it is, and to show it to no other site.
const GUARDS: &str = "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n\
                      Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n";

/// An answer being written. Simultaneous answers share a body.
pub(super) struct Answer {
    head: String,
    body: Arc<str>,
    written: usize,
}

impl Answer {
    /// An answer with a body of this media type.
    pub(super) fn new(status: &str, kind: &str, body: Arc<str>) -> Answer {
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{GUARDS}Connection: close\r\n\r\n"
        );
        Answer { head, body, written: 0 }
    }

    /// A sentence instead of what was asked for.
    pub(super) fn refusal(status: &str, sentence: &str) -> Answer {
        Answer::new(status, "text/plain; charset=utf-8", sentence.into())
    }

    /// Adds a header field.
    pub(super) fn with(mut self, field: &str) -> Answer {
        self.head.truncate(self.head.len() - 2);
        let _ = write!(self.head, "{field}\r\n\r\n");
        self
    }

    /// The status line's number and phrase.
    #[cfg(test)]
    pub(super) fn status(&self) -> &str {
        self.head.split("\r\n").next().and_then(|line| line.split_once(' ')).map_or("", |(_, status)| status)
    }

    /// The next part to write.
    pub(super) fn rest(&self) -> Option<&[u8]> {
        let (head, body) = (self.head.as_bytes(), self.body.as_bytes());
        let rest = head.get(self.written..).filter(|rest| !rest.is_empty());
        rest.or_else(|| body.get(self.written - head.len()..)).filter(|rest| !rest.is_empty())
    }

    /// Notes that this many bytes of the next part were written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }
}
