//! Pages that this domain grants, through /dev/xen/gntalloc (linux/include/uapi/xen/gntalloc.h).

use super::host::PAGE;
use super::ioctl::request;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

const DEVICE: &str = "/dev/xen/gntalloc";

/// Pages granted in one call.
const PAGES_A_CALL: usize = 32;

/// GNTALLOC_FLAG_WRITABLE
const WRITABLE: u16 = 1;

/// `struct ioctl_gntalloc_alloc_gref` with space for one call's references.
#[repr(C)]
struct Allocate {
    domain: u16,
    flags: u16,
    count: u32,
    /// Results: where in the device the pages are mapped, and their references.
    index: u64,
    references: [u32; PAGES_A_CALL],
}

/// The size in the request's number: that of a structure with one reference, with padding.
const ALLOCATE: libc::Ioctl = request::<[u64; 3]>(b'G', 5);

/// Contiguous pages of this process, granted until they are dropped.
pub struct Pages {
    start: *mut libc::c_void,
    references: Vec<u32>,
    /// Closing it revokes the grants of pages that are no longer mapped.
    _device: File,
}

// SAFETY: the mapping may be ended from any thread.
unsafe impl Send for Pages {}

impl Pages {
    /// Grants `count` new pages to a domain, for reading, or also for writing.
    ///
    /// # Errors
    /// The system's error: there is no such device, or its limit (the module's `limit`, 1024 pages) is reached.
    pub fn grant(domain: u16, writable: bool, count: usize) -> io::Result<Pages> {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        let flags = if writable { WRITABLE } else { 0 };
        let mut references = Vec::with_capacity(count);
        let mut first = None;
        while references.len() < count {
            let here = (count - references.len()).min(PAGES_A_CALL);
            let mut allocate = Allocate { domain, flags, count: here as u32, index: 0, references: [0; PAGES_A_CALL] };
            // SAFETY: the structure is alive and has space for as many references as it asks for.
            if unsafe { libc::ioctl(device.as_raw_fd(), ALLOCATE, &mut allocate) } < 0 {
                return Err(io::Error::last_os_error());
            }
            first.get_or_insert(allocate.index);
            references.extend_from_slice(&allocate.references[..here]);
        }
        let (len, at) = (count * PAGE, first.unwrap_or(0) as libc::off_t);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours. All grants of one
        // opened device are contiguous in it.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, device.as_raw_fd(), at) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Pages { start, references, _device: device })
    }

    /// The first byte. [`PAGE`] bytes for each page are readable and writable until this is dropped.
    pub fn start(&self) -> *mut u8 {
        self.start.cast()
    }

    /// One reference for each page.
    pub fn references(&self) -> &[u32] {
        &self.references
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` returned, and nobody uses the pages after this value.
        unsafe { libc::munmap(self.start, self.references.len() * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by a C compiler with xen/gntalloc.h.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
        assert_eq!(ALLOCATE, 0x18_4705);
        assert_eq!(std::mem::offset_of!(Allocate, references), 16);
    }
}
