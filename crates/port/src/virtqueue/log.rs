//! The dirty log: a bit for each page of a guest's memory, from address 0 on. We set it when we write to the page; the
//! frontend clears it when it copies the page to the guest's destination (QEMU, docs/interop/vhost-user.rst,
//! "Migration").
//!
//! A page is marked after it was written, even if its bit is set already: the frontend may be about to clear it and
//! copy the page's old contents.

use super::budget::LOG_MOST;
use super::shared::{ShareError, Shared};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use thiserror::Error;

/// VHOST_LOG_PAGE
const PAGE: u64 = 4096;

/// A log that cannot be used.
#[derive(Debug, Error)]
pub(crate) enum LogError {
    /// It cannot be mapped.
    #[error("dirty log of {len} bytes at {offset} in its file: {why}")]
    Share {
        /// Bytes.
        len: u64,
        /// Offset in its file.
        offset: u64,
        /// The reason.
        why: ShareError,
    },
    /// It has too few bits for what is to be logged.
    #[error("the dirty log has {len} bytes and {what} ends at {end:#x}: it must have {needed} at least")]
    Short {
        /// Bytes.
        len: u64,
        /// What is to be logged.
        what: &'static str,
        /// The end address of that.
        end: u64,
        /// Bytes needed.
        needed: u64,
    },
}

/// A frontend's dirty log, mapped.
pub(crate) struct DirtyLog {
    bits: Shared,
    file: File,
    offset: u64,
    /// Bytes of it: eight pages each.
    len: u64,
    changed: AtomicBool,
}

impl DirtyLog {
    /// Maps the log of `len` bytes at `offset` in a file. The offset needs no alignment: bits are set byte by byte.
    ///
    /// # Errors
    /// It is empty or impossible, the file is too short for it, or `mmap` failed.
    pub(crate) fn new(file: File, offset: u64, len: u64) -> Result<DirtyLog, LogError> {
        let bits = Shared::map(&file, offset, len, 0, LOG_MOST);
        let bits = bits.map_err(|why| LogError::Share { len, offset, why })?;
        Ok(DirtyLog { bits, file, offset, len, changed: AtomicBool::new(false) })
    }

    /// Unmaps it. Returns its file, as [`GuestMemory::remove`](super::memory::GuestMemory::remove) does.
    pub(crate) fn unmap(self) -> File {
        self.file
    }

    /// The file, and where the log is in it: offset and bytes.
    pub(crate) fn place(&self) -> (&File, u64, u64) {
        (&self.file, self.offset, self.len)
    }

    /// Checks that it has a bit for every page below the address `end`, which is the end of `what`.
    ///
    /// # Errors
    /// It is too short.
    pub(crate) fn covers(&self, end: u64, what: &'static str) -> Result<(), LogError> {
        let needed = end.div_ceil(PAGE).div_ceil(8);
        if needed <= self.len {
            return Ok(());
        }
        Err(LogError::Short { len: self.len, what, end, needed })
    }

    /// Marks the pages of `len` bytes at a guest's address, after they were written.
    pub(crate) fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        for page in address / PAGE..=address.saturating_add(len - 1) / PAGE {
            if page / 8 >= self.len {
                return;
            }
            // SAFETY: the byte is inside the mapping; other accesses to it are atomic too.
            let byte = unsafe { AtomicU8::from_ptr(self.bits.start().add((page / 8) as usize)) };
            // Release: a reader that sees the bit sees the page as it was written.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Whether anything was marked since the last call.
    pub(crate) fn changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// Whether the frontend truncated the file.
    #[inline]
    pub(crate) fn torn(&self) -> bool {
        self.bits.torn()
    }
}

/// Logs writes to a part of a ring, at addresses from `start` on, which may differ from the part's own.
pub(crate) struct UsedLog {
    log: Arc<DirtyLog>,
    start: u64,
}

impl UsedLog {
    /// Logs the device area's first byte at `start`, and the other `len - 1` bytes after it.
    ///
    /// # Errors
    /// The log is too short.
    pub(crate) fn new(log: Arc<DirtyLog>, start: u64, len: u64) -> Result<UsedLog, LogError> {
        log.covers(start.saturating_add(len), "a used ring")?;
        Ok(UsedLog { log, start })
    }

    /// A log of another part at a guest's address.
    pub(super) fn elsewhere(&self, start: u64) -> UsedLog {
        UsedLog { log: self.log.clone(), start }
    }

    /// Marks `len` bytes at `offset` in the part.
    pub(crate) fn mark(&self, offset: usize, len: usize) {
        self.log.mark(self.start + offset as u64, len as u64);
    }
}
