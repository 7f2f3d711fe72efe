//! A part of a file that a frontend shares: mapped, and guarded against being truncated.

use super::budget::{ALL, Exhausted, Part};
use super::guard::Guard;
use crate::descriptor;
use crate::map::Map;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use std::fs::File;
use std::io;
use thiserror::Error;

/// Why a part of a file cannot be mapped. The end of a sentence, which begins with what it is for.
#[derive(Debug, Error)]
pub enum ShareError {
    /// A range that cannot be.
    #[error("it is empty or ends past the end of its address space")]
    Range,
    /// What cannot be asked.
    #[error("its file: {0}")]
    File(io::Error),
    /// What has no bytes to be mapped.
    #[error("its descriptor is no file's")]
    NoFile,
    /// A file that ends before the part does.
    #[error("its file has {has} bytes and it ends at {end}")]
    Short {
        /// Bytes of the file.
        has: u64,
        /// Where the part ends.
        end: u64,
    },
    /// More than a process can address.
    #[error("it is larger than this machine's address space")]
    TooLarge,
    /// More than a guest may have mapped, in GiB.
    #[error("with it more than {0} GiB of files would be mapped for a guest, which is the most")]
    Most(u64),
    /// More than all guests may.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// What the system says.
    #[error("mmap: {0}")]
    Map(io::Error),
}

/// A mapped part of a frontend's file.
pub struct Shared {
    /// The part's first byte in this process.
    start: *mut u8,
    /// Dropped before `_map`, as it must not outlive the range.
    guard: Guard,
    _map: Map,
    part: Part,
}

// SAFETY: the pointer is to memory that this value owns and that any thread may use.
unsafe impl Send for Shared {}
// SAFETY: nothing here is written through a shared reference; what is done with the bytes is the affair of who asks for them.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `len` bytes of a file from `offset` on, for an owner who has `held` bytes mapped of this kind and may have `most`.
    ///
    /// # Errors
    /// It is empty or impossible, the file is too short for it, or what `mmap` says.
    pub fn map(file: &File, offset: u64, len: u64, held: u64, most: u64) -> Result<Shared, ShareError> {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return Err(ShareError::Range);
        };
        // Asked first, as the file system of what is no file is not known.
        if descriptor::kind(file).map_err(ShareError::File)? != libc::S_IFREG {
            return Err(ShareError::NoFile);
        }
        let has = file.metadata().map_err(ShareError::File)?.len();
        if has < end {
            return Err(ShareError::Short { has, end });
        }
        let mapped = usize::try_from(end).ok().and_then(|end| end.checked_next_multiple_of(page_of(file)));
        let mapped = mapped.ok_or(ShareError::TooLarge)?;
        if mapped as u64 > most - held {
            return Err(ShareError::Most(most >> 30));
        }
        let part = ALL.take(mapped as u64, held)?;
        // The whole file from its start, as an offset need not be a multiple of the (huge) page size.
        let map = Map::of(file, mapped).map_err(ShareError::Map)?;
        let guard = Guard::over(map.start() as usize, mapped);
        // SAFETY: `offset` is below `mapped`, so the sum stays inside the mapping.
        let start = unsafe { map.start().add(offset as usize) };
        Ok(Shared { start, guard, _map: map, part })
    }

    /// Memory of no file.
    #[cfg(test)]
    pub fn anonymous(len: usize) -> Shared {
        let (map, part) = (Map::anonymous(len), ALL.take(len as u64, 0).unwrap());
        let guard = Guard::over(map.start() as usize, len);
        Shared { start: map.start(), guard, _map: map, part }
    }

    /// The part's first byte. As many as were mapped are readable and writable while `self` lives, whatever becomes of the file.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes that are mapped for it: those in front of the part in its file as well, and the rest of the last page.
    pub fn mapped(&self) -> u64 {
        self.part.bytes()
    }

    /// Whether the frontend took bytes away under us (truncated the file); what is read since is zeros.
    #[inline]
    pub fn torn(&self) -> bool {
        self.guard.torn()
    }
}

/// Bytes of a page of a mapping of this file. A mapping of huge pages cannot be replaced or unmapped in parts of one.
fn page_of(file: &File) -> usize {
    match fstatfs(file) {
        Ok(system) if system.filesystem_type() == HUGETLBFS_MAGIC => usize::try_from(system.block_size()).unwrap_or(1),
        _ => 1,
    }
}
