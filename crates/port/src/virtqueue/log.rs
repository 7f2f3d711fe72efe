//! The dirty log: a bit for each page of a guest's memory, from address 0 on, set by us when we wrote to the page and
//! cleared by the frontend when it copies it to where the guest moves (QEMU, docs/interop/vhost-user.rst, "Migration").
//!
//! A page is marked after it was written, and always, though its bit may be set: the frontend may be about to clear it and
//! to copy the page as it was before.

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
pub enum LogError {
    /// One that cannot be mapped.
    #[error("dirty log of {len} bytes at {offset} in its file: {why}")]
    Share {
        /// Bytes.
        len: u64,
        /// Where it is in its file.
        offset: u64,
        /// Why.
        why: ShareError,
    },
    /// One that has no bits for all that is to be logged.
    #[error("the dirty log has {len} bytes and {what} ends at {end:#x}: it must have {needed} at least")]
    Short {
        /// Bytes.
        len: u64,
        /// What is to be logged.
        what: &'static str,
        /// Where that ends.
        end: u64,
        /// Bytes that it takes.
        needed: u64,
    },
}

/// A frontend's log, mapped.
pub struct DirtyLog {
    bits: Shared,
    /// Bytes of it: eight pages each.
    len: u64,
    changed: AtomicBool,
}

impl DirtyLog {
    /// The log of `len` bytes at `offset` in a file. Any offset is right: bits are set byte by byte.
    ///
    /// # Errors
    /// It is empty or impossible, the file is too short for it, or what `mmap` says.
    pub fn new(file: &File, offset: u64, len: u64) -> Result<DirtyLog, LogError> {
        let bits = Shared::map(file, offset, len, 0, LOG_MOST);
        let bits = bits.map_err(|why| LogError::Share { len, offset, why })?;
        Ok(DirtyLog { bits, len, changed: AtomicBool::new(false) })
    }

    /// Sees that it has a bit for everything below the address `end`, which `what` ends at.
    ///
    /// # Errors
    /// It is too short.
    pub fn covers(&self, end: u64, what: &'static str) -> Result<(), LogError> {
        let needed = end.div_ceil(PAGE).div_ceil(8);
        if needed <= self.len {
            return Ok(());
        }
        Err(LogError::Short { len: self.len, what, end, needed })
    }

    /// Marks the pages of `len` bytes at a guest's address, which were written.
    pub fn mark(&self, address: u64, len: u64) {
        if len == 0 {
            return;
        }
        for page in address / PAGE..=address.saturating_add(len - 1) / PAGE {
            if page / 8 >= self.len {
                return;
            }
            // SAFETY: the byte is inside the mapping; others access it too, with operations of this kind.
            let byte = unsafe { AtomicU8::from_ptr(self.bits.start().add((page / 8) as usize)) };
            // Release: who finds the bit finds the page as it was written.
            byte.fetch_or(1 << (page % 8), Ordering::Release);
        }
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Whether anything was marked since this was asked last.
    pub fn changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// Whether the frontend took it away under us (truncated its file).
    #[inline]
    pub fn torn(&self) -> bool {
        self.bits.torn()
    }
}

/// Where the writes to a used ring are logged: at addresses from `start` on, which need not be where the ring is.
pub struct UsedLog {
    log: Arc<DirtyLog>,
    start: u64,
}

impl UsedLog {
    /// The used ring's first byte is logged at `start`, its last of `len` as far behind.
    ///
    /// # Errors
    /// The log ends before that.
    pub fn new(log: Arc<DirtyLog>, start: u64, len: u64) -> Result<UsedLog, LogError> {
        log.covers(start.saturating_add(len), "a used ring")?;
        Ok(UsedLog { log, start })
    }

    /// Marks `len` bytes at `offset` in the ring.
    pub fn mark(&self, offset: usize, len: usize) {
        self.log.mark(self.start + offset as u64, len as u64);
    }
}
