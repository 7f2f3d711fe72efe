//! The file's side of a capture: a thread that writes, and a report of the outcome.

use super::exchange::{Account, BUFFERS, Buffer, Writer};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Instant;

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
    /// Closed when the thread ends.
    running: Receiver<Infallible>,
}

/// Starts the thread, which ends when its recorder is gone and everything is written.
///
/// # Errors
/// The system's error: no thread is left.
pub(super) fn start(file: File) -> io::Result<(Recording, Writer)> {
    let account = Arc::new(Account::default());
    let (filled, full) = sync_channel(BUFFERS);
    let (empty, emptied) = sync_channel(BUFFERS);
    let (ends, running) = channel();
    let shared = account.clone();
    std::thread::Builder::new().name("fairlane-capture".to_owned()).spawn(move || {
        write(file, &full, &empty, &shared);
        drop(ends);
    })?;
    Ok((Recording { account: account.clone(), running }, Writer { filled, emptied, account }))
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
            self.account.abandoned.store(true, Relaxed);
            // Fails if there is another reason already.
            let _ = self.account.ended.set("writing its file blocks".to_owned());
        }
        self.so_far()
    }

    /// The outcome so far. Frames that wait to be written count as left out.
    pub fn so_far(&self) -> Report {
        let Account { seen, frames, bytes, ended, .. } = &*self.account;
        let (frames, bytes) = (frames.load(Relaxed), bytes.load(Relaxed));
        Report { frames, bytes, left_out: seen.load(Relaxed).saturating_sub(frames), ended: ended.get().cloned() }
    }
}
