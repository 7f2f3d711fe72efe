//! Descriptors by which a frontend kicks us and we notify it. The frontend controls them, and a worker must never block
//! on one.
//!
//! Whether a read or write blocks depends on the file description, which the frontend shares: it can clear `O_NONBLOCK`
//! at any moment, and fill an eventfd. So these descriptors are never used by a call that depends on it, and
//! [eventfds](eventfd) by none.
//!
//! What vmsplice does depends on how a pipe was opened: at the end for writing it copies nothing, but lends the pages that
//! are named to whoever reads the pipe. So a pipe is used in one direction only, and only if it was opened in that one.

use crate::{descriptor, eventfd};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use thiserror::Error;

/// What is written, as to an eventfd.
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
    /// A regular file.
    #[error("{0} with a regular file; it must be an eventfd or a pipe")]
    File(String),
    /// A pipe that was not opened, or not only, for the direction it is used in.
    #[error("{what} with a pipe that is open for {open}; it must be open for {} only", way.end())]
    Pipe {
        /// The message.
        what: String,
        /// The direction.
        way: Way,
        /// What it is open for.
        open: &'static str,
    },
    /// A directory or a device.
    #[error("{0} with a descriptor that is no eventfd, pipe or socket")]
    Other(String),
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
    /// What our end of a pipe is open for.
    fn end(self) -> &'static str {
        match self {
            Way::Out => "writing",
            Way::In => "reading",
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
    Pipe,
    Socket,
}

impl Notifier {
    /// Takes a descriptor from a message that can be used [without waiting](descriptor::is_local); `what` names the
    /// message.
    ///
    /// # Errors
    /// It is not an eventfd, a pipe in this direction, or a socket.
    pub(crate) fn new(what: &str, way: Way, file: File) -> Result<Notifier, Error> {
        let what = || what.to_owned();
        let unknown = |error| Error::Unknown { what: what(), error };
        let kind = match descriptor::kind(&file).map_err(unknown)? {
            libc::S_IFIFO => {
                let open = opened(&file).map_err(unknown)?;
                if open != way.end() {
                    return Err(Error::Pipe { what: what(), way, open });
                }
                Kind::Pipe
            }
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFREG => return Err(Error::File(what())),
            // The only anonymous inode that is used without waiting.
            0 => Kind::Event,
            _ => return Err(Error::Other(what())),
        };
        Ok(Notifier { file, kind })
    }

    /// Notifies the peer. May be lost if there is no room: then an earlier notification is still unread, which has the
    /// same effect.
    pub(crate) fn notify(&self) {
        let fd = self.file.as_raw_fd();
        match self.kind {
            Kind::Event => eventfd::signal(&self.file),
            Kind::Pipe => {
                let bytes = libc::iovec { iov_base: (&raw const ONE).cast_mut().cast(), iov_len: 8 };
                // SAFETY: the kernel only reads the vector, and lends the bytes that it names, which never change.
                unsafe { libc::vmsplice(fd, &bytes, 1, libc::SPLICE_F_NONBLOCK) };
            }
            Kind::Socket => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                // SAFETY: the kernel reads eight valid bytes.
                unsafe { libc::send(fd, (&raw const ONE).cast(), 8, flags) };
            }
        }
    }

    /// Discards notifications received so far where they would fill up a buffer. An eventfd needs none: edge-triggered
    /// polling reports each write once.
    pub(crate) fn discard(&self) {
        let (fd, mut bytes_read) = (self.file.as_raw_fd(), [0u8; 512]);
        match self.kind {
            Kind::Event => {}
            Kind::Pipe => {
                let bytes = libc::iovec { iov_base: bytes_read.as_mut_ptr().cast(), iov_len: bytes_read.len() };
                // SAFETY: the pipe is open for reading only, so the kernel copies into the vector's buffer, which is ours.
                unsafe { libc::vmsplice(fd, &bytes, 1, libc::SPLICE_F_NONBLOCK) };
            }
            Kind::Socket => {
                // SAFETY: the kernel writes at most as many bytes as our buffer has.
                unsafe { libc::recv(fd, bytes_read.as_mut_ptr().cast(), bytes_read.len(), libc::MSG_DONTWAIT) };
            }
        }
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a pipe is open for. Nobody can change that of an open one.
fn opened(pipe: &File) -> io::Result<&'static str> {
    Ok(match OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE {
        OFlag::O_RDONLY => Way::In.end(),
        OFlag::O_WRONLY => Way::Out.end(),
        _ => "both reading and writing",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn full_blocking_pipes_and_sockets_do_not_block_us() {
        let (mut read, write) = std::io::pipe().unwrap();
        let (call, kick) =
            (File::from(std::os::fd::OwnedFd::from(write.try_clone().unwrap())), read.try_clone().unwrap());
        let (call, kick) = (
            Notifier::new("call", Way::Out, call).unwrap(),
            Notifier::new("kick", Way::In, File::from(std::os::fd::OwnedFd::from(kick))).unwrap(),
        );
        kick.discard();
        call.notify();
        let mut bytes_read = [0; 8];
        read.read_exact(&mut bytes_read).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes_read), 1);
        for _ in 0..100_000 {
            call.notify();
        }
        for _ in 0..100_000 {
            kick.discard();
        }
        drop((write, call));
        assert_eq!(read.read(&mut bytes_read).unwrap(), 0, "all of it was discarded");
        kick.discard();

        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let ours = Notifier::new("call", Way::Out, File::from(std::os::fd::OwnedFd::from(ours))).unwrap();
        ours.discard();
        for _ in 0..10_000 {
            ours.notify();
        }
        theirs.read_exact(&mut bytes_read).unwrap();
        theirs.write_all(&bytes_read).unwrap();
        ours.discard();
        drop(theirs);
        ours.notify();
        ours.discard();
    }

    #[test]
    fn other_descriptors_are_refused() {
        let why =
            |path: &str| Notifier::new("SET_LOG_FD", Way::Out, File::open(path).unwrap()).unwrap_err().to_string();
        assert_eq!(why("/etc/hostname"), "SET_LOG_FD with a regular file; it must be an eventfd or a pipe");
        for path in ["/", "/dev/null"] {
            assert_eq!(why(path), "SET_LOG_FD with a descriptor that is no eventfd, pipe or socket");
        }
    }

    /// At the end for writing, reading a kick would lend the frontend a page of our stack.
    #[test]
    fn a_pipe_is_used_only_in_the_direction_it_is_open_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let both = || File::options().read(true).write(true).open(&path).unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let (read, write) =
            (File::from(std::os::fd::OwnedFd::from(read)), File::from(std::os::fd::OwnedFd::from(write)));
        let why = |way, file| Notifier::new("message", way, file).unwrap_err().to_string();
        assert_eq!(
            why(Way::In, write),
            "message with a pipe that is open for writing; it must be open for reading only"
        );
        assert_eq!(
            why(Way::Out, read),
            "message with a pipe that is open for reading; it must be open for writing only"
        );
        for (way, right) in [(Way::In, "reading"), (Way::Out, "writing")] {
            let expected = format!(
                "message with a pipe that is open for both reading and writing; it must be open for {right} only"
            );
            assert_eq!(why(way, both()), expected);
        }
    }
}
