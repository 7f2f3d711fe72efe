//! Memory of this process that this domain granted to itself, by /dev/xen/gntalloc (linux/include/uapi/xen/gntalloc.h).
//!
//! To copy between a guest's page and memory of a process, the kernel must first find and pin that memory's pages, which on a
//! paravirtual Linux took 5,700 of the 13,300 instructions that dom0's kernel spent on a frame toward the wire. A copy with a
//! grant at both ends needs none of that.

use super::grant::request;
use super::host::{End, Host, Lent, PAGE, Place, SELF, Segment};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

const DEVICE: &str = "/dev/xen/gntalloc";

/// Pages that are granted in one call.
const CALL: usize = 32;

/// GNTALLOC_FLAG_WRITABLE
const WRITABLE: u16 = 1;

/// `struct ioctl_gntalloc_alloc_gref` with room for a call's references.
#[repr(C)]
struct Allocate {
    domain: u16,
    flags: u16,
    count: u32,
    /// The answers: where in the device the pages are mapped, and their references.
    index: u64,
    references: [u32; CALL],
}

/// The size that the request's number has in it: with one reference, and filled up.
const ALLOCATE: libc::Ioctl = request::<[u64; 3]>(5);

/// Pages of this process, granted until they are dropped.
struct Pages {
    start: *mut libc::c_void,
    len: usize,
    /// Closing it ends the grants of pages that are no longer mapped.
    _device: File,
}

// SAFETY: the mapping may be ended from any thread.
unsafe impl Send for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is what `mmap` returned, and nobody has the pages after this value.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Grants so many new pages to this domain itself, whose number is `own`.
///
/// # Errors
/// What the system says: there is no such device, or its limit (the module's `limit`, 1024 pages) is reached.
pub fn pages(host: &impl Host, own: u16, count: usize) -> io::Result<Lent> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    let mut references = Vec::with_capacity(count);
    let mut first = None;
    while references.len() < count {
        let here = (count - references.len()).min(CALL);
        let mut allocate =
            Allocate { domain: own, flags: WRITABLE, count: here as u32, index: 0, references: [0; CALL] };
        // SAFETY: the structure is alive and has room for as many references as it asks for.
        if unsafe { libc::ioctl(device.as_raw_fd(), ALLOCATE, &mut allocate) } < 0 {
            return Err(io::Error::last_os_error());
        }
        first.get_or_insert(allocate.index);
        references.extend_from_slice(&allocate.references[..here]);
    }
    let (len, at) = (count * PAGE, first.unwrap_or(0) as libc::off_t);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours. What one opened device grants
    // follows each other there.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, device.as_raw_fd(), at) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let pages = Pages { start, len, _device: device };
    // SAFETY: so many pages are there until `pages` is dropped.
    let lent = unsafe { Lent::new(start.cast(), references, Box::new(pages)) };
    try_out(host, &lent)?;
    Ok(lent)
}

/// Copies within the first page, to know that the hypervisor takes a domain's grants to itself.
fn try_out(host: &impl Host, lent: &Lent) -> io::Result<()> {
    let place = |offset| End::Guest(Place { offset, ..lent.place(0) });
    let mut trial = [Segment::new(place(0), place(PAGE as u16 / 2), 1)];
    // SAFETY: both ends are named by grants.
    unsafe { host.copy(&mut trial) };
    let refused = || io::Error::other(format!("domain {SELF:#x} cannot be copied to by its own grants"));
    if trial[0].done() { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a C compiler with xen/gntalloc.h has it.
    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(ALLOCATE, 0x18_4705);
        assert_eq!(std::mem::offset_of!(Allocate, references), 16);
    }
}
