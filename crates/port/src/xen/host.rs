//! What the backend needs of Xen: copies to and from memory that guests granted, mapped ring pages, event channels.
//!
//! These are traits, so that everything above also runs without Xen.

use crate::burst::{End, Place};
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of a granted page.
pub const PAGE: usize = 4096;

/// An end as the kernel encodes it: an address, or reference, offset and domain in 32, 16 and 16 bits.
#[inline]
fn raw(end: End) -> u64 {
    match end {
        End::Ours(start) => start.expose_provenance() as u64,
        End::Guest(Place { domain, reference, offset }) => {
            u64::from(reference) | u64::from(offset) << 32 | u64::from(domain) << 48
        }
    }
}

fn from_raw(raw: u64, guest: bool) -> End {
    if guest {
        End::Guest(Place { domain: (raw >> 48) as u16, reference: raw as u32, offset: (raw >> 32) as u16 })
    } else {
        End::Ours(std::ptr::with_exposed_provenance_mut(raw as usize))
    }
}

/// GNTCOPY_source_gref
const FROM_GUEST: u16 = 1;
/// GNTCOPY_dest_gref
const TO_GUEST: u16 = 2;

/// A status that is not one of GNTST_*, which are negative except for success.
const NOT_TRIED: i16 = 1;

/// One grant copy: `struct gntdev_grant_copy_segment` (linux/include/uapi/xen/gntdev.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GrantCopy {
    from: u64,
    to: u64,
    len: u16,
    flags: u16,
    /// GNTST_*: 0 means success.
    status: i16,
}

impl GrantCopy {
    /// A copy of `len` bytes. An end in a guest must not cross the end of its page.
    #[inline]
    pub fn new(from: End, to: End, len: u16) -> GrantCopy {
        let flag = |end, flag| if matches!(end, End::Guest(_)) { flag } else { 0 };
        let flags = flag(from, FROM_GUEST) | flag(to, TO_GUEST);
        GrantCopy { from: raw(from), to: raw(to), len, flags, status: 0 }
    }

    /// The source.
    pub fn from(&self) -> End {
        from_raw(self.from, self.flags & FROM_GUEST != 0)
    }

    /// The destination.
    pub fn to(&self) -> End {
        from_raw(self.to, self.flags & TO_GUEST != 0)
    }

    /// Number of bytes.
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Whether there is nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the copy succeeded.
    #[inline]
    pub fn done(&self) -> bool {
        self.status == 0
    }

    /// Whether the hypervisor refused it, which is the fault of a guest with a page at an end of it.
    #[inline]
    pub fn refused(&self) -> bool {
        self.status < 0
    }

    /// Notes that the call it was part of failed as a whole, which is no guest's fault.
    pub fn set_not_tried(&mut self) {
        self.status = NOT_TRIED;
    }

    /// Sets the status: GNTST_*.
    pub fn set_status(&mut self, status: i16) {
        self.status = status;
    }
}

/// A guest's page mapped in this process, unmapped when dropped.
pub struct Page {
    start: *mut u8,
    /// Dropped with the page, which unmaps it.
    _mapping: Box<dyn Send>,
}

// SAFETY: the page may be used from any thread, and the mapping may be ended from any thread.
unsafe impl Send for Page {}

impl Page {
    /// A page at `start`, there until `mapping` is dropped.
    ///
    /// # Safety
    /// [`PAGE`] bytes from `start` on, which is a multiple of that, are readable and writable while `mapping` lives.
    pub unsafe fn new(start: *mut u8, mapping: Box<dyn Send>) -> Page {
        Page { start, _mapping: mapping }
    }

