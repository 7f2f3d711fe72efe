//! A connection as it is kept for the next process: its descriptor, and the messages that configure a device as the
//! frontend did. The next process handles them as if the frontend had sent them again, so they are checked as strictly,
//! and anything it does not understand ends the connection; the frontend then connects again.

use super::message::Message;
use super::rejection::Rejection;
use crate::descriptor::{self, is_local};
use crate::keeper::Kept;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use thiserror::Error;
use vhost::vhost_user::message::FrontendReq;

/// Changes with the format: this number, the socket's path (its length, then its bytes), then for each message its request,
/// the number of its descriptors, the length of its payload, and its payload. Numbers have 32 bits. The first descriptor is
/// the connection.
const FORMAT: u32 = 1;

/// Why a kept connection cannot go on.
#[derive(Debug, Error)]
pub(super) enum Unusable {
    /// Another version's.
    #[error("it was kept in format {0}, and this version knows {FORMAT}")]
    Format(u32),
    /// It ends early, or has an unknown request.
    #[error("what was kept of it is damaged")]
    Damaged,
    /// The vif has another socket now.
    #[error("the vif has another socket now")]
    Moved,
    /// A file that may block.
    #[error("a file of it may block")]
    Foreign,
    /// A message that is refused.
    #[error(transparent)]
    Message(#[from] Rejection),
    /// The connection cannot be used, or its peer is not admitted.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A connection that is being written down.
pub(super) struct Record<'a> {
    /// Bytes for the keeper.
    pub bytes: Vec<u8>,
    /// Descriptors for the keeper.
    pub fds: Vec<BorrowedFd<'a>>,
}

impl<'a> Record<'a> {
    /// A connection through a socket of this path, without messages.
    pub(super) fn new(path: &Path, connection: &'a UnixStream) -> Record<'a> {
        let mut record = Record { bytes: Vec::with_capacity(2048), fds: vec![connection.as_fd()] };
        let path = path.as_os_str().as_bytes();
        record.words([FORMAT, path.len() as u32]);
        record.bytes.extend_from_slice(path);
        record
    }

    fn words<const N: usize>(&mut self, words: [u32; N]) {
        self.bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    }

    /// Adds a message whose payload consists of 64-bit numbers, perhaps with a descriptor.
    pub(super) fn message(&mut self, request: FrontendReq, payload: &[u64], fd: Option<BorrowedFd<'a>>) {
        self.words([request.into(), u32::from(fd.is_some()), size_of_val(payload) as u32]);
        self.bytes.extend(payload.iter().flat_map(|long| long.to_ne_bytes()));
        self.fds.extend(fd);
    }

    /// Adds a message about a ring with one 32-bit number.
    pub(super) fn ring(&mut self, request: FrontendReq, index: u32, number: u32) {
        self.message(request, &[two(index, number)], None);
    }
}

/// Two 32-bit numbers of a payload.
pub(super) fn two(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The connection that was kept, and its messages.
///
/// # Errors
/// It is not usable for a vif whose socket has this path.
pub(super) fn read(kept: Kept, path: &Path) -> Result<(UnixStream, Vec<Message>), Unusable> {
    let (mut bytes, mut files) = (&kept.bytes[..], kept.files.into_iter());
    let format = word(&mut bytes)?;
    if format != FORMAT {
        return Err(Unusable::Format(format));
    }
    let connection = files.next().ok_or(Unusable::Damaged)?;
    if descriptor::kind(&connection)? != libc::S_IFSOCK {
        return Err(Unusable::Damaged);
    }
    let len = word(&mut bytes)?;
    if take(&mut bytes, len)? != path.as_os_str().as_bytes() {
        return Err(Unusable::Moved);
    }
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let request = FrontendReq::try_from(word(&mut bytes)?).map_err(|()| Unusable::Damaged)?;
        let (count, len) = (word(&mut bytes)?, word(&mut bytes)?);
        let payload = take(&mut bytes, len)?.to_vec();
        let files: Vec<File> = files.by_ref().take(count as usize).collect();
        if files.len() != count as usize {
            return Err(Unusable::Damaged);
        }
        if !files.iter().all(is_local) {
            return Err(Unusable::Foreign);
        }
        messages.push(Message { request, need_reply: false, payload, files });
    }
    Ok((UnixStream::from(OwnedFd::from(connection)), messages))
}

fn word(bytes: &mut &[u8]) -> Result<u32, Unusable> {
    let (word, rest) = bytes.split_first_chunk().ok_or(Unusable::Damaged)?;
    *bytes = rest;
    Ok(u32::from_ne_bytes(*word))
}

fn take<'a>(bytes: &mut &'a [u8], len: u32) -> Result<&'a [u8], Unusable> {
    let (taken, rest) = bytes.split_at_checked(len as usize).ok_or(Unusable::Damaged)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: &str = "/run/vif.sock";

    /// What is kept of a connection with two messages, one of them with a descriptor.
    fn kept() -> Kept {
        let (near, far) = UnixStream::pair().unwrap();
        let mut record = Record::new(Path::new(PATH), &near);
        record.ring(FrontendReq::SET_VRING_NUM, 1, 256);
        record.message(FrontendReq::SET_VRING_KICK, &[1], Some(far.as_fd()));
        let files = record.fds.iter().map(|fd| File::from(fd.try_clone_to_owned().unwrap())).collect();
        Kept { bytes: record.bytes, files }
    }

    #[test]
    fn what_is_kept_is_read() {
        let (_, messages) = read(kept(), Path::new(PATH)).unwrap();
        let [number, kick] = &messages[..] else { panic!("{} messages", messages.len()) };
        assert_eq!((number.request, number.word(0).unwrap()), (FrontendReq::SET_VRING_NUM, 1));
        assert_eq!((number.word(4).unwrap(), number.files.len()), (256, 0));
        assert_eq!((kick.request, kick.long(0).unwrap()), (FrontendReq::SET_VRING_KICK, 1));
        assert_eq!(kick.files.len(), 1);
    }

    #[test]
    fn another_format_or_path_is_refused() {
        assert!(matches!(read(kept(), Path::new("/run/other.sock")), Err(Unusable::Moved)));
        let mut newer = kept();
        newer.bytes[..4].copy_from_slice(&(FORMAT + 1).to_ne_bytes());
        let refused = read(newer, Path::new(PATH)).map(drop).unwrap_err();
        assert_eq!(refused.to_string(), "it was kept in format 2, and this version knows 1");
        let foreign = Kept { files: vec![File::open("/proc/self/maps").unwrap()], ..kept() };
        assert!(matches!(read(foreign, Path::new(PATH)), Err(Unusable::Damaged)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            len in any::<prop::sample::Index>(),
            files in 0..4usize,
        ) {
            let Kept { mut bytes, files: all } = kept();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(len.index(bytes.len() + 1));
            if let Ok((_, messages)) = read(Kept { bytes, files: all.into_iter().take(files).collect() }, Path::new(PATH)) {
                prop_assert!(messages.iter().map(|message| message.files.len()).sum::<usize>() < files);
            }
        }
    }
}
