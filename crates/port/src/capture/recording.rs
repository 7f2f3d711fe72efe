//! The file's side of a capture: a thread that writes, and an account of what came of it.

use super::exchange::{Account, BUFFERS, Buffer, Writer};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Instant;

/// What a capture came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Frames written.
    pub frames: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Frames that passed and are not in the file, up to the end of the capture.
    pub left_out: u64,
    /// Why the capture ended before it was stopped.
    pub ended: Option<String>,
}

/// A capture, to be asked what came of it. Where it is dropped the capture goes on.
pub struct Recording {
    account: Arc<Account>,
    /// Closed once the thread has ended.
    running: Receiver<Infallible>,
}

/// Starts the thread, which ends when its recorder is gone and all is written.
///
/// # Errors
/// What the system says: no thread is left.
pub(super) fn start(file: File) -> io::Result<(Recording, Writer)> {
    let account = Arc::new(Account::default());
    let (filled, full) = sync_channel(BUFFERS);
    let (empty, emptied) = sync_channel(BUFFERS);
    let (ends, running) = channel();
    let known = account.clone();
    std::thread::Builder::new().name("fairlane-capture".to_owned()).spawn(move || {
        write(file, &full, &empty, &known);
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
            // Half a record would make the whole file unreadable to some. What is no ordinary file stays as it is.
            let _ = file.set_len(account.bytes.load(Relaxed));
            // It fails where the limit was reached before, which is as true.
            let _ = account.ended.set(format!("its file cannot be written: {error}"));
            return;
        }
        account.bytes.fetch_add(buffer.bytes.len() as u64, Relaxed);
        account.frames.fetch_add(buffer.frames, Relaxed);
        buffer.bytes.clear();
        buffer.frames = 0;
        // Where the recorder is gone nobody needs it.
        let _ = empty.try_send(buffer);
    }
}

impl Recording {
    /// Waits, once the recorder is gone, until all is written, but not beyond `until`: a file that takes nothing for so long is given
    /// up.
    pub fn end(self, until: Instant) -> Report {
        let left = until.saturating_duration_since(Instant::now());
        if self.running.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            self.account.abandoned.store(true, Relaxed);
            // Another reason came first.
            let _ = self.account.ended.set("its file takes no more".to_owned());
        }
        let Account { seen, frames, bytes, ended, .. } = &*self.account;
        let (frames, bytes) = (frames.load(Relaxed), bytes.load(Relaxed));
        Report { frames, bytes, left_out: seen.load(Relaxed).saturating_sub(frames), ended: ended.get().cloned() }
    }
}