    /// Its first byte. The guest may change the page at any time.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

/// DOMID_SELF (xen/include/public/xen.h): this domain.
pub const SELF: u16 = 0x7ff0;

/// Contiguous pages of this process that this domain granted to itself.
pub struct SelfGranted {
    start: *mut u8,
    references: Vec<u32>,
    /// Dropped with the pages, which frees them.
    _mapping: Box<dyn Send>,
}

// SAFETY: as for `Page`.
unsafe impl Send for SelfGranted {}

impl SelfGranted {
    /// Pages from `start` on, one for each reference, valid until `mapping` is dropped.
    ///
    /// # Safety
    /// [`PAGE`] bytes for each reference from `start` on, which is a multiple of that, are readable and writable while
    /// `mapping` lives, and only copies by these references access them besides.
    pub unsafe fn new(start: *mut u8, references: Vec<u32>, mapping: Box<dyn Send>) -> SelfGranted {
        SelfGranted { start, references, _mapping: mapping }
    }

    /// Number of pages.
    pub(super) fn pages(&self) -> usize {
        self.references.len()
    }

    /// The first byte of a page.
    #[inline]
    pub(super) fn start(&self, page: usize) -> *mut u8 {
        self.start.wrapping_add(page * PAGE)
    }

    /// The first byte of a page, as a grant.
    #[inline]
    pub(super) fn place(&self, page: usize) -> Place {
        Place { domain: SELF, reference: self.references[page], offset: 0 }
    }
}

/// Alignment of copied bytes.
const ALIGN: usize = 64;

/// Allocates places in pages one after the other, none across a page's end. Close together, as the hypervisor looks a
/// page up once for consecutive copies that begin or end there.
#[derive(Default)]
pub(super) struct Packing {
    end: usize,
}

impl Packing {
    /// A place for `bytes` bytes, at most a page, as an offset from the first page's start.
    #[inline]
    pub(super) fn place(&mut self, bytes: usize) -> usize {
        let next = self.end.next_multiple_of(ALIGN);
        let start = if next % PAGE + bytes > PAGE { next.next_multiple_of(PAGE) } else { next };
        self.end = start + bytes;
        start
    }
}

/// Granted memory and event channels.
pub trait Host: Send + Sync {
    /// Makes copies with as few system calls as possible, and sets the status of each.
    ///
    /// # Safety
    /// Each [`End::Ours`] is valid for its copy's length: for reads at the source, for writes at the destination.
    unsafe fn copy(&self, copies: &mut [GrantCopy]);

    /// Maps a granted page.
    ///
    /// # Errors
    /// The system's error: the page was never granted, or not to this domain.
    fn map(&self, domain: u16, reference: u32) -> io::Result<Page>;

    /// Allocates pages that this domain grants to itself, so that copies have grants at both ends and the kernel need
    /// not look the pages up. None if there is no such memory, or not enough.
    fn self_grant(&self, pages: usize) -> Option<SelfGranted>;

    /// A set of event channels.
    ///
    /// # Errors
    /// The system's error.
    fn events(&self) -> io::Result<Box<dyn Events>>;
}

/// A set of event channels with one descriptor. All are closed when it is dropped.
pub trait Events: Send {
    /// Binds the channel that a domain offers under `remote`, and returns its local number.
    ///
    /// # Errors
    /// The system's error: the domain offers no such channel to this one.
    fn bind(&self, domain: u16, remote: u32) -> io::Result<u32>;

    /// Notifies the other end.
    fn notify(&self, channel: u32);

    /// Takes the events that arrived, so that the descriptor is no longer ready. Their channels stay masked until
    /// [`Events::unmask`].
    fn mask(&mut self);

    /// Unmasks all channels. The descriptor is ready at once if an event arrived meanwhile.
    fn unmask(&mut self);

    /// Readable when an event arrived.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Places do not overlap and lie in one page each, and a page has room for at least two of at most half its
        /// size.
        #[test]
        fn places_are_close_and_do_not_overlap(sizes in prop::collection::vec(0..=PAGE / 2, 1..64)) {
            let (mut packing, mut end) = (Packing::default(), 0);
            for (index, bytes) in sizes.into_iter().enumerate() {
                let start = packing.place(bytes);
                prop_assert!(start >= end && start % PAGE + bytes <= PAGE && start / PAGE <= index / 2);
                end = start + bytes;
            }
        }
    }
}
