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
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd().as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Guests' memory and frames do not belong in a core dump.
        // SAFETY: the mapping is the one just made, and this changes nothing that a program sees.
        unsafe { libc::madvise(start, len, libc::MADV_DONTDUMP) };
        Ok(Map { start, len })
    }

    /// Anonymous memory.
    #[cfg(test)]
    pub(crate) fn anonymous(len: usize) -> Map {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: as above.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Map { start, len }
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
