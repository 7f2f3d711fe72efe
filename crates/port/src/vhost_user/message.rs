//! The messages of vhost-user on their socket (QEMU, docs/interop/vhost-user.rst): a header of three words, a payload,
//! and descriptors.
//!
//! No call blocks. A payload may be longer than its request needs (User-Mode Linux sends whole unions); a shorter one
//! is an error.

use super::rejection::Rejection;
use crate::descriptor::{close_apart, is_local, is_unix};
use crate::eventfd::is_eventfd;
use crate::passing;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

/// Bytes of the header: request, flags, size of the payload.
const HEADER: usize = 12;
/// The protocol's version, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// The most Unix sockets passed over one connection. User-Mode Linux passes one for each queue as it boots.
const MOST_SOCKETS: usize = 256;

/// One message of a frontend.
pub(super) struct Message {
    /// The request.
    pub request: FrontendReq,
    /// Whether the frontend wants an acknowledgement.
    pub need_reply: bool,
    /// Its payload.
    pub payload: Vec<u8>,
    /// Descriptors sent with it.
    pub files: Vec<File>,
}

impl Message {
    /// The 32-bit word at byte `at` of the payload.
    ///
    /// # Errors
    /// The payload is too short.
    pub(super) fn word(&self, at: usize) -> Result<u32, Rejection> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    /// The 64-bit word at byte `at` of the payload.
    ///
    /// # Errors
    /// The payload is too short.
    pub(super) fn long(&self, at: usize) -> Result<u64, Rejection> {
        self.bytes(at).map(u64::from_ne_bytes)
    }

    /// `N` bytes at byte `at` of the payload.
    ///
    /// # Errors
    /// The payload is too short.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], Rejection> {
        let have = self.payload.len();
        let bytes = self.payload.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(Rejection::Short { request: self.request, have, needed: at + N })
    }
}

/// The backend's end of a connection.
pub(super) struct Channel {
    stream: UnixStream,
    /// The bytes of the next message received so far.
    partial: Vec<u8>,
    files: Vec<File>,
    /// Files whose use may block us. A message with any is the connection's last. To close them may block for ever, so it
    /// is done by [`Channel::close`] or not at all.
    foreign: ManuallyDrop<Vec<File>>,
    /// A duplicate of each Unix socket, so that none is closed before the connection is: that may block, too.
    sockets: Vec<File>,
    /// Duplicates of what else came with the last message, so that handling it closes nothing that takes long.
    held: Vec<File>,
}

impl Channel {
    /// A channel over a connected socket that does not block.
    pub(super) fn new(stream: UnixStream) -> Channel {
        let [files, sockets, held] = [const { Vec::new() }; 3];
        Channel { stream, partial: Vec::new(), files, foreign: ManuallyDrop::default(), sockets, held }
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// Ends it, and closes all that came and is not in use. This may block for as long as the frontend likes.
    pub(super) fn close(self) {
        drop(ManuallyDrop::into_inner(self.foreign));
    }

    /// Keeps the files of a message open: sockets until the end, others until it [was handled](Channel::release).
    ///
    /// # Errors
    /// The system's error, or there are too many sockets.
    pub(super) fn hold(&mut self, files: &[File]) -> io::Result<()> {
        for file in files.iter().filter(|file| !is_eventfd(file)) {
            let held = if is_unix(file) { &mut self.sockets } else { &mut self.held };
            held.push(file.try_clone()?);
        }
        if self.sockets.len() > MOST_SOCKETS {
            return Err(invalid(format!("more than {MOST_SOCKETS} sockets were passed over one connection")));
        }
        Ok(())
    }

    /// Closes in another thread what came with the message that was handled, unless it is in use.
    pub(super) fn release(&mut self) {
        close_apart(std::mem::take(&mut self.held));
    }

    /// Whether no message has arrived in part.
    pub(super) fn is_between_messages(&self) -> bool {
        self.partial.is_empty()
    }

    /// The next message, if it arrived completely. Its files are [held](Channel::hold).
    ///
    /// # Errors
    /// The frontend left, or sent an invalid message.
    pub(super) fn receive(&mut self) -> io::Result<Option<Message>> {
        loop {
            let wanted = match self.partial.get(8..HEADER) {
                None => HEADER,
                Some(size) => HEADER + payload_size(size)?,
            };
            if self.partial.len() < wanted {
                if !self.read(wanted - self.partial.len())? {
                    return Ok(None);
                }
                continue;
            }
            // The header and the whole payload are here.
            let message = std::mem::take(&mut self.partial);
            let word = |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
            let (request, flags) = (word(0), word(4));
            if flags & 3 != VERSION || flags & REPLY != 0 {
                return Err(invalid(format!(
                    "message {request} has flags {flags:#x}; a request of version 1 has 1 or 9"
                )));
            }
            let request = FrontendReq::try_from(request)
                .map_err(|()| invalid(format!("message {request} is not one that a frontend sends")))?;
            let need_reply = flags & NEED_REPLY != 0;
            let files = std::mem::take(&mut self.files);
            if let Err(error) = self.hold(&files) {
                // They are closed with the connection.
                self.files = files;
                return Err(error);
            }
            return Ok(Some(Message { request, need_reply, payload: message[HEADER..].to_vec(), files }));
        }
    }

    /// Reads at most `wanted` bytes. False if there are none at the moment.
    fn read(&mut self, wanted: usize) -> io::Result<bool> {
        let mut buffer = [0u8; HEADER + MAX_MSG_SIZE];
        let wanted = wanted.min(buffer.len());
        let received = match passing::receive(&self.stream, &mut buffer[..wanted]) {
            Ok(received) => received,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                    _ => Err(error),
                };
            }
        };
        let (local, foreign): (Vec<File>, Vec<File>) = received.files.into_iter().partition(|file| is_local(file));
        self.files.extend(local);
        self.foreign.extend(foreign);
        if received.lost {
            return Err(invalid(
                "descriptors of a message were lost: this process has reached its limit of open files".to_owned(),
            ));
        }
        if !self.foreign.is_empty() {
            return Err(invalid(
                "a descriptor was passed whose use may block: memory must be a memfd, or a file on tmpfs, hugetlbfs or a \
                 disk, and what notifies an eventfd or a Unix socket"
                    .to_owned(),
            ));
        }
        if received.len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.files.len() > MAX_ATTACHED_FD_ENTRIES {
            let came = self.files.len();
            return Err(invalid(format!(
                "{came} descriptors came with a message; {MAX_ATTACHED_FD_ENTRIES} is the most"
            )));
        }
        self.partial.extend_from_slice(&buffer[..received.len]);
        Ok(true)
    }

    /// Replies to a request.
    ///
    /// # Errors
    /// The system's error, including that of a frontend that does not read its replies.
    pub(super) fn reply(&mut self, request: FrontendReq, payload: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(HEADER + payload.len());
        for word in [request.into(), VERSION | REPLY, payload.len() as u32] {
            message.extend_from_slice(&u32::to_ne_bytes(word));
        }
        message.extend_from_slice(payload);
        self.stream.write_all(&message)
    }
}

fn payload_size(size: &[u8]) -> io::Result<usize> {
    let size = u32::from_ne_bytes([size[0], size[1], size[2], size[3]]) as usize;
    if size > MAX_MSG_SIZE {
        return Err(invalid(format!("a message of {size} bytes; {MAX_MSG_SIZE} is the most")));
    }
    Ok(size)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
