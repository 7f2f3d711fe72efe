//! The layout of a split virtqueue (virtio 1.2, section 2.7): three arrays in guest memory, four indices, and how they are read and
//! written.
//!
//! Buffers are completed in the order in which they came, always. So the state of a queue is one number, `used.idx`, and a
//! restarted backend finds it in the guest's memory.

mod table;

use super::layout::{Layout, MAX_SIZE};
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::violation::Violation;
use crate::access::{Processor, Word, Words};
use std::sync::atomic::Ordering;
#[cfg(test)]
pub(super) use table::DESCRIPTOR;
pub(super) use table::{Descriptor, Table};

/// VRING_USED_F_NO_NOTIFY
pub(super) const NO_NOTIFY: u16 = 1;
/// VRING_AVAIL_F_NO_INTERRUPT
pub(super) const NO_INTERRUPT: u16 = 1;

/// Fields of the used ring, of two bytes each, and where its elements begin, in bytes (virtio 1.2, section 2.7.8). The available ring
/// begins with the same fields.
pub(super) const FLAGS: usize = 0;
pub(super) const INDEX: usize = 1;
const ELEMENTS: usize = 4;

/// Bytes of a used ring of so many entries, with the event field (virtio 1.2, section 2.7).
pub fn used_bytes(size: u16) -> u64 {
    6 + 8 * u64::from(size)
}

/// Where the parts of a queue are.
pub struct Parts<A: Words> {
    /// Two words a descriptor.
    pub descriptors: *const A::Long,
    /// Flags, index, an entry for each descriptor, and `used_event`.
    pub available: *const A::Half,
    /// Flags and index.
    pub used: *const A::Half,
    /// The used elements: `id` and `len` in turn.
    pub elements: *const A::Word,
    /// `avail_event`, behind the elements.
    pub available_event: *const A::Half,
}

impl Parts<Processor> {
    /// Those of a layout, each in the memory with as many bytes as it has, and aligned to its words.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub fn find(layout: &Layout, memory: &GuestMemory) -> Result<Parts<Processor>, Violation> {
        let size = layout.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(Violation::RingSize(size));
        }
        let part = |name, address: u64, len: u64, align: usize| {
            let start = memory.user(address, len).ok_or(Violation::RingPlace { part: name, address })?;
            if start.align_offset(align) == 0 {
                Ok(start)
            } else {
                Err(Violation::RingAlignment { part: name, address })
            }
        };
        let entries = u64::from(size);
        // Sizes and alignments: virtio 1.2, section 2.7; flags, index and the event field are 6 bytes more.
        let descriptors = part("descriptor table", layout.descriptors, 16 * entries, 16)?;
        let available = part("available ring", layout.available, 6 + 2 * entries, 2)?;
        let used = part("used ring", layout.used, used_bytes(size), 4)?;
        Ok(Parts {
            descriptors: descriptors.cast(),
            available: available.cast(),
            used: used.cast(),
            elements: used.wrapping_add(ELEMENTS).cast(),
            available_event: used.wrapping_add(ELEMENTS + 8 * usize::from(size)).cast(),
        })
    }
}

/// A split virtqueue in guest memory.
pub struct Split<A: Words = Processor> {
    mask: u16,
    pub(super) parts: Parts<A>,
    /// First available entry that is not completed yet, and so also the next used entry to write.
    pub(super) next: u16,
    /// The driver's index as last read.
    pub(super) available_index: u16,
    /// Our index as the driver sees it.
    pub(super) published: u16,
    /// Where writes to the used ring are logged, while the guest is moved.
    log: Option<UsedLog>,
}

// SAFETY: the pointers lead into a mapping that may be used from any thread; a queue is used by one at a time.
unsafe impl<A: Words> Send for Split<A> {}

impl<A: Words> Split<A> {
    /// One that goes on where `used.idx` says, and logs to `log` what it writes into the used ring.
    ///
    /// # Safety
    /// The parts are there for queues of this size, a power of two, as long as this.
    pub unsafe fn over(parts: Parts<A>, size: u16, log: Option<UsedLog>) -> Split<A> {
        let mut split = Split { mask: size - 1, parts, next: 0, available_index: 0, published: 0, log };
        let resumed = split.used_field(INDEX).load(Ordering::Acquire);
        (split.next, split.published, split.available_index) = (resumed, resumed, resumed);
        split
    }

    /// Entries.
    #[inline]
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// The descriptors.
    #[inline(always)]
    pub(super) fn table(&self) -> Table<A> {
        // SAFETY: the part is there, aligned, with as many descriptors as there are entries.
        unsafe { Table::over(self.parts.descriptors.cast(), self.mask.into()) }
    }

    // Each field of the ring headers is an atomic: the driver writes them on another processor.
    #[inline]
    pub(super) fn available_field(&self, at: usize) -> &A::Half {
        // SAFETY: `at` is at most 2 + size, which the part has.
        unsafe { &*self.parts.available.add(at) }
    }

    #[inline]
    fn used_field(&self, at: usize) -> &A::Half {
        // SAFETY: `at` is FLAGS or INDEX, which the part has.
        unsafe { &*self.parts.used.add(at) }
    }

