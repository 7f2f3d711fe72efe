//! xenstore: a small tree of strings, shared by all domains of a machine, with watches. The protocol is that of
//! xen/include/public/io/xs_wire.h, over xenstored's socket or the kernel's device.

use super::error::Unavailable;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Where xenstored listens, in the domain it runs in.
const SOCKET: &str = "/run/xenstored/socket";
/// Access from any domain.
const DEVICE: &str = "/dev/xen/xenbus";

/// XENSTORE_PAYLOAD_MAX
const MOST: usize = 4096;

/// The kinds of messages used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// XS_DIRECTORY
    Directory = 1,
    /// XS_READ
    Read = 2,
    /// XS_WATCH
    Watch = 4,
    /// XS_UNWATCH
    Unwatch = 5,
    /// XS_WRITE
    Write = 11,
    /// XS_RM
    Remove = 13,
    /// XS_WATCH_EVENT
    Event = 15,
    /// XS_ERROR
    Error = 16,
}

/// A message's header, `struct xsd_sockmsg`, in native byte order. Transactions are not used: a writer of several keys
/// writes the one that matters, the state, last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind's number.
    pub kind: u32,
    /// Echoed in the reply.
    pub id: u32,
    /// Bytes that follow.
    pub len: usize,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = 16;

    /// Decodes a header.
    ///
    /// # Errors
    /// A payload longer than the protocol allows.
    pub fn parse(bytes: [u8; Header::SIZE]) -> io::Result<Header> {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (kind, id, len) = (word(0), word(4), word(12) as usize);
        if len > MOST {
            let why = format!("a xenstore message of {len} bytes; the limit is {MOST}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Header { kind, id, len })
    }
}

/// Encodes a whole message.
///
/// # Errors
/// A payload longer than the protocol allows.
pub fn encode(kind: Kind, id: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
    if payload.len() > MOST {
        let why = format!("{} bytes for xenstore; the limit is {MOST}", payload.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut message: Vec<u8> =
        [kind as u32, id, 0, payload.len() as u32].into_iter().flat_map(u32::to_ne_bytes).collect();
    message.extend_from_slice(payload);
    Ok(message)
}

/// Translates the name of an error.
fn error(name: &[u8]) -> io::Error {
    let name = text(name.strip_suffix(b"\0").unwrap_or(name));
    let kind = match name.as_str() {
        "ENOENT" => io::ErrorKind::NotFound,
        "EACCES" => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("xenstore says {name}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A change at or below a watched path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The changed path.
    pub path: String,
    /// As given to [`Store::watch`].
    pub token: String,
}

/// A connection. Relative paths are below the own domain's path.
pub struct Store {
    stream: File,
    id: u32,
    events: VecDeque<Event>,
}

impl Store {
    /// Connects to xenstored's socket if there is one, otherwise through the kernel's device.
    ///
    /// # Errors
    /// Neither exists.
    pub fn open() -> Result<Store, Unavailable> {
        if let Ok(socket) = UnixStream::connect(SOCKET) {
            return Ok(Store::over(socket.into()));
        }
        match OpenOptions::new().read(true).write(true).open(DEVICE) {
            Ok(device) => Ok(Store { stream: device, id: 0, events: VecDeque::new() }),
            Err(error) => Err(Unavailable::Store { socket: SOCKET, device: DEVICE, error }),
        }
    }

    /// A connection over a socket.
    pub fn over(socket: OwnedFd) -> Store {
        Store { stream: File::from(socket), id: 0, events: VecDeque::new() }
    }

    /// Readable when an event arrived, unless [`Store::event`] has read it already.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The number of this domain.
    ///
    /// # Errors
    /// The toolstack did not write it.
    pub fn own_number(&mut self) -> Result<u16, Unavailable> {
        let text = self.read("domid").map_err(Unavailable::Number)?;
        text.trim().parse().map_err(|_| Unavailable::NoNumber(text))
    }

    /// A key's value.
    ///
    /// # Errors
    /// There is no such key, it may not be read, or the connection is lost.
    pub fn read(&mut self, path: &str) -> io::Result<String> {
        self.call(Kind::Read, &[path.as_bytes(), b"\0"]).map(|value| text(&value))
    }

    /// Sets a key's value, creating the key if necessary.
    ///
    /// # Errors
    /// It may not be written, or the connection is lost.
    pub fn write(&mut self, path: &str, value: &str) -> io::Result<()> {
        self.call(Kind::Write, &[path.as_bytes(), b"\0", value.as_bytes()]).map(drop)
    }

    /// Removes a key and all keys below it.
    ///
    /// # Errors
    /// There is no such key, it may not be removed, or the connection is lost.
    pub fn remove(&mut self, path: &str) -> io::Result<()> {
        self.call(Kind::Remove, &[path.as_bytes(), b"\0"]).map(drop)
    }

    /// The names below a key.
    ///
    /// # Errors
    /// There is no such key, it may not be read, or the connection is lost.
    pub fn directory(&mut self, path: &str) -> io::Result<Vec<String>> {
        let names = self.call(Kind::Directory, &[path.as_bytes(), b"\0"])?;
        Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(text).collect())
    }

    /// Reports by events every change at or below a path, and one event at once.
    ///
    /// # Errors
    /// It is watched under that token already, or the connection is lost.
    pub fn watch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.call(Kind::Watch, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// It is not watched, or the connection is lost.
    pub fn unwatch(&mut self, path: &str, token: &str) -> io::Result<()> {
        self.call(Kind::Unwatch, &[path.as_bytes(), b"\0", token.as_bytes(), b"\0"]).map(drop)
    }

    /// The next event, if one arrived.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        while self.events.is_empty() {
            let mut ready = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, PollTimeout::ZERO)? == 0 {
                return Ok(None);
            }
            self.receive()?;
        }
        Ok(self.events.pop_front())
    }

    /// Sends a request and waits for its reply. Events that arrive before it are queued.
    fn call(&mut self, kind: Kind, parts: &[&[u8]]) -> io::Result<Vec<u8>> {
        self.id = self.id.wrapping_add(1);
        let message = encode(kind, self.id, &parts.concat())?;
        self.stream.write_all(&message)?;
        loop {
            let Some((header, payload)) = self.receive()? else { continue };
            if header.id != self.id {
                continue;
            }
            return if header.kind == Kind::Error as u32 { Err(error(&payload)) } else { Ok(payload) };
        }
    }

    /// Reads a message. Events are queued for [`Store::event`].
    fn receive(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        let mut header = [0; Header::SIZE];
        self.stream.read_exact(&mut header)?;
        let header = Header::parse(header)?;
        let mut payload = vec![0; header.len];
        self.stream.read_exact(&mut payload)?;
        if header.kind != Kind::Event as u32 {
            return Ok(Some((header, payload)));
        }
        let mut parts = payload.split(|byte| *byte == 0).map(text);
        if let (Some(path), Some(token)) = (parts.next(), parts.next()) {
            self.events.push_back(Event { path, token });
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsing_reverses_encoding(id: u32, payload in prop::collection::vec(any::<u8>(), 0..=MOST)) {
            let message = encode(Kind::Write, id, &payload).unwrap();
            let (header, rest) = message.split_first_chunk().unwrap();
            prop_assert_eq!(Header::parse(*header).unwrap(), Header { kind: 11, id, len: payload.len() });
            prop_assert_eq!(rest, payload);
        }
    }

    #[test]
    fn messages_longer_than_the_protocol_allows_are_refused() {
        assert!(encode(Kind::Write, 1, &[0; MOST + 1]).is_err());
        let mut header = [0; Header::SIZE];
        header[13] = 0x11;
        assert!(Header::parse(header).unwrap_err().to_string().contains("4352 bytes"));
    }
}
