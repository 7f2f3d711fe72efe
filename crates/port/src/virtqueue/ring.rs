//! A split virtqueue (virtio 1.2, section 2.7) seen from the device's side: three arrays in guest memory, four indices.
//!
//! Buffers are completed in the order in which they came, always. So the state of a queue is one number, `used.idx`, and a
//! restarted backend finds it in the guest's memory.

#[cfg(test)]
mod models;
#[cfg(test)]
mod proofs;

use super::log::UsedLog;
use super::memory::GuestMemory;
use super::violation::Violation;
use crate::access::{self, Processor, Word, Words};
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as Standing;
use fairlane_core::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of a queue at most (virtio 1.2, section 2.7).
pub const MAX_SIZE: u16 = 32768;

/// A call that is not urgent comes no sooner than this after the last. A call interrupts the guest, the dearest thing that
/// happens to it: with one a large frame, TCP between two User-Mode Linux guests was a fifth slower than with 200 us. Network
/// cards moderate their interrupts in the same way.
pub const HOLD: Nanos = Nanos::from_micros(200);

/// VRING_DESC_F_NEXT
const NEXT: u16 = 1;
/// VRING_DESC_F_WRITE
const WRITE: u16 = 2;
/// VRING_DESC_F_INDIRECT
const INDIRECT: u16 = 4;
/// VRING_USED_F_NO_NOTIFY
const NO_NOTIFY: u16 = 1;
/// VRING_AVAIL_F_NO_INTERRUPT
const NO_INTERRUPT: u16 = 1;

/// Fields of the used ring, of two bytes each, and where its elements begin, in bytes (virtio 1.2, section 2.7.8).
const FLAGS: usize = 0;
const INDEX: usize = 1;
const ELEMENTS: usize = 4;

/// Words of 64 bits of a descriptor, and bytes: `struct virtq_desc`.
const DESCRIPTOR: usize = 2;
const DESCRIPTOR_BYTES: usize = 16;

/// A descriptor as it was read.
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    /// What two words say: the address, and in the second from the low bits on length, flags and the next index.
    #[inline(always)]
    fn parse([address, rest]: [u64; DESCRIPTOR]) -> Descriptor {
        Descriptor { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

/// Who may touch a chain's buffers: the guest transmits into our hands, or lends us room to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The device reads (transmit queue).
    Read,
    /// The device writes (receive queue).
    Write,
}

/// Where a queue lies, in the frontend's addresses, and what was negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Entries, a power of two.
    pub size: u16,
    /// Descriptor table.
    pub descriptors: u64,
    /// Driver area.
    pub available: u64,
    /// Device area.
    pub used: u64,
    /// VIRTIO_RING_F_EVENT_IDX
    pub event_idx: bool,
    /// VIRTIO_RING_F_INDIRECT_DESC
    pub indirect: bool,
}

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

/// A running queue. All pointers were checked against the memory that [`Ring::new`] was given, and hold while it does.
pub struct Ring<A: Words = Processor> {
    mask: u16,
    parts: Parts<A>,
    event_idx: bool,
    indirect: bool,
    /// First available entry that is not completed yet, and so also the next used entry to write.
    next: u16,
    /// The driver's index as last read.
    available_index: u16,
    /// Our index as the driver sees it.
    published: u16,
    /// Notifications are wanted from the driver.
    armed: bool,
    call: Option<Arc<Notifier>>,
    /// Where writes to the used ring are logged, while the guest is moved.
    log: Option<UsedLog>,
    /// Up to where the driver was called or did not wish to be.
    told: u16,
    /// Until when a call that can wait waits: [`HOLD`] after the last one.
    quiet_until: Nanos,
}

// SAFETY: the pointers lead into a mapping that may be used from any thread; a ring is used by one at a time.
unsafe impl<A: Words> Send for Ring<A> {}

impl Ring {
    /// A queue that goes on where `used.idx` says, writes to `call` when the driver wants to know, and logs to `log` what it
    /// writes into the used ring.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub fn new(
        layout: Layout,
        call: Option<Arc<Notifier>>,
        log: Option<UsedLog>,
        memory: &GuestMemory,
    ) -> Result<Ring, Violation> {
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
        let parts = Parts {
            descriptors: descriptors.cast(),
            available: available.cast(),
            used: used.cast(),
            elements: used.wrapping_add(ELEMENTS).cast(),
            available_event: used.wrapping_add(ELEMENTS + 8 * usize::from(size)).cast(),
        };
        // SAFETY: each part was just found to lie in the memory with as many bytes as it has, aligned to its words.
        Ok(unsafe { Ring::over(parts, layout, call, log) })
    }
}

