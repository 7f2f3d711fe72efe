//! The layout of a split virtqueue (virtio 1.2, section 2.7): three arrays in guest memory, four indices, and how they
//! are read and written.
//!
//! Buffers are always completed in the order in which they became available. So the state of a queue is one number,
//! `used.idx`, which a restarted backend finds in the guest's memory.

use super::chain::{self, Direction};
use super::format::{Format, Mapped, Request};
use super::layout::{Layout, MAX_SIZE};
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::table::Table;
use super::violation::Violation;
use crate::access::{Processor, Word, Words};
use std::sync::atomic::Ordering;

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
fn used_bytes(size: u16) -> u64 {
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
        let part = |name, address, len, align| memory.part(name, address, len, align);
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
pub(crate) struct Split<A: Words = Processor> {
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

    /// The head of the chain at `next + skip`, which [`Split::available`] reported.
    #[inline]
    pub(super) fn head(&self, skip: u16) -> Result<u16, Violation> {
        let entry = self.next.wrapping_add(skip) & self.mask;
        let head = self.available_field(2 + entry as usize).load(Ordering::Relaxed);
        if head <= self.mask { Ok(head) } else { Err(Violation::Head { head, size: self.size() }) }
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

    /// Writes the flags of the used ring.
    fn set_flags(&self, flags: u16) {
        self.used_field(FLAGS).store(flags, Ordering::Relaxed);
        self.mark_field(FLAGS);
    }
}

impl<A: Words> Format for Split<A> {
    /// The head descriptor.
    type Chain = u16;

    const COUNTS: bool = true;

    #[inline(always)]
    fn fence(order: Ordering) {
        A::fence(order);
    }

    #[inline(always)]
    fn entries(_chain: u16) -> u16 {
        1
    }

    #[inline]
    fn size(&self) -> u16 {
        self.mask + 1
    }

    #[inline(always)]
    fn next(&self) -> u16 {
        self.next
    }

    #[inline(always)]
    fn published(&self) -> u16 {
        self.published
    }

    fn base(&self) -> u32 {
        self.next.into()
    }

    #[inline]
    fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        let seen = self.available_index.wrapping_sub(self.next);
        if seen > skip {
            return Ok(seen - skip);
        }
        self.refresh()?;
        Ok(self.available_index.wrapping_sub(self.next) - skip)
    }

    #[inline]
    fn holds_more_than(&self, count: u16) -> bool {
        self.driver_index().wrapping_sub(self.next) > count
    }

    #[inline]
    fn driver_index(&self) -> u16 {
        self.available_field(INDEX).load(Ordering::Relaxed)
    }

    #[inline]
    fn waiting(&self) -> bool {
        self.available_index != self.next || self.driver_index() != self.next
    }

    #[inline]
    fn walk(
        &self,
        skip: u16,
        direction: Direction,
        indirect: bool,
        memory: &GuestMemory,
        buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<u16, Violation> {
        let head = self.head(skip)?;
        chain::walk(self.table(), head, direction, indirect, memory, buffer)?;
        Ok(head)
    }

    #[inline]
    fn complete(&mut self, head: u16, len: u32) {
        let entry = (self.next & self.mask) as usize;
        // SAFETY: the part has two words for each entry, and `entry` is below the size.
        let [element, bytes] = unsafe { [0, 1].map(|at| &*self.parts.elements.add(2 * entry + at)) };
        element.store(head.into(), Ordering::Relaxed);
        bytes.store(len, Ordering::Relaxed);
        self.next = self.next.wrapping_add(1);
    }

    fn take_back(&mut self, base: u16) {
        if let Some(log) = &self.log {
            self.mark_elements(log, base);
        }
        self.next = base;
    }

    #[inline]
    fn publish(&mut self) {
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

    #[inline]
    fn request(&self, event_idx: bool) -> Request {
        if event_idx {
            Request::Entry(self.event())
        } else if self.available_field(FLAGS).load(Ordering::Relaxed) & NO_INTERRUPT == 0 {
            Request::Every
        } else {
            Request::None
        }
    }

    /// `used_event`, after the available entries (virtio 1.2, section 2.7.7).
    #[inline]
    fn event(&self) -> u16 {
        self.available_field(2 + self.mask as usize + 1).load(Ordering::Relaxed)
    }

    fn enable_kicks(&mut self, event_idx: bool, skip: u16) {
        if event_idx {
            self.available_event().store(self.next.wrapping_add(skip), Ordering::Relaxed);
            // The number of this field among those of the used ring.
            self.mark_field(2 + 4 * (self.mask as usize + 1));
        } else {
            self.set_flags(0);
        }
    }

    fn disable_kicks(&mut self, event_idx: bool) {
        // With EVENT_IDX nothing is written: the driver has passed the requested entry or will once, and kicks then
        // stop by themselves.
        if !event_idx {
            self.set_flags(NO_NOTIFY);
        }
    }
}

impl Mapped for Split {
    fn device_area(size: u16) -> u64 {
        used_bytes(size)
    }

    fn map(layout: &Layout, log: Option<UsedLog>, memory: &GuestMemory) -> Result<Split, Violation> {
        let parts = Parts::find(layout, memory)?;
        // SAFETY: the parts were just found in the memory.
        Ok(unsafe { Split::over(parts, layout.size, log) })
    }
}