    /// `avail_event` (virtio 1.2, section 2.7.8).
    #[inline]
    pub(super) fn available_event(&self) -> &A::Half {
        // SAFETY: the part is there.
        unsafe { &*self.parts.available_event }
    }

    /// How many entries from `next + skip` on are available.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    #[inline]
    pub fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        let seen = self.available_index.wrapping_sub(self.next);
        if seen > skip {
            return Ok(seen - skip);
        }
        self.refresh()?;
        Ok(self.available_index.wrapping_sub(self.next) - skip)
    }

    /// Reads the driver's index.
    #[inline]
    fn refresh(&mut self) -> Result<(), Violation> {
        // Acquire: pairs with the driver's write barrier before it moved the index (2.7.13.3), so that entries and
        // descriptors read from here on are at least as new.
        let index = self.available_field(INDEX).load(Ordering::Acquire);
        let ahead = index.wrapping_sub(self.next);
        if ahead > self.size() {
            return Err(Violation::AvailableIndex { index, next: self.next });
        }
        if ahead < self.available_index.wrapping_sub(self.next) {
            return Err(Violation::AvailableIndex { index, next: self.available_index });
        }
        self.available_index = index;
        Ok(())
    }

    /// The driver's index, as it is now and believed of nobody.
    #[inline]
    pub fn driver_index(&self) -> u16 {
        self.available_field(INDEX).load(Ordering::Relaxed)
    }

    /// Whether an entry is available, without touching shared state if one is known of.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.available_index != self.next || self.driver_index() != self.next
    }

    /// The head of the chain at `next + skip`, which [`Split::available`] said is there.
    #[inline]
    pub fn head(&self, skip: u16) -> Result<u16, Violation> {
        let entry = self.next.wrapping_add(skip) & self.mask;
        let head = self.available_field(2 + entry as usize).load(Ordering::Relaxed);
        if head <= self.mask { Ok(head) } else { Err(Violation::Head { head, size: self.size() }) }
    }

    /// Completes the chain with this head, the next in order, `len` bytes written into it. Seen by the driver after
    /// [`Split::publish`].
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        let entry = (self.next & self.mask) as usize;
        // SAFETY: the part has two words for each entry, and `entry` is below the size.
        let [element, bytes] = unsafe { [0, 1].map(|at| &*self.parts.elements.add(2 * entry + at)) };
        element.store(head.into(), Ordering::Relaxed);
        bytes.store(len, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Takes back what was completed from entry `base` on and is not published yet: those buffers are available still.
    pub fn take_back(&mut self, base: u16) {
        if let Some(log) = &self.log {
            self.mark_elements(log, base);
        }
        self.next = base;
    }

    /// Shows the driver all that was completed.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next {
            let before = std::mem::replace(&mut self.published, self.next);
            // Release: elements and the bytes in buffers are visible before the index that hands them over (2.7.8.2).
            self.used_field(INDEX).store(self.next, Ordering::Release);
            if let Some(log) = &self.log {
                self.mark_elements(log, before);
                self.mark_field(INDEX);
            }
            // The index must be visible before the driver's wish is read (2.7.7.2, 2.7.10): otherwise it could ask to be
            // called, see the old index and sleep, while we saw its old wish.
            A::fence(Ordering::SeqCst);
        }
    }

    /// The entry that the driver wishes to be called for: `used_event`, behind the available entries (virtio 1.2, section 2.7.7).
    #[inline]
    pub fn used_event(&self) -> u16 {
        self.available_field(2 + self.mask as usize + 1).load(Ordering::Relaxed)
    }

    /// Whether the driver wishes to be called, where that is said by flag.
    #[inline]
    pub fn interrupts(&self) -> bool {
        self.available_field(FLAGS).load(Ordering::Relaxed) & NO_INTERRUPT == 0
    }

    /// Asks the driver to kick when this entry becomes available.
    pub fn set_available_event(&self, entry: u16) {
        self.available_event().store(entry, Ordering::Relaxed);
        // Its number among the fields of the used ring.
        self.mark_field(2 + 4 * (self.mask as usize + 1));
    }

    /// Asks the driver to kick, or not to, where that is said by flag.
    pub fn set_kicks(&self, wanted: bool) {
        self.used_field(FLAGS).store(if wanted { 0 } else { NO_NOTIFY }, Ordering::Relaxed);
        self.mark_field(FLAGS);
    }

    /// Logs the used elements from entry `base` on, which were written.
    #[cold]
    fn mark_elements(&self, log: &UsedLog, base: u16) {
        let (first, size) = ((base & self.mask) as usize, self.size() as usize);
        let count = usize::from(self.next.wrapping_sub(base));
        let to_end = count.min(size - first);
        for (entry, count) in [(first, to_end), (0, count - to_end)] {
            log.mark(ELEMENTS + 8 * entry, 8 * count);
        }
    }

    /// Logs a field of the used ring, which was written. Fields are of two bytes, and numbered so.
    #[inline]
    fn mark_field(&self, at: usize) {
        if let Some(log) = &self.log {
            log.mark(2 * at, 2);
        }
    }
}