impl<A: Words> Ring<A> {
    /// The same where the parts of the layout are already found.
    ///
    /// # Safety
    /// The parts are there for queues of the layout's size, a power of two, as long as the ring.
    pub unsafe fn over(
        parts: Parts<A>,
        Layout { size, event_idx, indirect, .. }: Layout,
        call: Option<Arc<Notifier>>,
        log: Option<UsedLog>,
    ) -> Ring<A> {
        let mut ring = Ring {
            mask: size - 1,
            parts,
            event_idx,
            indirect,
            next: 0,
            available_index: 0,
            published: 0,
            armed: true,
            call,
            log,
            told: 0,
            quiet_until: Nanos(0),
        };
        let resumed = ring.used_index().load(Ordering::Acquire);
        (ring.next, ring.published, ring.told, ring.available_index) = (resumed, resumed, resumed, resumed);
        ring.disarm();
        ring
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// The first entry that is not completed: what GET_VRING_BASE asks for.
    pub fn base(&self) -> u16 {
        self.next
    }

    // Each field of the ring headers is an atomic: the driver writes them on another processor.
    #[inline]
    fn available_field(&self, at: usize) -> &A::Half {
        // SAFETY: `at` is at most 2 + size, which the part has.
        unsafe { &*self.parts.available.add(at) }
    }

    #[inline]
    fn used_field(&self, at: usize) -> &A::Half {
        // SAFETY: `at` is FLAGS or INDEX, which the part has.
        unsafe { &*self.parts.used.add(at) }
    }

    #[inline]
    fn used_index(&self) -> &A::Half {
        self.used_field(INDEX)
    }

    /// `avail_event` (virtio 1.2, section 2.7.8).
    #[inline]
    fn available_event(&self) -> &A::Half {
        // SAFETY: the part is there.
        unsafe { &*self.parts.available_event }
    }

    /// Its number among the fields of the used ring.
    #[inline]
    fn event_field(&self) -> usize {
        2 + 4 * (self.mask as usize + 1)
    }

    /// `used_event`, behind the available entries (virtio 1.2, section 2.7.7).
    #[inline]
    fn used_event(&self) -> &A::Half {
        self.available_field(2 + self.mask as usize + 1)
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
        let index = self.available_field(1).load(Ordering::Acquire);
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

    /// Whether an entry is available, without touching shared state if one is known of.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.available_index != self.next || self.available_field(1).load(Ordering::Relaxed) != self.next
    }

    /// The head of the chain at `next + skip`, which [`Ring::available`] said is there.
    #[inline]
    pub fn head(&self, skip: u16) -> Result<u16, Violation> {
        let entry = self.next.wrapping_add(skip) & self.mask;
        let head = self.available_field(2 + entry as usize).load(Ordering::Relaxed);
        if head <= self.mask { Ok(head) } else { Err(Violation::Head { head, size: self.size() }) }
    }

    /// Walks a chain and gives each buffer's place to `buffer`, which answers whether it wants more.
    ///
    /// Every descriptor is read once. A buffer that crosses from one memory region into the next comes in pieces. None is without
    /// bytes, so who bounds the pieces that it takes bounds the descriptors that are walked.
    ///
    /// # Errors
    /// What the chain breaks, or what `buffer` says.
    #[inline]
    pub fn walk(
        &self,
        head: u16,
        direction: Direction,
        memory: &GuestMemory,
        mut buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let mut table = self.parts.descriptors;
        let mut last = u32::from(self.mask);
        let mut indirect = false;
        let mut index = found(head, last)?;
        // A chain is never longer than its table, so this also ends chains that run in circles.
        let mut left = last;
        loop {
            // SAFETY: `index` was found in a table that was checked to lie in guest memory.
            let Descriptor { address, len, flags, next } = unsafe { descriptor::<A>(table, index as usize) };
            if flags & INDIRECT != 0 {
                if !self.indirect {
                    return Err(Violation::NotNegotiated);
                }
                if indirect || flags & NEXT != 0 || len == 0 || !len.is_multiple_of(16) || len / 16 > MAX_SIZE.into() {
                    return Err(Violation::Indirect { flags, len });
                }
                match memory.guest(address, len) {
                    Some((start, whole)) if whole == len => table = start.cast_const().cast(),
                    _ => return Err(Violation::Buffer { address, len }),
                }
                (indirect, last, index, left) = (true, len / 16 - 1, 0, len / 16 - 1);
                continue;
            }
            if (flags & WRITE != 0) != (direction == Direction::Write) {
                return Err(Violation::Direction { wanted_writable: direction == Direction::Write });
            }
            if len == 0 {
                return Err(Violation::EmptyBuffer);
            }
            let (mut at, mut rest) = (address, len);
            loop {
                let (start, here) = memory.guest(at, rest).ok_or(Violation::Buffer { address, len })?;
                buffer(start, here)?;
                (at, rest) = (at.wrapping_add(here.into()), rest - here);
                if rest == 0 {
                    break;
                }
            }
            if flags & NEXT == 0 {
                return Ok(());
            }
            // Here, so that it costs nothing where a frame is in one piece.
            index = found(next, last)?;
            if left == 0 {
                return Err(Violation::EndlessChain);
            }
            left -= 1;
        }
    }

    /// Completes the chain with this head, the next in order, `len` bytes written into it. Seen by the driver after
    /// [`Ring::publish`].
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

    /// Shows the driver all that was completed, and calls it if it wants to know. Within [`HOLD`] of the last call it is called
    /// only if that is urgent, or half of the queue is to be told of. Answers when to publish again for the sake of a call that
    /// was held back; [`Nanos::NEVER`] if none was.
    #[inline]
    pub fn publish(&mut self, now: Nanos, urgent: bool) -> Nanos {
        if self.told == self.next {
            return Nanos::NEVER;
        }
        if self.published != self.next {
            let before = std::mem::replace(&mut self.published, self.next);
            // Release: elements and the bytes in buffers are visible before the index that hands them over (2.7.8.2).
            self.used_index().store(self.next, Ordering::Release);
            if let Some(log) = &self.log {
                self.mark_elements(log, before);
                self.mark_field(INDEX);
            }
            // The index must be visible before the driver's wish is read (2.7.7.2, 2.7.10): otherwise it could ask to be
            // called, see the old index and sleep, while we saw its old wish.
            A::fence(Ordering::SeqCst);
        }
        let untold = self.next.wrapping_sub(self.told);
        let wanted = if self.event_idx {
            let event = self.used_event().load(Ordering::Relaxed);
            needs_event(event, self.next, self.told)
        } else {
            self.available_field(0).load(Ordering::Relaxed) & NO_INTERRUPT == 0
        };
        if wanted {
            if now < self.quiet_until && !urgent && untold < self.size() / 2 {
                return self.quiet_until;
            }
            self.quiet_until = now + HOLD;
            self.call();
        }
        self.told = self.next;
        Nanos::NEVER
    }

    /// How the driver stands: entries that it has not taken, and what changes whenever it takes some. Where it stands it
    /// says with each wish to be called, which has an index with EVENT_IDX alone (2.7.7): without, nothing is known.
    pub fn standing(&self) -> Standing {
        if !self.event_idx {
            return Standing::default();
        }
        let event = self.used_event().load(Ordering::Relaxed);
        let available = self.available_field(1).load(Ordering::Relaxed);
        Standing {
            waiting: self.published.wrapping_sub(event).into(),
            taken: u32::from(event) << 16 | u32::from(available),
        }
    }

    /// Calls the driver whatever it wants.
    pub fn call(&self) {
        if let Some(call) = &self.call {
            call.notify();
        }
    }

    /// Asks the driver to kick when the entry at `next + skip` becomes available. True if it is already.
    pub fn arm(&mut self, skip: u16) -> bool {
        self.armed = true;
        let target = self.next.wrapping_add(skip);
        if self.event_idx {
            self.available_event().store(target, Ordering::Relaxed);
            self.mark_field(self.event_field());
        } else {
            self.used_field(FLAGS).store(0, Ordering::Relaxed);
            self.mark_field(FLAGS);
        }
        // The wish must be visible before the index is read, the mirror image of `publish`.
        A::fence(Ordering::SeqCst);
        let index = self.available_field(1).load(Ordering::Relaxed);
        index.wrapping_sub(self.next) > skip
    }

    /// Kicks are not needed: we look by ourselves.
    pub fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            // With EVENT_IDX the wish stands where the driver passed it or will once; kicks stop by themselves.
            if !self.event_idx {
                self.used_field(FLAGS).store(NO_NOTIFY, Ordering::Relaxed);
                self.mark_field(FLAGS);
            }
        }
    }
}

