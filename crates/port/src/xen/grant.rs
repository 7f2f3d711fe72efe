//! Granted memory through /dev/xen/gntdev (linux/include/uapi/xen/gntdev.h).

use super::error::Unavailable;
use super::event;
use super::host::{Events, GrantCopy, Host, PAGE, Page, SelfGranted};
use super::ioctl::request;
use super::self_granted;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use tracing::info;

const DEVICE: &str = "/dev/xen/gntdev";

/// `struct ioctl_gntdev_map_grant_ref` for one page.
#[repr(C)]
struct Map {
    count: u32,
    pad: u32,
    /// Result: where in the device the page is mapped.
    index: u64,
    domain: u32,
    reference: u32,
}

/// `struct ioctl_gntdev_unmap_grant_ref`
#[repr(C)]
struct Unmap {
    index: u64,
    count: u32,
    pad: u32,
}

/// `struct ioctl_gntdev_grant_copy`
#[repr(C)]
struct Copy {
    count: u32,
    copies: *mut GrantCopy,
}

const MAP: libc::Ioctl = request::<Map>(b'G', 0);
const UNMAP: libc::Ioctl = request::<Unmap>(b'G', 1);
const COPY: libc::Ioctl = request::<Copy>(b'G', 8);

/// Xen's devices in this Linux.
pub struct Devices {
    grants: Arc<File>,
    own: u16,
}

impl Devices {
    /// Opens the device, in the domain with number `own`.
    ///
    /// # Errors
    /// This is no Xen domain, the module is not loaded, or access is denied.
    pub fn open(own: u16) -> Result<Devices, Unavailable> {
        let grants = OpenOptions::new().read(true).write(true).open(DEVICE);
        let grants = grants.map_err(|error| Unavailable::Grants { device: DEVICE, error })?;
        Ok(Devices { grants: Arc::new(grants), own })
    }
}

impl Host for Devices {
    unsafe fn copy(&self, copies: &mut [GrantCopy]) {
        if copies.is_empty() {
            return;
        }
        let mut copy = Copy { count: copies.len() as u32, copies: copies.as_mut_ptr() };
        // SAFETY: the structure and its copies are alive; the caller promises that their ends are valid.
        let done = unsafe { libc::ioctl(self.grants.as_raw_fd(), COPY, &mut copy) };
        if done < 0 {
            // The kernel refused them all, or stopped half way, for example for want of memory.
            copies.iter_mut().for_each(GrantCopy::set_not_tried);
        }
    }

    fn map(&self, domain: u16, reference: u32) -> io::Result<Page> {
        let mut map = Map { count: 1, pad: 0, index: 0, domain: domain.into(), reference };
        // SAFETY: the structure is alive and has space for one page, which is its count.
        if unsafe { libc::ioctl(self.grants.as_raw_fd(), MAP, &mut map) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut mapped = Mapped { device: self.grants.clone(), index: map.index, start: std::ptr::null_mut() };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (fd, at) = (self.grants.as_raw_fd(), map.index as libc::off_t);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, fd, at) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        mapped.start = start;
        // SAFETY: `mmap` maps whole pages, this one until `mapped` is dropped. It stays mapped if the guest dies.
        Ok(unsafe { Page::new(start.cast(), Box::new(mapped)) })
    }

    fn self_grant(&self, pages: usize) -> Option<SelfGranted> {
        let granted = self_granted::pages(self, self.own, pages);
        granted
            .inspect_err(
                |error| info!(%error, "copies use addresses instead of grants: `modprobe xen-gntalloc` saves time"),
            )
            .ok()
    }

    fn events(&self) -> io::Result<Box<dyn Events>> {
        Ok(Box::new(event::Channels::open()?))
    }
}

/// A mapped page, unmapped and released when dropped.
struct Mapped {
    device: Arc<File>,
    index: u64,
    /// Null until it is mapped.
    start: *mut libc::c_void,
}

// SAFETY: the mapping may be ended from any thread.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: this is what `mmap` returned; its owner, the page, ends with this value.
            unsafe { libc::munmap(self.start, PAGE) };
        }
        let mut unmap = Unmap { index: self.index, count: 1, pad: 0 };
        // SAFETY: the structure is alive during the call.
        unsafe { libc::ioctl(self.device.as_raw_fd(), UNMAP, &mut unmap) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As computed by a C compiler with xen/gntdev.h.
    #[test]
    fn ioctl_numbers_match_the_kernels() {
        assert_eq!([MAP, UNMAP, COPY], [0x18_4700, 0x10_4701, 0x10_4708]);
        assert_eq!((size_of::<GrantCopy>(), align_of::<GrantCopy>()), (24, 8));
    }
}
