//! What the backend needs of Xen: copies to and from memory that guests granted, a look at a ring page, event channels.
//!
//! Behind traits, so that everything above runs without Xen as well.

use crate::burst::{End, Place};
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of a granted page.
pub const PAGE: usize = 4096;

/// An end as the kernel wants it: an address, or reference, offset and domain in 32, 16 and 16 bits.
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

/// A status that is none of GNTST_*, of which all but the good one are negative.
const NOT_TRIED: i16 = 1;

/// A copy to be made: `struct gntdev_grant_copy_segment` (linux/include/uapi/xen/gntdev.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    from: u64,
    to: u64,
    len: u16,
    flags: u16,
    /// GNTST_*: 0 is done.
    status: i16,
}

impl Segment {
    /// Copies `len` bytes, which cross a page's end neither here nor there where that end is a guest's.
    #[inline]
    pub fn new(from: End, to: End, len: u16) -> Segment {
        let flag = |end, flag| if matches!(end, End::Guest(_)) { flag } else { 0 };
        let flags = flag(from, FROM_GUEST) | flag(to, TO_GUEST);
        Segment { from: raw(from), to: raw(to), len, flags, status: 0 }
    }

    /// Where from.
    pub fn from(&self) -> End {
        from_raw(self.from, self.flags & FROM_GUEST != 0)
    }

    /// Where to.
    pub fn to(&self) -> End {
        from_raw(self.to, self.flags & TO_GUEST != 0)
    }

    /// How many bytes.
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Whether nothing is to be copied.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it was made.
    #[inline]
    pub fn done(&self) -> bool {
        self.status == 0
    }

    /// Whether the hypervisor turned it away, which is the fault of a guest whose page is at an end of it.
    #[inline]
    pub fn refused(&self) -> bool {
        self.status < 0
    }

    /// Says that the call it was part of failed as a whole, which is no guest's fault.
    pub fn set_not_tried(&mut self) {
        self.status = NOT_TRIED;
    }

    /// Says what became of it: GNTST_*.
    pub fn set_status(&mut self, status: i16) {
        self.status = status;
    }
}

/// A guest's page in this process's memory, unmapped when dropped.
pub struct Page {
    start: *mut u8,
    /// Dropped with the page, which ends it.
    _mapping: Box<dyn Send>,
}

// SAFETY: the page may be used from any thread, and whoever ends the mapping may too.
unsafe impl Send for Page {}

impl Page {
    /// A page at `start`, there until `mapping` is dropped.
    ///
    /// # Safety
    /// [`PAGE`] bytes from `start` on, which is a multiple of that, are readable and writable while `mapping` lives.
    pub unsafe fn new(start: *mut u8, mapping: Box<dyn Send>) -> Page {
        Page { start, _mapping: mapping }
    }

    /// Its first byte. The guest may change it at any time.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

/// DOMID_SELF (xen/include/public/xen.h): this domain.
pub const SELF: u16 = 0x7ff0;

/// Pages of this process, in a row, that are named by grants as well.
pub struct Lent {
    start: *mut u8,
    references: Vec<u32>,
    /// Dropped with the pages, which ends them.
    _mapping: Box<dyn Send>,
}

// SAFETY: as for `Page`.
unsafe impl Send for Lent {}

impl Lent {
    /// Pages from `start` on, one a reference, there until `mapping` is dropped.
    ///
    /// # Safety
    /// [`PAGE`] bytes a reference from `start` on, which is a multiple of that, are readable and writable while `mapping`
    /// lives, by nobody else but whoever copies to them by these references.
    pub unsafe fn new(start: *mut u8, references: Vec<u32>, mapping: Box<dyn Send>) -> Lent {
        Lent { start, references, _mapping: mapping }
    }

    /// How many pages.
    pub(super) fn pages(&self) -> usize {
        self.references.len()
    }

    /// The first byte of a page.
    #[inline]
    pub(super) fn start(&self, page: usize) -> *mut u8 {
        self.start.wrapping_add(page * PAGE)
    }

    /// The first byte of a page, by its grant.
    #[inline]
    pub(super) fn place(&self, page: usize) -> Place {
        Place { domain: SELF, reference: self.references[page], offset: 0 }
    }
}

/// What bytes that are copied begin at a multiple of.
const ALIGN: usize = 64;

/// Places in pages, one behind the other, none over a page's end. Close to each other, as the hypervisor looks a page up once
/// for all copies in a row that begin or end there.
#[derive(Default)]
pub(super) struct Packing {
    end: usize,
}

impl Packing {
    /// A place for so many bytes, a page at most, counted from the first page's start.
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
    /// Makes copies, as few system calls as can be, and sets the status of each.
    ///
    /// # Safety
    /// Each [`End::Ours`] is valid for its segment's length: for reads where it is copied from, for writes where to.
    unsafe fn copy(&self, segments: &mut [Segment]);

    /// Maps a granted page.
    ///
    /// # Errors
    /// What the system says: it was never granted, or not to this domain.
    fn map(&self, domain: u16, reference: u32) -> io::Result<Page>;

    /// So many pages that copies reach by grants at both ends, which saves the kernel the search for them; none where there is no
    /// such memory, or not that much of it.
    fn lend(&self, pages: usize) -> Option<Lent>;

    /// A set of event channels.
    ///
    /// # Errors
    /// What the system says.
    fn events(&self) -> io::Result<Box<dyn Events>>;
}

/// A set of event channels with one descriptor. All are closed when it is dropped.
pub trait Events: Send {
    /// Binds the channel that a domain offers under `remote`, and answers its number here.
    ///
    /// # Errors
    /// What the system says: the domain offers no such channel to this one.
    fn bind(&self, domain: u16, remote: u32) -> io::Result<u32>;

    /// Tells the other end.
    fn notify(&self, channel: u32);

    /// Takes the events that came, so that the descriptor is no longer ready. Channels that had one are silent until
    /// [`Events::listen`].
    fn take(&mut self);

    /// Listens to all channels again. The descriptor is ready at once if an event came meanwhile.
    fn listen(&mut self);

    /// Readable when an event came.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is placed overlaps nothing and lies in one page, and a page takes at least two pieces of half its size at most.
        #[test]
        fn places_are_close_and_apart(sizes in prop::collection::vec(0..=PAGE / 2, 1..64)) {
            let (mut packing, mut end) = (Packing::default(), 0);
            for (index, bytes) in sizes.into_iter().enumerate() {
                let start = packing.place(bytes);
                prop_assert!(start >= end && start % PAGE + bytes <= PAGE && start / PAGE <= index / 2);
                end = start + bytes;
            }
        }
    }
}
