//! Descriptors in a table of a split queue: the queue's own or an indirect one (virtio 1.2, section 2.7.5).

use crate::access::{self, Word, Words};
use crate::virtqueue::violation::Violation;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Size of a descriptor (`struct virtq_desc`) in words of 64 bits, and in bytes.
pub(in crate::virtqueue) const DESCRIPTOR: usize = 2;
const DESCRIPTOR_BYTES: usize = 16;

/// A descriptor as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    /// Decodes two words: the address, and, from the low bits up, length, flags and the next index.
    #[inline(always)]
    fn parse([address, rest]: [u64; DESCRIPTOR]) -> Descriptor {
        Descriptor { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

/// A table of descriptors in guest memory, the queue's own or an indirect one.
pub(crate) struct Table<A: Words> {
    start: *const u8,
    /// The index of the last descriptor.
    pub last: u32,
    words: PhantomData<A>,
}

impl<A: Words> Table<A> {
    /// A table whose last descriptor has the index `last`.
    ///
    /// # Safety
    /// `last + 1` descriptors from `start` on are readable while the table lives. The queue's own table is aligned to
    /// its words; an indirect one may be at any address.
    #[inline(always)]
    pub(crate) unsafe fn over(start: *const u8, last: u32) -> Table<A> {
        Table { start, last, words: PhantomData }
    }

    /// Checks an index that the driver wrote.
    ///
    /// # Errors
    /// It is outside of the table.
    #[inline(always)]
    pub(crate) fn find(&self, next: u16) -> Result<u32, Violation> {
        let index = u32::from(next);
        if index <= self.last { Ok(index) } else { Err(Violation::Next { next, entries: self.last + 1 }) }
    }

    /// Reads a descriptor once: the driver may write to it meanwhile, and only the copy is used.
    ///
    /// # Safety
    /// The table has more than `index` descriptors.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, index: u32) -> Descriptor {
        let words = self.start.cast::<A::Long>();
        if words.is_aligned() {
            // SAFETY: both words are within the table, and aligned.
            return Descriptor::parse(unsafe {
                let start = words.add(DESCRIPTOR * index as usize);
                [(*start).load(Ordering::Relaxed), (*start.add(1)).load(Ordering::Relaxed)]
            });
        }
        // SAFETY: as above, and bytes are always aligned.
        unsafe { unaligned(self.start.add(DESCRIPTOR_BYTES * index as usize)) }
    }
}

/// Reads a descriptor at any address.
///
/// # Safety
/// Its bytes are readable.
#[cold]
unsafe fn unaligned(start: *const u8) -> Descriptor {
    let mut words = [0; DESCRIPTOR];
    // SAFETY: the caller's; the words have as many bytes.
    unsafe { access::copy(start, words.as_mut_ptr().cast(), DESCRIPTOR_BYTES) };
    access::copied();
    Descriptor::parse(words)
}
