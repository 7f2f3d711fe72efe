//! The layout of a packed virtqueue (virtio 1.2, section 2.8): one ring of descriptors, which driver and device overwrite
//! in turns, and an event suppression structure for each side.
//!
//! An entry is a descriptor in the ring. Here entries are numbered without end, as in a split queue; the number's lowest
//! bits are the place in the ring, and the next bit tells whether the ring wrap counter is 1 (the bit is 0) or 0. So
//! only rings whose size is a power of two are served, which all drivers ask for.
//!
//! Unlike a split queue's, this format holds no index from which a restarted backend could resume; `resume.rs` finds the
//! entry in the descriptors.

mod resume;
mod ring;

use super::chain::{self, Direction, INDIRECT, NEXT, WRITE};
use super::format::{Format, Mapped, Request};
use super::layout::{Layout, MAX_SIZE};
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::table::DESCRIPTOR_BYTES;
use super::violation::Violation;
use crate::access::{Processor, Word, Words};
pub(super) use ring::Parts;
use ring::{Descriptor, Event, Places};
use std::sync::atomic::Ordering;

/// Bytes of an event suppression structure (2.8.14).
const EVENT_BYTES: u64 = 4;

/// A chain that was walked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chain {
    /// Its buffer ID.
    pub(super) id: u16,
    /// Its descriptors in the ring.
    pub(super) entries: u16,
}

/// A used descriptor to be written.
#[derive(Clone, Copy, Default)]
struct Used {
    chain: Chain,
    len: u32,
}

/// Where writes are logged while the guest migrates.
struct Logs {
    /// Used descriptors.
    descriptors: UsedLog,
    /// The device area.
    device: UsedLog,
}

/// A packed virtqueue in guest memory.
pub(crate) struct Packed<A: Words = Processor> {
    places: Places,
    parts: Parts<A>,
    /// VIRTIO_F_IN_ORDER
    in_order: bool,
    /// The first entry that is not completed.
    next: u16,
    /// The first entry that the driver may not see as used yet.
    published: u16,
    /// The descriptor that [`Format::available`] found last, without its address.
    head: u64,
    /// What is to be published: the first `pending`. It is not written before, as it overwrites available descriptors,
    /// which may be taken back.
    used: Box<[Used]>,
    pending: usize,
    logs: Option<Logs>,
}

// SAFETY: the pointers lead into a mapping that may be used from any thread; a queue is used by one at a time.
unsafe impl<A: Words> Send for Packed<A> {}

impl<A: Words> Packed<A> {
    /// A queue that begins at the first entry.
    ///
    /// # Safety
    /// The parts are valid for queues of the layout's size, a power of two, as long as the value lives.
    pub(super) unsafe fn over(parts: Parts<A>, layout: &Layout) -> Packed<A> {
        let places = Places::of(layout.size);
        let used = vec![Used::default(); layout.size.into()].into_boxed_slice();
        let (in_order, head, pending, logs) = (layout.in_order, 0, 0, None);
        Packed { places, parts, in_order, next: 0, published: 0, head, used, pending, logs }
    }

    /// What we ask the driver for.
    fn device(&self) -> &A::Word {
        // SAFETY: the part is valid.
        unsafe { &*self.parts.device }
    }

    /// A word of the descriptor at an entry's place: its address, or all else.
    #[inline(always)]
    fn word(&self, entry: u16, at: usize) -> &A::Long {
        // SAFETY: the part has two words for each place.
        unsafe { &*self.parts.descriptors.add(2 * self.places.place(entry) + at) }
    }

    /// Entries from the first on that the driver may have made available. The others' places hold entries that are
    /// not published yet.
    #[inline(always)]
    fn most(&self) -> u16 {
        self.size() - self.next.wrapping_sub(self.published)
    }

