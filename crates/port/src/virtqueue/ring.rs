//! A split virtqueue (virtio 1.2, section 2.7) seen from the device's side: three arrays in guest memory, four indices.
//!
//! Buffers are completed in the order in which they came, always. So the state of a queue is one number, `used.idx`, and a
//! restarted backend finds it in the guest's memory.

use super::log::UsedLog;
use super::memory::GuestMemory;
use super::violation::Violation;
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as Standing;
use fairlane_core::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

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

/// A descriptor as it lies in guest memory: `struct virtq_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

/// `struct virtq_used_elem`
#[repr(C)]
#[derive(Clone, Copy)]
struct UsedElement {
    id: u32,
    len: u32,
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

/// A running queue. All pointers were checked against the memory that [`Ring::new`] was given, and hold while it does.
pub struct Ring {
    mask: u16,
    descriptors: *const Descriptor,
    available: *const u16,
    used: *mut u16,
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
unsafe impl Send for Ring {}

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
        let descriptors = part("descriptor table", layout.descriptors, 16 * entries, 16)?.cast::<Descriptor>();
        let available = part("available ring", layout.available, 6 + 2 * entries, 2)?.cast::<u16>();
        let used = part("used ring", layout.used, used_bytes(size), 4)?.cast::<u16>();
        let Layout { event_idx, indirect, .. } = layout;
        let mut ring = Ring {
            mask: size - 1,
            descriptors,
            available,
            used,
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
        Ok(ring)
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
    fn available_field(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` is at most 2 + size, inside the part checked in `new`, and aligned to 2.
        unsafe { AtomicU16::from_ptr(self.available.cast_mut().add(at)) }
    }

    #[inline]
    fn used_field(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `at` is at most 2 + 4 * size, inside the part checked in `new`, and aligned to 2.
        unsafe { AtomicU16::from_ptr(self.used.add(at)) }
    }

    #[inline]
    fn used_index(&self) -> &AtomicU16 {
        self.used_field(INDEX)
    }

    /// `avail_event`, behind the used elements (virtio 1.2, section 2.7.8).
    #[inline]
    fn available_event(&self) -> &AtomicU16 {
        self.used_field(self.event_field())
    }

    #[inline]
    fn event_field(&self) -> usize {
        2 + 4 * (self.mask as usize + 1)
    }

    /// `used_event`, behind the available entries (virtio 1.2, section 2.7.7).
    #[inline]
    fn used_event(&self) -> &AtomicU16 {
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
        let mut table = self.descriptors;
        let mut entries = u32::from(self.size());
        let mut indirect = false;
        let mut index = u32::from(head);
        // A chain is never longer than its table, so this also ends chains that run in circles.
        let mut left = entries;
        loop {
            if index >= entries {
                return Err(Violation::Next { next: index as u16, entries });
            }
            if left == 0 {
                return Err(Violation::EndlessChain);
            }
            left -= 1;
            // SAFETY: `index` is below the entries of a table that was checked to lie in guest memory, aligned to what
            // `Descriptor` needs (the ring's own) or not (an indirect one): hence unaligned. The driver may write to it
            // meanwhile: it is copied once, and only the copy is used.
            let descriptor = unsafe { table.add(index as usize).read_unaligned() };
            let Descriptor { address, len, flags, next } = descriptor;
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
                (indirect, entries, index, left) = (true, len / 16, 0, len / 16);
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
            index = next.into();
        }
    }

    /// Completes the chain with this head, the next in order, `len` bytes written into it. Seen by the driver after
    /// [`Ring::publish`].
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        let entry = (self.next & self.mask) as usize;
        // SAFETY: the elements begin 4 bytes into the used ring, are 8 bytes each, and `entry` is below the size.
        unsafe {
            let elements = self.used.add(2).cast::<UsedElement>();
            elements.add(entry).write_volatile(UsedElement { id: head.into(), len });
        }
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
            fence(Ordering::SeqCst);
        }
        let untold = self.next.wrapping_sub(self.told);
        let wanted = if self.event_idx {
            let event = self.used_event().load(Ordering::Relaxed);
            // vring_need_event
            self.next.wrapping_sub(event).wrapping_sub(1) < untold
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
        fence(Ordering::SeqCst);
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
