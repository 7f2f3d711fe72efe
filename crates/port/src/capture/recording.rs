//! The file's side of a capture: a thread that writes, and a report of the outcome.

use super::exchange::{Account, BUFFERS, Buffer, Writer};
use crate::keeper::{Keeper, Kept};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// Numbers of a capture that another process goes on with, each of eight bytes: snap, limit, frames seen and written, bytes
/// written. The reason why it has ended follows, or nothing.
const NUMBERS: usize = 5;

/// How long to sleep while the rest of a capture is being written.
const PAUSE: Duration = Duration::from_micros(200);

/// The outcome of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames written.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Frames that passed before the end of the capture and are not in the file.
    pub left_out: u64,
    /// Why the capture ended before it was stopped.
    pub ended: Option<String>,
}

/// A running capture. If this is dropped the capture continues.
pub struct Recording {
    account: Arc<Account>,
    /// What the thread writes to.
    file: File,
    /// Closed when the thread ends.
    running: Receiver<Infallible>,
}

/// Starts the thread, which ends when its recorder is gone and everything is written. It calls `begin` first.
///
/// # Errors
/// The system's error: no thread or descriptor is left.
pub(super) fn start(
    file: File,
    account: Account,
    begin: impl FnOnce() + Send + 'static,
) -> io::Result<(Recording, Writer)> {
    let (account, writes) = (Arc::new(account), file.try_clone()?);
    let (filled, full) = sync_channel(BUFFERS);
    let (empty, emptied) = sync_channel(BUFFERS);
    let (ends, running) = channel();
    let shared = account.clone();
    std::thread::Builder::new().name("fairlane-capture".to_owned()).spawn(move || {
        begin();
        write(writes, &full, &empty, &shared);
        drop(ends);
    })?;
    Ok((Recording { account: account.clone(), file, running }, Writer { filled, emptied, account }))
}

/// The file and the account of a capture that another process left.
pub(super) fn left(Kept { bytes, files }: Kept) -> Option<(File, Account)> {
    let [file] = <[File; 1]>::try_from(files).ok()?;
    let (numbers, ended) = bytes.split_at_checked(NUMBERS * 8)?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| numbers[at * 8 + byte]));
    let account = Account::new(number(0).try_into().ok()?, number(1));
    account.seen.store(number(2), Relaxed);
    account.frames.store(number(3), Relaxed);
    account.bytes.store(number(4), Relaxed);
    if !ended.is_empty() {
        account.ended.set(str::from_utf8(ended).ok()?.to_owned()).ok()?;
    }
    Some((file, account))
}

fn write(mut file: File, full: &Receiver<Buffer>, empty: &SyncSender<Buffer>, account: &Account) {
    while let Ok(mut buffer) = full.recv() {
        if account.abandoned.load(Relaxed) {
            return;
        }
        if let Err(error) = file.write_all(&buffer.bytes) {
            // Half a record would make the file unreadable to some tools. Fails if it is not a regular file.
            let _ = file.set_len(account.bytes.load(Relaxed));
            // Fails if the limit was reached before, which is also right.
            let _ = account.ended.set(format!("its file cannot be written: {error}"));
            return;
        }
        account.bytes.fetch_add(buffer.bytes.len() as u64, Relaxed);
        account.frames.fetch_add(buffer.frames, Relaxed);
        buffer.bytes.clear();
        buffer.frames = 0;
        // Fails if the recorder is gone, which needs no buffer.
        let _ = empty.try_send(buffer);
    }
}

impl Recording {
    /// Waits until everything is written, but not beyond `until`: a file that blocks for so long is abandoned. Call it
    /// when the recorder is gone.
    pub fn end(self, until: Instant) -> Report {
        let left = until.saturating_duration_since(Instant::now());
        if self.running.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            self.abandon();
        }
        self.so_far()
    }

    /// Gives up a file that blocks.
    fn abandon(&self) {
        self.account.abandoned.store(true, Relaxed);
        // Fails if there is another reason already.
        let _ = self.account.ended.set("writing its file blocks".to_owned());
    }

    /// Leaves the capture to another process, which [goes on](super::go_on) with its file. Waits until everything is
    /// written, but not beyond `until`: a file that blocks for so long ends the capture. Call it while the recorder
    /// [rests](super::Captured::rest).
    ///
    /// # Errors
    /// The recorder is gone, with its port, or the system's error.
    pub fn leave(&self, until: Instant) -> io::Result<Keeper> {
        let Account { snap, limit, seen, whole, frames, bytes, ended, .. } = &*self.account;
        while bytes.load(Relaxed) != whole.load(Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            match self.running.recv_timeout(left.min(PAUSE)) {
                Err(RecvTimeoutError::Disconnected) if ended.get().is_none() => {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                // It cannot be written.
                Err(RecvTimeoutError::Disconnected) => break,
                _ => {
                    self.abandon();
                    break;
                }
            }
        }
        let numbers = [u64::from(*snap), *limit, seen.load(Relaxed), frames.load(Relaxed), bytes.load(Relaxed)];
        let mut record = numbers.map(u64::to_le_bytes).concat();
        record.extend(ended.get().map_or("", String::as_str).as_bytes());
        let keeper = Keeper::new()?;
        keeper.keep(&record, &[self.file.as_fd()])?;
        Ok(keeper)
    }

    /// Goes on after all: the process that was to has ended. What that one wrote, perhaps not in full, is no part of the
    /// file.
    pub fn take_back(&self) {
        if self.account.ended.get().is_none() {
            // Fails if it is not a regular file.
            let _ = self.file.set_len(self.account.bytes.load(Relaxed));
        }
    }

    /// The outcome so far. Frames that wait to be written count as left out.
    pub fn so_far(&self) -> Report {
        let Account { seen, frames, bytes, ended, .. } = &*self.account;
        let (frames, bytes) = (frames.load(Relaxed), bytes.load(Relaxed));
        Report { frames, bytes, left_out: seen.load(Relaxed).saturating_sub(frames), ended: ended.get().cloned() }
    }
}
