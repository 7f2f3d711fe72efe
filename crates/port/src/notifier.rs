//! Descriptors by which a frontend kicks us and we notify it. The frontend controls them, and a worker must never block
//! on one.
//!
//! Whether a read or write blocks depends on the file description, which the frontend shares: it can clear `O_NONBLOCK`
//! at any moment, and fill an eventfd. So these descriptors are never used by a call that depends on it, and
//! [eventfds](eventfd) by none.
//!
//! A call that asks not to wait still waits for a lock that the frontend holds for as long as it likes, in a read or write of
//! its own whose memory does not arrive (userfaultfd, FUSE). Both ends of a pipe are used under its one lock, and so is a
//! socket by all that read it, but not by those that write to it. So we are kicked by eventfds alone, which are not read at
//! all, and notify by eventfds or Unix sockets (User-Mode Linux's, which has no signal from an eventfd).

use crate::{descriptor, eventfd};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use thiserror::Error;

/// What is sent through a socket: as much as is written to an eventfd.
static ONE: u64 = 1;

/// A descriptor that cannot be a notifier, with the message that carried it.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// A descriptor that cannot be inspected.
    #[error("{what}: {error}")]
    Unknown {
        /// The message.
        what: String,
        /// The system's error.
        error: io::Error,
    },
    /// A descriptor of another kind.
    #[error("{what} with {found}; it must be {}", way.right())]
    Kind {
        /// The message.
        what: String,
        /// Who notifies whom.
        way: Way,
        /// What it is.
        found: &'static str,
    },
}

/// Who notifies whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// We notify the frontend.
    Out,
    /// The frontend notifies us.
    In,
}

impl Way {
    /// What serves it.
    fn right(self) -> &'static str {
        match self {
            Way::Out => "an eventfd or a Unix socket",
            Way::In => "an eventfd",
        }
    }
}

/// A frontend's descriptor.
#[derive(Debug)]
pub(crate) struct Notifier {
    file: File,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Event,
    Socket,
}

impl Notifier {
    /// Takes a descriptor from a message that can be used [without waiting](descriptor::is_local); `what` names the
    /// message.
    ///
    /// # Errors
    /// It is not of a kind that serves this way.
    pub(crate) fn new(what: &str, way: Way, file: File) -> Result<Notifier, Error> {
        let what = || what.to_owned();
        let wrong = |found| Err(Error::Kind { what: what(), way, found });
        let kind = match descriptor::kind(&file).map_err(|error| Error::Unknown { what: what(), error })? {
            // The only anonymous inode that is used without waiting.
            0 => Kind::Event,
            libc::S_IFSOCK if way == Way::Out => Kind::Socket,
            libc::S_IFSOCK => return wrong("a socket"),
            libc::S_IFIFO => return wrong("a pipe"),
            libc::S_IFREG => return wrong("a regular file"),
            _ => return wrong("a directory or a device"),
        };
        Ok(Notifier { file, kind })
    }

    /// Notifies the frontend. May be lost if there is no room: then an earlier notification is still unread, which has
    /// the same effect.
    pub(crate) fn notify(&self) {
        match self.kind {
            Kind::Event => eventfd::signal(&self.file),
            Kind::Socket => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the kernel reads eight valid bytes.
                unsafe { libc::send(self.file.as_raw_fd(), (&raw const ONE).cast(), 8, flags) };
            }
        }
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_full_blocking_socket_does_not_block_us() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let ours = Notifier::new("call", Way::Out, File::from(OwnedFd::from(ours))).unwrap();
        for _ in 0..10_000 {
            ours.notify();
        }
        let mut bytes_read = [0; 8];
        theirs.read_exact(&mut bytes_read).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes_read), 1);
        drop(theirs);
        ours.notify();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let why = |way, file: File| Notifier::new("message", way, file).unwrap_err().to_string();
        let open = |path| File::open(path).unwrap();
        let (pipe, _) = std::io::pipe().unwrap();
        let (socket, _) = UnixStream::pair().unwrap();
        let other = "message with a directory or a device; it must be an eventfd or a Unix socket";
        assert_eq!(why(Way::In, open("/etc/hostname")), "message with a regular file; it must be an eventfd");
        assert_eq!([why(Way::Out, open("/")), why(Way::Out, open("/dev/null"))], [other; 2]);
        assert_eq!(why(Way::In, File::from(OwnedFd::from(socket))), "message with a socket; it must be an eventfd");
        let expected = "message with a pipe; it must be an eventfd or a Unix socket";
        assert_eq!(why(Way::Out, File::from(OwnedFd::from(pipe))), expected);
    }
}
