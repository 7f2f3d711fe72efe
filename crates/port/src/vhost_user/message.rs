//! The messages of vhost-user on their socket (QEMU, docs/interop/vhost-user.rst): a header of three words, a payload,
//! and descriptors beside it.
//!
//! Nothing here blocks. A payload may be longer than its request needs (User-Mode Linux sends whole unions); a shorter one
//! is an error.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

/// Bytes of the header: request, flags, size of the payload.
const HEADER: usize = 12;
/// The protocol's version, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// Descriptors that one message can carry (SCM_MAX_FD of the kernel's `include/net/scm.h`). With room for all of them each has an owner
/// who closes it. Where the kernel cuts their number short all the same, as this process has no place for more, those that came are
/// here and nobody knows their numbers.
const MOST_FILES: usize = 253;

/// One message of a frontend.
pub struct Message {
    /// What it asks for.
    pub request: FrontendReq,
    /// Whether it wants to know that it was done.
    pub need_reply: bool,
    payload: Vec<u8>,
    /// Descriptors sent with it.
    pub files: Vec<File>,
}

impl Message {
    /// The 32-bit word at byte `at` of the payload.
    ///
    /// # Errors
    /// A sentence, if the payload is too short.
    pub fn word(&self, at: usize) -> Result<u32, String> {
        self.bytes(at).map(u32::from_ne_bytes)
    }

    /// The 64-bit word at byte `at` of the payload.
    ///
    /// # Errors
    /// A sentence, if the payload is too short.
    pub fn long(&self, at: usize) -> Result<u64, String> {
        self.bytes(at).map(u64::from_ne_bytes)
    }

    /// `N` bytes at byte `at` of the payload.
    ///
    /// # Errors
    /// A sentence, if the payload is too short.
    pub fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], String> {
        let have = self.payload.len();
        let bytes = self.payload.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| format!("{:?} with {have} bytes; it needs {} at least", self.request, at + N))
    }
}

/// The backend's end of a connection.
pub struct Channel {
    stream: UnixStream,
    /// Of the next message, as far as it came.
    partial: Vec<u8>,
    files: Vec<File>,
}

impl Channel {
    /// Speaks over a connected socket.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel { stream, partial: Vec::new(), files: Vec::new() })
    }

    /// The socket, to wait on.
    pub fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// The next message, if all of it came.
    ///
    /// # Errors
    /// The frontend left, or sent what is no message.
    pub fn receive(&mut self) -> io::Result<Option<Message>> {
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
            // The header is here, and says that nothing is missing.
            let message = std::mem::take(&mut self.partial);
            let files = std::mem::take(&mut self.files);
            let word = |at: usize| u32::from_ne_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
            let (request, flags) = (word(0), word(4));
            if flags & 3 != VERSION || flags & REPLY != 0 {
                return Err(invalid(format!(
                    "message {request} has flags {flags:#x}; a request of version 1 has 1 or 9"
                )));
            }
            let request = FrontendReq::try_from(request)
                .map_err(|()| invalid(format!("message {request} is none that a frontend sends")))?;
            let need_reply = flags & NEED_REPLY != 0;
            return Ok(Some(Message { request, need_reply, payload: message[HEADER..].to_vec(), files }));
        }
    }

    /// Reads at most `wanted` bytes. False if there are none now.
    fn read(&mut self, wanted: usize) -> io::Result<bool> {
        let mut buffer = [0; HEADER + MAX_MSG_SIZE];
        let mut space = nix::cmsg_space!([RawFd; MOST_FILES]);
        let mut parts = [IoSliceMut::new(&mut buffer[..wanted])];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let len = match recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Ok(message) => {
                for control in message.cmsgs()? {
                    let ControlMessageOwned::ScmRights(fds) = control else { continue };
                    for fd in fds {
                        // SAFETY: the kernel just gave us this descriptor, and it has no other owner.
                        self.files.push(File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
                    }
                }
                message.bytes
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.files.len() > MAX_ATTACHED_FD_ENTRIES {
            let came = self.files.len();
            return Err(invalid(format!(
                "{came} descriptors came with a message; {MAX_ATTACHED_FD_ENTRIES} is the most"
            )));
        }
        self.partial.extend_from_slice(&buffer[..len]);
        Ok(true)
    }

    /// Answers a request.
    ///
    /// # Errors
    /// What the system says; a frontend that does not read its replies is one.
    pub fn reply(&mut self, request: FrontendReq, payload: &[u8]) -> io::Result<()> {
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
