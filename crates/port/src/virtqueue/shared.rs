//! A part of a file that a frontend shares: mapped, and guarded against truncation.

use super::budget::{ALL, Exhausted, Reservation};
use super::guard::Guard;
use crate::descriptor;
use crate::map::Map;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};
use std::fs::File;
use std::io;
use thiserror::Error;

/// Why a part of a file cannot be mapped. Displayed as the end of a sentence that begins with its purpose.
#[derive(Debug, Error)]
pub(crate) enum ShareError {
    /// An empty range, or one that overflows.
    #[error("it is empty or ends past the end of its address space")]
    Range,
    /// A file that cannot be inspected.
    #[error("its file: {0}")]
    File(io::Error),
    /// A descriptor without bytes to map.
    #[error("its descriptor is not a regular file")]
    NoFile,
    /// A file that ends before the part does.
    #[error("its file has {has} bytes and it ends at {end}")]
    Short {
        /// Bytes of the file.
        has: u64,
        /// End of the part.
        end: u64,
    },
    /// More than a process can address.
    #[error("it is larger than this machine's address space")]
    TooLarge,
    /// More than a guest may map, in GiB.
    #[error("with it more than {0} GiB of files would be mapped for a guest, which is the most")]
    Most(u64),
    /// More than all guests may map.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// The system's error.
    #[error("mmap: {0}")]
    Map(io::Error),
}

/// A mapped part of a frontend's file.
pub(super) struct Shared {
    /// The part's first byte in this process.
    start: *mut u8,
    /// Declared before `_map` to be dropped first: it must not outlive the range.
    guard: Guard,
    _map: Map,
    reservation: Reservation,
}

// SAFETY: the pointer is to memory that this value owns and that any thread may use.
unsafe impl Send for Shared {}
// SAFETY: nothing here is written through a shared reference; users of the bytes are responsible for their accesses.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `len` bytes of a file from `offset` on, for an owner that has `held` bytes of this kind mapped and may map
    /// `most`.
    ///
    /// # Errors
    /// It is empty or impossible, the file is too short for it, or `mmap` failed.
    pub(super) fn map(file: &File, offset: u64, len: u64, held: u64, most: u64) -> Result<Shared, ShareError> {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return Err(ShareError::Range);
        };
        // Checked before anything else, as only a regular file's size may be queried safely.
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
        let reservation = ALL.take(mapped as u64, held)?;
        // The file is mapped from its start, as an offset need not be a multiple of the (huge) page size.
        let map = Map::of(file, mapped).map_err(ShareError::Map)?;
        let guard = Guard::over(map.start() as usize, mapped);
        // SAFETY: `offset` is below `mapped`, so the sum stays inside the mapping.
        let start = unsafe { map.start().add(offset as usize) };
        Ok(Shared { start, guard, _map: map, reservation })
    }

    /// Anonymous memory.
    #[cfg(test)]
    pub(super) fn anonymous(len: usize) -> Shared {
        let (map, reservation) = (Map::anonymous(len), ALL.take(len as u64, 0).unwrap());
        let guard = Guard::over(map.start() as usize, len);
        Shared { start: map.start(), guard, _map: map, reservation }
    }

    /// The part's first byte. All of the part is readable and writable while `self` lives, whatever becomes of the
    /// file.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes mapped, including those before the part in its file and the rest of the last page.
    pub(super) fn mapped(&self) -> u64 {
        self.reservation.bytes()
    }

    /// Whether the frontend truncated the file. Reads return zeros from then on.
    #[inline]
    pub(super) fn torn(&self) -> bool {
        self.guard.torn()
    }
}

/// The page size of a mapping of this file. A mapping of huge pages can be replaced or unmapped only in multiples of
/// it.
fn page_of(file: &File) -> usize {
    match fstatfs(file) {
        Ok(system) if system.filesystem_type() == HUGETLBFS_MAGIC => usize::try_from(system.block_size()).unwrap_or(1),
        _ => 1,
    }
}