    /// The descriptor at the entry `skip` after the first, without its address, if it is available.
    #[inline(always)]
    fn look(&self, skip: u16) -> Option<u64> {
        let entry = self.next.wrapping_add(skip);
        // Acquire: pairs with the driver's write barrier before it wrote the flags of a chain's first descriptor
        // (2.8.21.1), so that its address and the chain's other descriptors are at least as new. The rest of this
        // descriptor comes with its flags in one read.
        let found = self.word(entry, 1).load(Ordering::Acquire);
        (self.places.is_available(found, entry) && skip < self.most()).then_some(found)
    }

    /// Writes a used descriptor at an entry. Its address is ignored by drivers. The other descriptors that it stands for
    /// are marked, the last first, which drivers ignore, too: [`Packed::resume`] needs them.
    #[inline(always)]
    fn write(&self, entry: u16, Used { chain, len }: Used, order: Ordering) {
        for skip in (1..chain.entries).rev() {
            let other = entry.wrapping_add(skip);
            let flags = self.places.used(other);
            self.word(other, 1).store(Descriptor { len: 0, id: chain.id, flags }.encode(), Ordering::Relaxed);
        }
        let flags = self.places.used(entry) | if len > 0 { WRITE } else { 0 };
        self.word(entry, 1).store(Descriptor { len, id: chain.id, flags }.encode(), order);
    }

    /// Asks for something in the device area.
    fn ask(&self, event: Event) {
        self.device().store(event.encode(), Ordering::Relaxed);
        if let Some(logs) = &self.logs {
            logs.device.mark(0, EVENT_BYTES as usize);
        }
    }

    /// Logs the used descriptors from an entry on.
    #[cold]
    fn mark_used(&self, logs: &Logs, mut entry: u16) {
        while entry != self.next {
            logs.descriptors.mark(DESCRIPTOR_BYTES * self.places.place(entry), DESCRIPTOR_BYTES);
            entry = entry.wrapping_add(1);
        }
    }
}

impl<A: Words> Format for Packed<A> {
    type Chain = Chain;

    const COUNTS: bool = false;

    #[inline(always)]
    fn fence(order: Ordering) {
        A::fence(order);
    }

    #[inline(always)]
    fn entries(chain: Chain) -> u16 {
        chain.entries
    }

    #[inline]
    fn size(&self) -> u16 {
        self.places.size()
    }

    #[inline(always)]
    fn next(&self) -> u16 {
        self.next
    }

    #[inline(always)]
    fn published(&self) -> u16 {
        self.published
    }

    /// Twice the place and wrap counter: of the next available entry, and of the next used one.
    fn base(&self) -> u32 {
        let half = u32::from(self.places.offset(self.next));
        half << 16 | half
    }

