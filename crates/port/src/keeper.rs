//! Keeps bytes and descriptors beyond the end of this process: as a message that nobody has read, in a pair of sockets of
//! which somebody else has copies (the [store](crate::store)). The kernel holds what is in the message; a reader takes
//! it out, so contents that crash their reader are tried only once.

use crate::passing::{self, Received};
use nix::sys::socket::{MsgFlags, recv};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

/// The most bytes that are kept: far more than any port needs.
const MOST: usize = 64 << 10;

/// A place for one message.
#[derive(Debug)]
pub struct Keeper {
    /// A message is sent into the first, and waits at the second.
    ends: [UnixDatagram; 2],
}

/// What was kept.
#[derive(Debug)]
pub struct Kept {
    /// Bytes, of a format of the port's own.
    pub(crate) bytes: Vec<u8>,
    /// Descriptors.
    pub(crate) files: Vec<File>,
}

impl Keeper {
    /// An empty one.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> io::Result<Keeper> {
        let (a, b) = UnixDatagram::pair()?;
        Ok(Keeper { ends: [a, b] })
    }

    /// The keeper with these ends, in any order, which a former process had.
    pub(crate) fn from_ends(ends: [OwnedFd; 2]) -> Keeper {
        Keeper { ends: ends.map(UnixDatagram::from) }
    }

    /// Both ends, for somebody else to hold.
    pub(crate) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        self.ends.each_ref().map(AsFd::as_fd)
    }

    /// Keeps this instead of what was kept before.
    ///
    /// # Errors
    /// The system's error: nothing is kept then.
    pub(crate) fn keep(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.forget();
        passing::send(&self.ends[0], bytes, fds)
    }

    /// Closes what is kept.
    pub(crate) fn forget(&self) {
        // Without room for descriptors, the kernel closes them.
        let discard = |end: &UnixDatagram| recv(end.as_raw_fd(), &mut [0; 1], MsgFlags::MSG_DONTWAIT).is_ok();
        self.ends.iter().for_each(|end| while discard(end) {});
    }

    /// Takes what is kept, if all of it can be had.
    pub fn take(&self) -> Option<Kept> {
        let mut bytes = vec![0; MOST];
        let mut newest = None;
        for end in &self.ends {
            while let Ok(Received { len, files, lost }) = passing::receive(end, &mut bytes) {
                newest = (!lost && len < MOST).then(|| Kept { bytes: bytes[..len].to_vec(), files });
            }
        }
        newest
    }
}
