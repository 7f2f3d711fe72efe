//! The state shared by the worker's side and the file's side of a capture: buffers and counters.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock};

/// Bytes collected before they are written.
pub(super) const BUFFER: usize = 256 * 1024;

/// The most buffers of a capture: 16 MiB, what passes in 13 ms at 10 Gbit/s. They are allocated when needed.
pub(super) const BUFFERS: usize = 64;

/// Whole records.
pub(super) struct Buffer {
    pub bytes: Vec<u8>,
    /// How many.
    pub frames: u64,
}

impl Buffer {
    /// An empty buffer.
    pub(super) fn new() -> Buffer {
        Buffer { bytes: Vec::with_capacity(BUFFER), frames: 0 }
    }
}

/// The channels to and from the writer.
pub(super) struct Writer {
    pub filled: SyncSender<Buffer>,
    pub emptied: Receiver<Buffer>,
    pub account: Arc<Account>,
}

/// Settings, counters and state that worker and writer share.
#[derive(Default)]
pub(super) struct Account {
    /// Most bytes of a frame in the file, and most bytes of the file.
    pub snap: u32,
    pub limit: u64,
    /// Frames that passed during the capture.
    pub seen: AtomicU64,
    /// Bytes of the file once everything is written, if the recorder rests; before, more than any file has.
    pub whole: AtomicU64,
    /// Frames and bytes in the file.
    pub frames: AtomicU64,
    pub bytes: AtomicU64,
    /// Why the capture ended by itself.
    pub ended: OnceLock<String>,
    /// Whether nobody waits for the rest to be written any more.
    pub abandoned: AtomicBool,
}

impl Account {
    /// That of a capture with these settings.
    pub(super) fn new(snap: u32, limit: u64) -> Account {
        Account { snap, limit, whole: AtomicU64::new(u64::MAX), ..Account::default() }
    }
}
