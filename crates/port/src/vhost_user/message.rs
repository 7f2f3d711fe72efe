//! The messages of vhost-user on their socket (QEMU, docs/interop/vhost-user.rst): a header of three words, a payload,
//! and descriptors.
//!
//! No call blocks. A payload may be longer than its request needs (User-Mode Linux sends whole unions); a shorter one
//! is an error.

use super::rejection::Rejection;
use crate::descriptor::is_local;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

/// Bytes of the header: request, flags, size of the payload.
const HEADER: usize = 12;
/// The protocol's version, in the lowest two bits of the flags.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// The most descriptors that the kernel passes with one message (SCM_MAX_FD of its `include/net/scm.h`).
const MOST_FILES: u32 = 253;

/// Bytes of control messages with that many descriptors. With room for all, each gets an owner that closes it, whatever
/// is wrong with the message.
// SAFETY: it is arithmetic.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(MOST_FILES * size_of::<RawFd>() as u32) } as usize;

/// Space for control messages, aligned as their headers are.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    bytes: [u8; CONTROL],
}

/// One message of a frontend.
pub(super) struct Message {
    /// The request.
    pub request: FrontendReq,
    /// Whether the frontend wants an acknowledgement.
    pub need_reply: bool,
    payload: Vec<u8>,
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
    /// Files whose use may block us. A message with any is the connection's last.
    foreign: Vec<File>,
}

impl Channel {
    /// A channel over a connected socket.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(stream: UnixStream) -> io::Result<Channel> {
        stream.set_nonblocking(true)?;
        Ok(Channel { stream, partial: Vec::new(), files: Vec::new(), foreign: Vec::new() })
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// The files to be [closed in another thread](crate::descriptor::close_apart).
    pub(super) fn foreign(self) -> Vec<File> {
        self.foreign
    }

    /// The next message, if it arrived completely.
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
            let files = std::mem::take(&mut self.files);
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
            return Ok(Some(Message { request, need_reply, payload: message[HEADER..].to_vec(), files }));
        }
    }

    /// Reads at most `wanted` bytes. False if there are none at the moment.
    fn read(&mut self, wanted: usize) -> io::Result<bool> {
        let mut buffer = [0u8; HEADER + MAX_MSG_SIZE];
        let mut control = Control { bytes: [0; CONTROL] };
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: wanted.min(buffer.len()) };
        // SAFETY: all zeros is a valid, empty header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), CONTROL);
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header refers to live memory of the lengths that it states.
        let len = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &raw mut header, flags) };
        if len < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        self.own(&header);
        if header.msg_flags & libc::MSG_CTRUNC != 0 {
            return Err(invalid(
                "descriptors of a message were lost: this process has reached its limit of open files".to_owned(),
            ));
        }
        if !self.foreign.is_empty() {
            return Err(invalid(
                "a file was passed whose use may block (on FUSE or a network): memory must be a memfd, or a file on \
                 tmpfs, hugetlbfs or a disk"
                    .to_owned(),
            ));
        }
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.files.len() > MAX_ATTACHED_FD_ENTRIES {
            let came = self.files.len();
            return Err(invalid(format!(
                "{came} descriptors came with a message; {MAX_ATTACHED_FD_ENTRIES} is the most"
            )));
        }
        self.partial.extend_from_slice(&buffer[..len as usize]);
        Ok(true)
    }

    /// Gives every received descriptor an owner, even if some that were sent are missing.
    fn own(&mut self, header: &libc::msghdr) {
        // SAFETY: the kernel wrote the header and the control messages it refers to, each of the length that it states;
        // the descriptors in them were just given to us and have no other owner.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(header);
            while !control.is_null() {
                let rights = &*control;
                if (rights.cmsg_level, rights.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let fds = libc::CMSG_DATA(control).cast::<RawFd>();
                    let count = (rights.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                    for at in 0..count {
                        let file = File::from(OwnedFd::from_raw_fd(fds.add(at).read_unaligned()));
                        if is_local(&file) { &mut self.files } else { &mut self.foreign }.push(file);
                    }
                }
                control = libc::CMSG_NXTHDR(header, control);
            }
        }
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
