//! Descriptors by which a frontend kicks us and we notify it. The frontend controls them, and a worker must never block
//! on one.
//!
//! Whether a read or write blocks depends on the file description, which the frontend shares: it can clear `O_NONBLOCK`
//! at any moment, and fill an eventfd. So these descriptors are never used by a call that depends on it. An eventfd is
//! signalled by the kernel, at the end of a read of zero bytes submitted by io_submit (`IOCB_FLAG_RESFD`;
//! eventfd_signal of linux/eventfd.h never blocks, and a count that does not fit is lost, which is harmless as the
//! eventfd is readable already). That takes 740 ns where a write takes 270 (Linux 6.18, one core), a few thousand times
//! a second as notifications are moderated. Eventfds do not support non-blocking writes (`RWF_NOWAIT`).
//!
//! What vmsplice does depends on how a pipe was opened: at the end for writing it copies nothing, but lends the pages that
//! are named to whoever reads the pipe. So a pipe is used in one direction only, and only if it was opened in that one.

use crate::descriptor;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::OnceLock;
use thiserror::Error;
use tracing::warn;

/// What is written: the amount to add to an eventfd's counter.
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
    /// Takes a descriptor from a message; `what` names the message.
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
            // An anonymous inode. If it is not an eventfd, the kernel refuses to signal it.
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
            Kind::Event => signal(fd),
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

/// The most asynchronous operations in flight. They complete when submitted; only their completion events accumulate.
const IN_FLIGHT: u32 = 512;

/// linux/aio_abi.h
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb` of linux/aio_abi.h, on a little-endian machine.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    signalled: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completed([u64; 4]);

/// The process's context of asynchronous operations, and an empty file to read from.
struct Signals {
    context: libc::c_ulong,
    empty: File,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        let empty = nix::sys::memfd::memfd_create(c"empty", nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the context's number to `context`.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, libc::c_ulong::from(IN_FLIGHT), &raw mut context) };
        if made < 0 { Err(io::Error::last_os_error()) } else { Ok(Signals { context, empty: empty.into() }) }
    }

    /// Signals an eventfd. False if the context is full of completion events.
    fn signal(&self, eventfd: i32) -> bool {
        let mut request = Request {
            opcode: IOCB_CMD_PREAD,
            fd: self.empty.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            signalled: eventfd as u32,
            ..Request::default()
        };
        let mut requests = [&raw mut request];
        // SAFETY: the kernel copies the request that the list names; the read is of zero bytes, so it writes none.
        let asked =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1 as libc::c_long, requests.as_mut_ptr()) };
        asked == 1 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
    }

    /// Discards completion events.
    fn reap(&self) {
        const EVENTS: usize = 64;
        let (mut done, no_time) = ([Completed([0; 4]); EVENTS], libc::timespec { tv_sec: 0, tv_nsec: 0 });
        loop {
            let (most, place) = (EVENTS as libc::c_long, done.as_mut_ptr());
            // SAFETY: the kernel writes at most as many events as there is room for, and reads the timeout.
            let got = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context, 0 as libc::c_long, most, place, &raw const no_time)
            };
            if got < most {
                return;
            }
        }
    }
}

/// Signals an eventfd.
fn signal(eventfd: i32) {
    static SIGNALS: OnceLock<Option<Signals>> = OnceLock::new();
    let signals = SIGNALS.get_or_init(|| {
        let made = Signals::new();
        if let Err(error) = &made {
            warn!("a hostile frontend can block its link: eventfds are written directly, as io_setup failed: {error}");
        }
        made.ok()
    });
    match signals {
        Some(signals) => {
            if !signals.signal(eventfd) {
                signals.reap();
                signals.signal(eventfd);
            }
        }
        None => {
            // SAFETY: the calls use no memory of ours but eight bytes that are read.
            unsafe {
                let flags = libc::fcntl(eventfd, libc::F_GETFL);
                libc::fcntl(eventfd, libc::F_SETFL, flags | libc::O_NONBLOCK);
                libc::write(eventfd, ptr::from_ref(&ONE).cast(), 8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_full_blocking_eventfd_does_not_block_us() {
        let event = EventFd::from_value_and_flags(0, EfdFlags::empty()).unwrap();
        let notifier =
            Notifier::new("call", Way::Out, File::from(event.as_fd().try_clone_to_owned().unwrap())).unwrap();
        notifier.notify();
        assert_eq!(event.read().unwrap(), 1);
        event.write(u64::MAX - 1).unwrap();
        for _ in 0..5000 {
            notifier.notify();
        }
        assert!(event.read().unwrap() >= u64::MAX - 1);
        for _ in 0..5000 {
            notifier.notify();
        }
        assert_eq!(event.read().unwrap(), 5000, "none is lost while there is room");
    }

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
