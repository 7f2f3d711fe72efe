//! Bytes and descriptors that pass together through a Unix socket (unix(7), SCM_RIGHTS). No call blocks.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// What one call received.
pub(crate) struct Received {
    /// Bytes written into the buffer.
    pub len: usize,
    /// Descriptors.
    pub files: Vec<File>,
    /// Whether descriptors were lost, because this process has reached its limit of open files.
    pub lost: bool,
}

/// Receives bytes, at most as many as the buffer has, and the descriptors sent with them.
///
/// # Errors
/// The system's error: `WouldBlock` if nothing has arrived.
pub(crate) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control { bytes: [0; CONTROL] };
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeros is a valid, empty header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), CONTROL);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header refers to live memory of the lengths that it states.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote the header and the control messages that it refers to.
    let files = unsafe { own(&header) };
    Ok(Received { len: len as usize, files, lost: header.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Gives every received descriptor an owner, even if some that were sent are missing.
///
/// # Safety
/// The kernel wrote the header and the control messages it refers to, and this is the first call for them.
unsafe fn own(header: &libc::msghdr) -> Vec<File> {
    let mut files = Vec::new();
    // SAFETY: each control message is of the length that it states; the descriptors in them were just given to us and
    // have no other owner.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let rights = &*control;
            if (rights.cmsg_level, rights.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(control).cast::<RawFd>();
                let count = (rights.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                files.extend((0..count).map(|at| File::from(OwnedFd::from_raw_fd(fds.add(at).read_unaligned()))));
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    files
}

/// Sends bytes and descriptors as one message.
///
/// # Errors
/// The system's error.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let (part, rights) = ([IoSlice::new(bytes)], [ControlMessage::ScmRights(&fds)]);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_fd().as_raw_fd(), &part, &rights, flags, None)?;
    Ok(())
}