/// Whether the driver, who wishes to be told of the entry `event`, is to be told now that the index is `next`, if it was `before` when it
/// last was (`vring_need_event` of virtio 1.2, section 2.7.7).
#[inline(always)]
fn needs_event(event: u16, next: u16, before: u16) -> bool {
    next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(before)
}

/// The descriptor that a driver names, of a table whose last one is known.
#[inline(always)]
fn found(next: u16, last: u32) -> Result<u32, Violation> {
    let index = u32::from(next);
    if index <= last { Ok(index) } else { Err(Violation::Next { next, entries: last + 1 }) }
}

/// Reads a descriptor of a table, once: the driver may write to it meanwhile, and only what is answered is used.
///
/// # Safety
/// The table has more than `index` descriptors. The queue's own is aligned to its words; an indirect one may be anywhere.
#[inline(always)]
unsafe fn descriptor<A: Words>(table: *const A::Long, index: usize) -> Descriptor {
    if table.is_aligned() {
        // SAFETY: both words are within the table, and aligned.
        return Descriptor::parse(unsafe {
            let start = table.add(DESCRIPTOR * index);
            [(*start).load(Ordering::Relaxed), (*start.add(1)).load(Ordering::Relaxed)]
        });
    }
    // SAFETY: as above, and bytes are always aligned.
    unsafe { unaligned(table.cast::<u8>().add(DESCRIPTOR_BYTES * index)) }
}

/// The same for one at any address.
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
