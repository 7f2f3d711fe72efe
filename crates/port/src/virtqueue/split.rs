//! The layout of a split virtqueue (virtio 1.2, section 2.7): three arrays in guest memory, four indices, and how they
//! are read and written.
//!
//! Buffers are always completed in the order in which they became available. So the state of a queue is one number,
//! `used.idx`, which a restarted backend finds in the guest's memory.

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

/// Fields of the used ring, numbered in units of two bytes, and the byte offset of its elements (virtio 1.2, section
/// 2.7.8). The available ring begins with the same fields.
pub(super) const FLAGS: usize = 0;
pub(super) const INDEX: usize = 1;
const ELEMENTS: usize = 4;

/// Bytes of a used ring of `size` entries, with the event field (virtio 1.2, section 2.7).
pub(crate) fn used_bytes(size: u16) -> u64 {
    6 + 8 * u64::from(size)
}

/// Where the parts of a queue are mapped.
pub(crate) struct Parts<A: Words> {
    /// Two words a descriptor.
    pub descriptors: *const A::Long,
    /// Flags, index, an entry for each descriptor, and `used_event`.
    pub available: *const A::Half,
    /// Flags and index.
    pub used: *const A::Half,
    /// The used elements, alternating `id` and `len`.
    pub elements: *const A::Word,
    /// `avail_event`, after the elements.
    pub available_event: *const A::Half,
}

impl Parts<Processor> {
    /// Finds the parts of a layout in guest memory, wholly inside it and aligned to their words.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub(crate) fn find(layout: &Layout, memory: &GuestMemory) -> Result<Parts<Processor>, Violation> {
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
pub(super) struct Split<A: Words = Processor> {
    mask: u16,
    pub(super) parts: Parts<A>,
    /// The first available entry that is not completed yet, which is also the next used entry to write.
    pub(super) next: u16,
    /// The driver's index as last read.
    pub(super) available_index: u16,
    /// Our index as the driver sees it.
    pub(super) published: u16,
    /// Where writes to the used ring are logged, while the guest migrates.
    log: Option<UsedLog>,
}

// SAFETY: the pointers lead into a mapping that may be used from any thread; a queue is used by one at a time.
unsafe impl<A: Words> Send for Split<A> {}

impl<A: Words> Split<A> {
    /// A queue that resumes at `used.idx`, and logs to `log` what it writes into the used ring.
    ///
    /// # Safety
    /// The parts are valid for queues of this size, a power of two, as long as the value lives.
    pub(super) unsafe fn over(parts: Parts<A>, size: u16, log: Option<UsedLog>) -> Split<A> {
        let mut split = Split { mask: size - 1, parts, next: 0, available_index: 0, published: 0, log };
        let resumed = split.used_field(INDEX).load(Ordering::Acquire);
        (split.next, split.published, split.available_index) = (resumed, resumed, resumed);
        split
    }

    /// Entries.
    #[inline]
    pub(super) fn size(&self) -> u16 {
        self.mask + 1
    }

    /// The descriptors.
    #[inline(always)]
    pub(super) fn table(&self) -> Table<A> {
        // SAFETY: the part is valid, aligned, and has as many descriptors as there are entries.
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
        // SAFETY: the part is valid.
        unsafe { &*self.parts.available_event }
    }

    /// How many entries from `next + skip` on are available.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    #[inline]
    pub(super) fn available(&mut self, skip: u16) -> Result<u16, Violation> {
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

    /// The driver's index at this moment, unchecked: it must not be used to read entries.
    #[inline]
    pub(super) fn driver_index(&self) -> u16 {
        self.available_field(INDEX).load(Ordering::Relaxed)
    }

    /// Whether an entry is available, without touching shared memory if one is known of.
    #[inline]
    pub(super) fn waiting(&self) -> bool {
        self.available_index != self.next || self.driver_index() != self.next
    }

    /// The head of the chain at `next + skip`, which [`Split::available`] reported.
    #[inline]
    pub(super) fn head(&self, skip: u16) -> Result<u16, Violation> {
        let entry = self.next.wrapping_add(skip) & self.mask;
        let head = self.available_field(2 + entry as usize).load(Ordering::Relaxed);
        if head <= self.mask { Ok(head) } else { Err(Violation::Head { head, size: self.size() }) }
    }

    /// Completes the chain with this head, the next in order, with `len` bytes written into it. The driver sees it
    /// after [`Split::publish`].
    #[inline]
    pub(super) fn complete(&mut self, head: u16, len: u32) {
        let entry = (self.next & self.mask) as usize;
        // SAFETY: the part has two words for each entry, and `entry` is below the size.
        let [element, bytes] = unsafe { [0, 1].map(|at| &*self.parts.elements.add(2 * entry + at)) };
        element.store(head.into(), Ordering::Relaxed);
        bytes.store(len, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    /// Undoes unpublished completions from entry `base` on: those buffers are available again.
    pub(super) fn take_back(&mut self, base: u16) {
        if let Some(log) = &self.log {
            self.mark_elements(log, base);
        }
        self.next = base;
    }

    /// Publishes all completed entries.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published != self.next {
            let before = std::mem::replace(&mut self.published, self.next);
            // Release: elements and the bytes in buffers are visible before the index that publishes them (2.7.8.2).
            self.used_field(INDEX).store(self.next, Ordering::Release);
            if let Some(log) = &self.log {
                self.mark_elements(log, before);
                self.mark_field(INDEX);
            }
            // The index must be visible before the driver's request is read (2.7.7.2, 2.7.10): otherwise the driver
            // could ask for a notification, see the old index and sleep, while we read its old request.
            A::fence(Ordering::SeqCst);
        }
    }

    /// The entry that the driver asks to be notified of: `used_event`, after the available entries (virtio 1.2, section
    /// 2.7.7).
    #[inline]
    pub(super) fn used_event(&self) -> u16 {
        self.available_field(2 + self.mask as usize + 1).load(Ordering::Relaxed)
    }

    /// Whether the driver's flag asks for notifications.
    #[inline]
    pub(super) fn interrupts(&self) -> bool {
        self.available_field(FLAGS).load(Ordering::Relaxed) & NO_INTERRUPT == 0
    }

    /// Asks the driver to kick when this entry becomes available.
    pub(super) fn set_available_event(&self, entry: u16) {
        self.available_event().store(entry, Ordering::Relaxed);
        // The number of this field among those of the used ring.
        self.mark_field(2 + 4 * (self.mask as usize + 1));
    }

    /// Enables or suppresses kicks by the flag.
    pub(super) fn set_kicks(&self, wanted: bool) {
        self.used_field(FLAGS).store(if wanted { 0 } else { NO_NOTIFY }, Ordering::Relaxed);
        self.mark_field(FLAGS);
    }

    /// Logs the used elements from entry `base` on, after they were written.
    #[cold]
    fn mark_elements(&self, log: &UsedLog, base: u16) {
        let (first, size) = ((base & self.mask) as usize, self.size() as usize);
        let count = usize::from(self.next.wrapping_sub(base));
        let to_end = count.min(size - first);
        for (entry, count) in [(first, to_end), (0, count - to_end)] {
            log.mark(ELEMENTS + 8 * entry, 8 * count);
        }
    }

    /// Logs a field of the used ring, after it was written. Fields have two bytes and are numbered in that unit.
    #[inline]
    fn mark_field(&self, at: usize) {
        if let Some(log) = &self.log {
            log.mark(2 * at, 2);
        }
    }
}