    #[inline]
    fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        let found = self.look(skip);
        self.head = found.unwrap_or(self.head);
        Ok(found.is_some().into())
    }

    #[inline]
    fn holds_more_than(&self, count: u16) -> bool {
        self.look(count).is_some()
    }

    /// Descriptors become available in the ring's order, so a search finds the last. A hostile driver's may be any.
    fn driver_index(&self) -> u16 {
        let (mut low, mut high) = (0, self.most());
        while low < high {
            let middle = low.midpoint(high);
            (low, high) = if self.look(middle).is_some() { (middle + 1, high) } else { (low, middle) };
        }
        self.next.wrapping_add(low)
    }

    #[inline]
    fn waiting(&self) -> bool {
        self.look(0).is_some()
    }

    #[inline]
    fn walk(
        &self,
        skip: u16,
        direction: Direction,
        indirect: bool,
        memory: &GuestMemory,
        mut buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<Chain, Violation> {
        let (mut found, mut entry, mut entries) = (self.head, self.next.wrapping_add(skip), 1);
        loop {
            let Descriptor { len, id, flags } = Descriptor::parse(found);
            let address = self.word(entry, 0).load(Ordering::Relaxed);
            if flags & INDIRECT != 0 {
                let table = chain::table::<A>(address, len, flags, indirect, memory)?;
                for index in 0..=table.last {
                    // SAFETY: the table has that many descriptors.
                    let [address, rest] = unsafe { table.read(index) };
                    let Descriptor { len, flags, .. } = Descriptor::parse(rest);
                    if flags & INDIRECT != 0 {
                        return Err(Violation::Indirect { flags, len });
                    }
                    chain::buffer(address, len, flags, direction, memory, &mut buffer)?;
                }
            } else {
                chain::buffer(address, len, flags, direction, memory, &mut buffer)?;
            }
            if flags & NEXT == 0 {
                return Ok(Chain { id, entries });
            }
            // A chain ends before the entries that it follows.
            if skip + entries >= self.most() {
                return Err(Violation::EndlessChain);
            }
            (entry, entries) = (entry.wrapping_add(1), entries + 1);
            found = self.word(entry, 1).load(Ordering::Relaxed);
        }
    }

    /// With IN_ORDER, chains that nothing was written into become used by the descriptor of the last of them (2.8.9).
    #[inline]
    fn complete(&mut self, chain: Chain, len: u32) {
        self.next = self.next.wrapping_add(chain.entries);
        if self.in_order && len == 0 && self.pending > 0 {
            let last = &mut self.used[self.pending - 1];
            if last.len == 0 {
                last.chain = Chain { id: chain.id, entries: last.chain.entries + chain.entries };
                return;
            }
        }
        self.used[self.pending] = Used { chain, len };
        self.pending += 1;
    }

    fn take_back(&mut self, base: u16) {
        while self.next != base && self.pending > 0 {
            self.pending -= 1;
            self.next = self.next.wrapping_sub(self.used[self.pending].chain.entries);
        }
    }

    #[inline]
    fn publish(&mut self) {
        let Some((first, others)) = self.used[..self.pending].split_first() else { return };
        let mut entry = self.published.wrapping_add(first.chain.entries);
        for used in others {
            self.write(entry, *used, Ordering::Relaxed);
            entry = entry.wrapping_add(used.chain.entries);
        }
        // Release: the bytes in buffers and the other used descriptors are visible before the first of them, which the
        // driver takes first (2.8.16).
        self.write(self.published, *first, Ordering::Release);
        if let Some(logs) = &self.logs {
            self.mark_used(logs, self.published);
        }
        (self.published, self.pending) = (self.next, 0);
        // As in a split queue: what was published must be visible before the driver's request is read.
        A::fence(Ordering::SeqCst);
    }

    #[inline]
    fn request(&self, event_idx: bool) -> Request {
        // One read of both fields.
        // SAFETY: the part is valid.
        let word = unsafe { &*self.parts.driver }.load(Ordering::Relaxed);
        match Event::of(word) {
            Event::Disable => Request::None,
            Event::Descriptor(offset) if event_idx => Request::Entry(self.places.last(offset, self.next)),
            _ => Request::Every,
        }
    }

    fn event(&self) -> u16 {
        // SAFETY: the part is valid.
        let word = unsafe { &*self.parts.driver }.load(Ordering::Relaxed);
        self.places.last(word as u16, self.next)
    }

    fn enable_kicks(&mut self, event_idx: bool, skip: u16) {
        let entry = self.next.wrapping_add(skip);
        self.ask(if event_idx { Event::Descriptor(self.places.offset(entry)) } else { Event::Enable });
    }

    fn disable_kicks(&mut self, _event_idx: bool) {
        self.ask(Event::Disable);
    }
}

impl Mapped for Packed {
    fn device_area(_size: u16) -> u64 {
        EVENT_BYTES
    }

    fn map(layout: &Layout, log: Option<UsedLog>, memory: &GuestMemory) -> Result<Packed, Violation> {
        let parts = Parts::find(layout, memory)?;
        // SAFETY: the parts were just found in the memory.
        let mut packed = unsafe { Packed::over(parts, layout) };
        packed.logs = log.and_then(|device| {
            // The frontend names the device area's address only.
            let descriptors = device.elsewhere(memory.guest_of(layout.descriptors)?);
            Some(Logs { descriptors, device })
        });
        packed.resume();
        Ok(packed)
    }
}
