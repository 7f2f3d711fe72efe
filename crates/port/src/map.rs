//! A file mapped into this process, shared with other processes that map it; or a socket's ring, shared with the
//! kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A mapped file, unmapped when dropped.
pub(crate) struct Map {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: the address of a mapping means the same in every thread; the owner is responsible for the use of its bytes.
unsafe impl Send for Map {}

impl Map {
    /// Maps the first `len` bytes of a file.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn of(file: impl AsFd, len: usize) -> io::Result<Map> {
        Map::at(file, 0, len)
    }

    /// Maps `len` bytes of a file from `offset` on. A socket's offsets name its rings.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn at(file: impl AsFd, offset: libc::off_t, len: usize) -> io::Result<Map> {
        Map::new(libc::MAP_SHARED | libc::MAP_NORESERVE, file.as_fd().as_raw_fd(), offset, len)
    }

    fn new(flags: libc::c_int, file: libc::c_int, offset: libc::off_t, len: usize) -> io::Result<Map> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Guests' memory and frames do not belong in a core dump.
        // SAFETY: the mapping is the one just made, and this changes nothing that a program sees.
        unsafe { libc::madvise(start, len, libc::MADV_DONTDUMP) };
        Ok(Map { start, len })
    }

    /// Memory of this process alone, filled with zeros, for tests.
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> Map {
        Map::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0, len).unwrap()
    }

    /// The first byte, at the start of a page. Valid while `self` lives.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.cast()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: these are the values that `mmap` returned and was given. Nothing uses the mapping any more: an owner
        // of pointers into it also owns `self`.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
