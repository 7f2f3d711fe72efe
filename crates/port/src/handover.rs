//! Gives what is in the [store](crate::store) to a process that succeeds this one, over a Unix socket between the two. It is the
//! way of a restart without a pause: the former process serves until the next one is ready to.

use crate::passing::{self, Received};
use crate::store::{self, Passed, Place, Store};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Changes with the meaning of names and of records.
pub const FORMAT: u32 = 1;

/// Bytes of a record: the entry's [place](Place), then its name, then zeros. The last one has no name. Its descriptors come
/// with it.
const RECORD: usize = 256;

/// The places, by their numbers in a record.
const PLACES: [Place; 3] = [Place::Manager, Place::Nowhere, Place::Here];

/// How long to wait for the other process, in milliseconds.
const PATIENCE: u16 = 10_000;

/// A thread that rests, until this is dropped.
pub struct Resting(Sender<()>);

/// What a resting thread waits for.
pub struct Rest(Receiver<()>);

impl Resting {
    /// Both ends.
    pub fn new() -> (Resting, Rest) {
        let (hold, held) = channel();
        (Resting(hold), Rest(held))
    }

    /// Has it rest for good: another process does its work.
    pub fn for_good(self) {
        std::mem::forget(self.0);
    }
}

impl Rest {
    /// Waits until the other end is dropped.
    pub fn end(self) {
        // Nothing is ever sent.
        let _ = self.0.recv();
    }
}

/// Sends everything.
///
/// # Errors
/// This process keeps nothing, or the system's error.
pub fn give(to: &UnixStream) -> io::Result<()> {
    let store = store::store().ok_or_else(|| io::Error::new(ErrorKind::Unsupported, "this process keeps nothing"))?;
    for (name, entry) in &store.entries {
        // What is gone meanwhile is not given.
        if let Some(held) = entry.held.upgrade() {
            send(to, name, entry.place, &held.fds())?;
        }
    }
    send(to, "", Place::Here, &[])
}

/// Begins to use the store with what another process sends. Until [`done`] the service is that one's.
///
/// # Errors
/// The other process ended, a record is damaged, or the system's error.
pub fn take(from: &UnixStream) -> io::Result<()> {
    store::begin(Store { passed: read(from)?, is_others: true, ..Store::default() });
    Ok(())
}

/// Reads records to the last one.
fn read(from: &UnixStream) -> io::Result<BTreeMap<String, Passed>> {
    let mut all = BTreeMap::new();
    loop {
        let mut record = [0; RECORD];
        wait(from, PollFlags::POLLIN)?;
        let Received { len, files, lost } = passing::receive(from, &mut record)?;
        if len != RECORD {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if lost {
            return Err(io::Error::other(
                "this process may not have as many descriptors: raise its limit (LimitNOFILE=)",
            ));
        }
        let damaged = || io::Error::new(ErrorKind::InvalidData, "a record is damaged");
        let [place, name @ ..] = &record;
        let place = PLACES.get(usize::from(*place)).copied().ok_or_else(damaged)?;
        let end = name.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
        let name = str::from_utf8(&name[..end]).map_err(|_| damaged())?;
        if name.is_empty() {
            return Ok(all);
        }
        let fds = files.into_iter().map(OwnedFd::from).collect();
        all.insert(name.to_owned(), Passed { fds, place });
    }
}

/// The service is this process's now: it serves, and the former one has ended.
pub fn done() {
    store::set_others(false);
    store::settle();
}

/// The service is the successor's now.
pub fn given() {
    store::set_others(true);
}

/// Sends a record.
fn send(to: &UnixStream, name: &str, place: Place, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut record = [0; RECORD];
    record[0] = PLACES.iter().position(|known| *known == place).map_or(u8::MAX, |number| number as u8);
    let room = record.get_mut(1..=name.len()).filter(|_| name.len() + 2 <= RECORD);
    let room = room.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, format!("the name `{name}` is too long")))?;
    room.copy_from_slice(name.as_bytes());
    loop {
        match passing::send(to, &record, fds) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(to, PollFlags::POLLOUT)?,
            sent => return sent,
        }
    }
}

/// Waits until the socket can be used.
fn wait(socket: &UnixStream, for_what: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::new(socket.as_fd(), for_what)], PollTimeout::from(PATIENCE))? {
        0 => Err(ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn what_is_sent_is_read() {
        let (near, far) = UnixStream::pair().unwrap();
        // More than the sockets' buffers hold.
        let count = 450;
        let sender = std::thread::spawn(move || {
            let fds = [near.as_fd(), near.as_fd()];
            for number in 0..count {
                send(&near, &format!("vif {number}"), PLACES[number % 3], &fds[..number % 3]).unwrap();
            }
            send(&near, "", Place::Here, &[]).unwrap();
            assert!(send(&near, &"x".repeat(RECORD - 1), Place::Here, &[]).is_err(), "no room for its name");
        });
        let all = read(&far).unwrap();
        sender.join().unwrap();
        assert_eq!(all.len(), count);
        for number in 0..count {
            let Passed { fds, place } = &all[&format!("vif {number}")];
            assert_eq!((fds.len(), *place), (number % 3, PLACES[number % 3]));
        }
    }

    proptest! {
        #[test]
        fn any_records_are_read_or_refused(
            records in prop::collection::vec((0..4u8, "[a-z ]{0,9}"), 0..8),
            damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let (mut near, far) = UnixStream::pair().unwrap();
            let mut bytes = Vec::new();
            for (place, name) in &records {
                let mut record = [0; RECORD];
                record[0] = *place;
                record[1..=name.len()].copy_from_slice(name.as_bytes());
                bytes.extend(record);
            }
            if let Some((at, byte)) = damage.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            near.write_all(&bytes).unwrap();
            drop(near);
            let is_whole = records.iter().any(|(_, name)| name.is_empty());
            // It ends at the end of the stream at the latest.
            prop_assert!(read(&far).is_err() || is_whole || damage.is_some());
        }
    }
}
