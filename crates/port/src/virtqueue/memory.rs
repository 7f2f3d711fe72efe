//! A guest's memory as its frontend shares it: mapped files, and the translation of a guest's addresses.
//!
//! All of it may change at any moment. So it is accessed only through raw pointers that were checked against a region,
//! never as a Rust slice, and every value that a decision rests on is read once.

use super::budget::GUEST_MOST;
use super::log::DirtyLog;
use super::shared::{ShareError, Shared};
use super::violation::Violation;
use std::fs::File;
use thiserror::Error;

/// The most regions of one guest: what virtio-user and QEMU use, with room for hot-plug.
pub(crate) const MAX_REGIONS: usize = 32;

/// A region of guest memory, as vhost-user describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The guest's physical address of the first byte.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// The frontend's own address of the first byte.
    pub user: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
}

/// A region that cannot be mapped.
#[derive(Debug, Error)]
#[error("memory region at {guest:#x} of {len:#x} bytes: {why}")]
pub(crate) struct RegionError {
    /// The guest's address.
    guest: u64,
    /// Bytes.
    len: u64,
    /// The reason.
    why: Reason,
}

/// What is wrong with a region.
#[derive(Debug, Error)]
enum Reason {
    /// There are too many.
    #[error("there are {MAX_REGIONS} regions already, which is the most")]
    Full,
    /// It overlaps another.
    #[error("it overlaps another region")]
    Overlap,
    /// It cannot be mapped.
    #[error(transparent)]
    Share(#[from] ShareError),
}

struct Mapping {
    region: Region,
    bytes: Shared,
    /// None of anonymous memory.
    file: Option<File>,
}

/// All of a guest's memory that its frontend shared.
#[derive(Default)]
pub(crate) struct GuestMemory {
    mappings: Vec<Mapping>,
}

impl GuestMemory {
    /// Maps one more region.
    ///
    /// # Errors
    /// Too many regions, an impossible or overlapping one, a file too short for it, or `mmap` failed.
    pub(crate) fn add(&mut self, region: Region, file: File) -> Result<(), RegionError> {
        let bytes = self.map(region, &file);
        let bytes = bytes.map_err(|why| RegionError { guest: region.guest, len: region.len, why })?;
        self.mappings.push(Mapping { region, bytes, file: Some(file) });
        Ok(())
    }

    /// All regions, and their files.
    pub(crate) fn regions(&self) -> impl Iterator<Item = (Region, &File)> {
        self.mappings.iter().filter_map(|mapping| Some((mapping.region, mapping.file.as_ref()?)))
    }

    /// Maps the bytes of a region if it may be added.
    fn map(&self, region: Region, file: &File) -> Result<Shared, Reason> {
        if self.mappings.len() == MAX_REGIONS {
            return Err(Reason::Full);
        }
        let ends = [region.guest, region.user].map(|start| start.checked_add(region.len));
        let [Some(_), Some(_)] = ends else { return Err(ShareError::Range.into()) };
        let overlaps = |other: &Mapping| {
            let apart = |a: u64, b: u64| a + region.len <= b || b + other.region.len <= a;
            !apart(region.guest, other.region.guest)
        };
        if self.mappings.iter().any(overlaps) {
            return Err(Reason::Overlap);
        }
        let held = self.mappings.iter().map(|other| other.bytes.mapped()).sum();
        Ok(Shared::map(file, region.offset, region.len, held, GUEST_MOST)?)
    }

    /// Adds anonymous memory at these addresses and returns where it is mapped.
    #[cfg(test)]
    pub(crate) fn add_anonymous(&mut self, region: Region) -> *mut u8 {
        let bytes = Shared::anonymous(region.len as usize);
        let start = bytes.start();
        self.mappings.push(Mapping { region, bytes, file: None });
        start
    }

    /// Unmaps regions. Returns their files: the last one to close such a file frees its memory, which takes long.
    pub(crate) fn remove(&mut self, which: impl Fn(Region) -> bool) -> Vec<File> {
        self.mappings.extract_if(.., |mapping| which(mapping.region)).filter_map(|mapping| mapping.file).collect()
    }

    /// Whether the frontend truncated a file of the memory. Reads return zeros from then on.
    #[inline]
    pub(crate) fn torn(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.bytes.torn())
    }

    /// Where a guest's physical address is mapped, and how many of the `len` bytes lie there contiguously.
    ///
    /// `None` if the address is in no region. The pointer is valid for that many bytes while `self` is borrowed.
    #[inline]
    pub(crate) fn guest(&self, address: u64, len: u32) -> Option<(*mut u8, u32)> {
        for mapping in &self.mappings {
            let offset = address.wrapping_sub(mapping.region.guest);
            if offset < mapping.region.len {
                let left = (mapping.region.len - offset).min(u64::from(len)) as u32;
                // SAFETY: `offset` is inside the mapping.
                return Some((unsafe { mapping.bytes.start().add(offset as usize) }, left));
            }
        }
        None
    }

    /// Where `len` bytes at a frontend's address are mapped, if one region holds them all.
    pub(crate) fn user(&self, address: u64, len: u64) -> Option<*mut u8> {
        self.mappings.iter().find_map(|mapping| {
            let offset = address.wrapping_sub(mapping.region.user);
            let fits = offset < mapping.region.len && len <= mapping.region.len - offset;
            // SAFETY: `offset` is inside the mapping.
            fits.then(|| unsafe { mapping.bytes.start().add(offset as usize) })
        })
    }

    /// Where a part of a ring is mapped.
    ///
    /// # Errors
    /// No region holds it all, or it is not aligned.
    pub(super) fn part(&self, part: &'static str, address: u64, len: u64, align: usize) -> Result<*mut u8, Violation> {
        let start = self.user(address, len).ok_or(Violation::RingPlace { part, address })?;
        if start.align_offset(align) == 0 { Ok(start) } else { Err(Violation::RingAlignment { part, address }) }
    }

    /// The guest's address of what is at a frontend's address.
    pub(super) fn guest_of(&self, address: u64) -> Option<u64> {
        self.mappings.iter().find_map(|Mapping { region, .. }| {
            let offset = address.wrapping_sub(region.user);
            (offset < region.len).then(|| region.guest + offset)
        })
    }

    /// The first guest address after all regions.
    pub(crate) fn end(&self) -> u64 {
        self.mappings.iter().map(|mapping| mapping.region.guest + mapping.region.len).max().unwrap_or(0)
    }

    /// Marks `len` bytes at a pointer that [`GuestMemory::guest`] returned, after they were written.
    pub(crate) fn mark(&self, log: &DirtyLog, start: *const u8, len: u32) {
        for mapping in &self.mappings {
            let offset = (start as u64).wrapping_sub(mapping.bytes.start() as u64);
            if offset < mapping.region.len {
                return log.mark(mapping.region.guest + offset, len.into());
            }
        }
    }
}
