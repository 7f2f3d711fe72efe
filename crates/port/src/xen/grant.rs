//! Granted memory by /dev/xen/gntdev (linux/include/uapi/xen/gntdev.h).

use super::error::Unavailable;
use super::event;
use super::host::{Events, Host, Lent, PAGE, Page, Segment};
use super::ioctl::request;
use super::lent;
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
    /// The answer: where in the device the page is mapped.
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
    segments: *mut Segment,
}

const MAP: libc::Ioctl = request::<Map>(b'G', 0);
const UNMAP: libc::Ioctl = request::<Unmap>(b'G', 1);
const COPY: libc::Ioctl = request::<Copy>(b'G', 8);

/// Xen under this Linux.
pub struct Devices {
    grants: Arc<File>,
    own: u16,
}

impl Devices {
    /// Opens the device, in the domain of the number `own`.
    ///
    /// # Errors
    /// This is no Xen domain, the module is not loaded, or it is not allowed.
    pub fn open(own: u16) -> Result<Devices, Unavailable> {
        let grants = OpenOptions::new().read(true).write(true).open(DEVICE);
        let grants = grants.map_err(|error| Unavailable::Grants { device: DEVICE, error })?;
        Ok(Devices { grants: Arc::new(grants), own })
    }
}

impl Host for Devices {
    unsafe fn copy(&self, segments: &mut [Segment]) {
        if segments.is_empty() {
            return;
        }
        let mut copy = Copy { count: segments.len() as u32, segments: segments.as_mut_ptr() };
        // SAFETY: the structure and its segments are alive; that their ends are valid is what the caller promises.
        let done = unsafe { libc::ioctl(self.grants.as_raw_fd(), COPY, &mut copy) };
        if done < 0 {
            // The kernel turned all of them away, or stopped on the way, for want of memory say.
            segments.iter_mut().for_each(Segment::set_not_tried);
        }
    }

    fn map(&self, domain: u16, reference: u32) -> io::Result<Page> {
        let mut map = Map { count: 1, pad: 0, index: 0, domain: domain.into(), reference };
        // SAFETY: the structure is alive and has room for one page, which is its count.
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
        // SAFETY: `mmap` gives whole pages, this one until `mapped` is dropped. It stays the guest's page if that dies.
        Ok(unsafe { Page::new(start.cast(), Box::new(mapped)) })
    }

    fn lend(&self, pages: usize) -> Option<Lent> {
        let lent = lent::pages(self, self.own, pages);
        lent.inspect_err(|error| info!(%error, "copies go by addresses: modprobe xen-gntalloc saves time")).ok()
    }

    fn events(&self) -> io::Result<Box<dyn Events>> {
        Ok(Box::new(event::Channels::open()?))
    }
}

/// A mapped page, unmapped and given back when dropped.
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
            // SAFETY: this is what `mmap` returned; the page that it is ends with this value.
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

    /// As a C compiler with xen/gntdev.h has them.
    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!([MAP, UNMAP, COPY], [0x18_4700, 0x10_4701, 0x10_4708]);
        assert_eq!((size_of::<Segment>(), align_of::<Segment>()), (24, 8));
    }
}
