//! What the worker's side and the file's side of a capture share: buffers that go to and fro, and an account.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock};

/// Bytes collected before they are written.
pub const BUFFER: usize = 256 * 1024;

/// How many buffers a capture may have: 16 MiB, what passes in 13 ms at 10 Gbit/s. They are made when they are needed.
pub const BUFFERS: usize = 64;

/// Whole records.
pub struct Buffer {
    pub bytes: Vec<u8>,
    /// How many.
    pub frames: u64,
}

impl Buffer {
    /// An empty one.
    pub fn new() -> Buffer {
        Buffer { bytes: Vec::with_capacity(BUFFER), frames: 0 }
    }
}

/// The way to the writer.
pub struct Writer {
    pub filled: SyncSender<Buffer>,
    pub emptied: Receiver<Buffer>,
    pub account: Arc<Account>,
}

/// What worker and writer know of a capture.
#[derive(Default)]
pub struct Account {
    /// Frames that passed while it ran.
    pub seen: AtomicU64,
    /// Frames and bytes in the file.
    pub frames: AtomicU64,
    pub bytes: AtomicU64,
    /// Why it ended by itself.
    pub ended: OnceLock<String>,
    /// Whether nobody waits for the rest to be written any more.
    pub abandoned: AtomicBool,
}
