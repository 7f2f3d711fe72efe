//! The worker's side of a capture: records of frames, in buffers that go to the writer and come back. It never blocks.

use super::exchange::{BUFFER, BUFFERS, Buffer, Writer};
use crate::Frame;
use fairlane_core::time::{Nanos, SECOND};
use fairlane_policy::units::format_size;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

/// Collected records are written after this long at the latest, so that the file can be watched.
const FLUSH_INTERVAL: Nanos = Nanos::from_millis(200);

/// Records the frames that pass through a port.
pub struct Recorder {
    writer: Writer,
    buffer: Buffer,
    buffers: usize,
    /// The size of the file once everything is written.
    bytes: u64,
    /// Wall-clock time at the port's time zero, in nanoseconds, known from the first frame on.
    epoch: Option<u64>,
    /// Frames that passed.
    seen: u64,
    /// When a buffer was last handed over because of [`FLUSH_INTERVAL`].
    refreshed: Nanos,
}

impl Recorder {
    /// Begins a file.
    pub(super) fn new(writer: Writer) -> Recorder {
        let mut recorder = Recorder::go_on(writer);
        let header = &mut recorder.buffer.bytes;
        header.extend(0xa1b2_3c4d_u32.to_le_bytes());
        header.extend([2, 0, 4, 0]); // Version 2.4.
        header.extend([0; 8]); // Times are UTC.
        header.extend(recorder.writer.account.snap.to_le_bytes());
        header.extend(1u32.to_le_bytes()); // LINKTYPE_ETHERNET.
        recorder.bytes = header.len() as u64;
        recorder
    }

    /// Goes on with a file.
    pub(super) fn go_on(writer: Writer) -> Recorder {
        let (bytes, seen) = (writer.account.bytes.load(Relaxed), writer.account.seen.load(Relaxed));
        let (buffer, buffers, refreshed) = (Buffer::new(), 1, Nanos(0));
        Recorder { writer, buffer, buffers, bytes, epoch: None, seen, refreshed }
    }

    /// Whether the capture has not ended by itself.
    pub(super) fn is_running(&self) -> bool {
        self.writer.account.ended.get().is_none()
    }

    /// Appends a frame's record.
    pub(super) fn record(&mut self, frame: &Frame<'_>, now: Nanos, out: &mut Vec<u8>) {
        let epoch = *self.epoch.get_or_insert_with(|| {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            (wall.as_nanos() as u64).saturating_sub(now.0)
        });
        let time = epoch.saturating_add(now.0);
        let stored = frame.bytes().min(u64::from(self.writer.account.snap)) as usize;
        for word in [(time / SECOND) as u32, (time % SECOND) as u32, stored as u32, frame.bytes() as u32] {
            out.extend(word.to_le_bytes());
        }
        let start = out.len();
        frame.read(out);
        out.truncate(start + stored);
    }

    /// Adds a frame's record if there is room for it. At the file's limit the capture ends.
    pub(super) fn add(&mut self, record: &[u8]) {
        if !self.is_running() {
            return;
        }
        let limit = self.writer.account.limit;
        if self.bytes + record.len() as u64 > limit {
            let why = format!("its file reached the limit of {}", format_size(limit));
            // Fails only if the writer set another reason.
            let _ = self.writer.account.ended.set(why);
            return;
        }
        self.seen += 1;
        self.writer.account.seen.store(self.seen, Relaxed);
        if self.buffer.bytes.len() + record.len() <= BUFFER || self.hand_over() {
            self.buffer.bytes.extend_from_slice(record);
            self.buffer.frames += 1;
            self.bytes += record.len() as u64;
        }
    }

    /// Hands collected records over from time to time.
    pub(super) fn refresh(&mut self, now: Nanos) {
        if now.since(self.refreshed) >= FLUSH_INTERVAL {
            self.refreshed = now;
            if !self.buffer.bytes.is_empty() {
                self.hand_over();
            }
        }
    }

    /// Hands all collected records over, as far as the writer keeps up, and says how large the file is with them.
    pub(super) fn rest(&mut self) {
        self.hand_over();
        self.writer.account.whole.store(self.bytes, Relaxed);
    }

    /// Hands the buffer to the writer, if there is another one to continue with.
    fn hand_over(&mut self) -> bool {
        let next = match self.writer.emptied.try_recv() {
            Ok(buffer) => buffer,
            Err(_) if self.buffers < BUFFERS => {
                self.buffers += 1;
                Buffer::new()
            }
            Err(_) => return false,
        };
        // The channel has room for all buffers. A writer that has ended has set the reason.
        let _ = self.writer.filled.try_send(std::mem::replace(&mut self.buffer, next));
        true
    }
}

/// Writes collected records even if nobody stops the capture, because the port was removed.
impl Drop for Recorder {
    fn drop(&mut self) {
        let last = Buffer { bytes: std::mem::take(&mut self.buffer.bytes), frames: self.buffer.frames };
        // As above.
        let _ = self.writer.filled.try_send(last);
    }
}
