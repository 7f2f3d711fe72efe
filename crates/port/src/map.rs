//! A file's bytes in this process's memory, shared with whoever else maps it; or a socket's, shared with the kernel.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A mapped file, unmapped when dropped.
pub(crate) struct Map {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: the address of a mapping means the same in every thread; what is done with its bytes is the owner's affair.
unsafe impl Send for Map {}

impl Map {
    /// Maps the first `len` bytes of a file.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn of(file: impl AsFd, len: usize) -> io::Result<Map> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_fd().as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Guests' memory and frames are no business of whoever reads a core dump.
        // SAFETY: the mapping is the one just made, and this changes nothing that a program sees.
        unsafe { libc::madvise(start, len, libc::MADV_DONTDUMP) };
        Ok(Map { start, len })
    }

    /// Memory of no file.
    #[cfg(test)]
    pub fn anonymous(len: usize) -> Map {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: as above.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Map { start, len }
    }

    /// The first byte, at the start of a page. Valid while `self` lives.
    pub fn start(&self) -> *mut u8 {
        self.start.cast()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: these are what `mmap` returned and was given; nothing uses the mapping any more, as who keeps pointers into
        // it keeps `self` as well.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
