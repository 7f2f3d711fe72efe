//! A ring of slots that kernel and process hand over to each other, each by the status word at its start (TPACKET_V2:
//! linux/if_packet.h, Documentation/networking/packet_mmap.rst).
//!
//! A process that goes on with another one's ring must find the kernel's place in it, which the kernel does not tell. The first
//! slot that waits is known by its status. For a ring in which none waits there is a [`Place`], which its owner keeps right: a
//! status and the place are stored one after the other, and in the order in which what a process leaves that is killed between the
//! two is right as well. Only of a full ring of received frames a burst may then come last that should be first.

use crate::map::Map;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// The form of a ring: the bytes of a slot, the slots of a block, which the kernel allocates contiguously, and the number of blocks. A
/// block has no more than 512 pages, and nearly as many, as the kernel allocates a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub slot: usize,
    pub block: usize,
    pub blocks: usize,
}

impl Form {
    /// Slots for any frame: of 64 KiB, and everything before it. Whole pages, so that the kernel, which sends a frame from its slot,
    /// needs no more than the 17 fragments that a packet may have (MAX_SKB_FRAGS).
    pub(crate) const fn large(blocks: usize) -> Form {
        Form { slot: 17 * PAGE, block: 30, blocks }
    }

    /// Slots for frames with at most [`SMALL`] bytes after the Ethernet header.
    pub(super) const fn small(blocks: usize) -> Form {
        Form { slot: PAGE / 2, block: 1024, blocks }
    }

    /// Number of slots.
    pub(super) const fn slots(&self) -> usize {
        self.block * self.blocks
    }

    /// Bytes of a block.
    pub(super) const fn block_bytes(&self) -> usize {
        self.block * self.slot
    }

    /// Bytes of the ring.
    pub(super) const fn bytes(&self) -> usize {
        self.slots() * self.slot
    }
}

/// Most bytes after the Ethernet header of a frame in a small slot: the kernel's header, virtio's, and tags take less than the rest.
pub(super) const SMALL: u32 = 1900;

/// Bytes of virtio's header before a frame, as in the tap.
pub(super) const HEADER: usize = 10;

/// A slot's number, in memory that may outlive the process.
pub(crate) struct Place {
    map: Map,
    word: usize,
}

impl Place {
    /// A word of a file of at least a page.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(crate) fn of(file: impl AsFd, word: usize) -> io::Result<Place> {
        Ok(Place { map: Map::of(file, PAGE)?, word })
    }

    /// In memory of this process alone, for tests.
    #[cfg(test)]
    pub(crate) fn of_process() -> Place {
        Place { map: Map::anonymous(PAGE), word: 0 }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: a page has more words, and is only ever accessed in this way.
        unsafe { AtomicU64::from_ptr(self.map.start().cast::<u64>().add(self.word)) }
    }
}

/// A frame that the kernel received. The slot belongs to the process until it is handed over.
pub(super) struct Received<'a> {
    /// Where the slot begins in the ring.
    pub at: usize,
    pub status: u32,
    pub header: libc::tpacket2_hdr,
    /// All bytes of the slot.
    pub bytes: &'a mut [u8],
}

/// A slot that the process fills.
pub(super) struct Filling<'a> {
    bytes: &'a mut [u8],
}

impl Filling<'_> {
    /// All bytes of the slot.
    #[inline]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Hands the slot over to the kernel to be sent: a frame, with virtio's header, of so many bytes.
    #[inline]
    pub(super) fn send(self, len: u32) {
        let slot = self.bytes.as_mut_ptr();
        // SAFETY: the header is at the slot's start.
        unsafe { (&raw mut (*slot.cast::<libc::tpacket2_hdr>()).tp_len).write(len) };
        // SAFETY: as in `Slots::word`.
        unsafe { AtomicU32::from_ptr(slot.cast()) }.store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
    }
}

/// The slots of one ring, in memory that the owner maps.
pub(super) struct Slots {
    start: *mut u8,
    /// Number of slots, and bytes of each.
    count: usize,
    size: usize,
    /// The status of the slot that is next, whose address a poll need not compute.
    next: *mut u32,
    place: Place,
}

// SAFETY: the addresses in a mapping mean the same in every thread.
unsafe impl Send for Slots {}

impl Slots {
    /// A ring of this form from `start` on. Its place is that of the former owner, or 0 if there was none.
    ///
    /// # Safety
    /// `start` is the first of slots that stay mapped as long as this lives and that nothing else in this process uses.
    pub(super) unsafe fn new(start: *mut u8, form: Form, place: Place) -> Slots {
        Slots { start, count: form.slots(), size: form.slot, next: start.cast(), place }
    }

    /// Notes which slot is next.
    #[inline]
    pub(super) fn set_next(&mut self, number: usize) {
        self.next = self.slot(number).cast();
    }

    /// The [status](Slots::status) of the one that is next.
    #[inline]
    pub(super) fn next_status(&self) -> u32 {
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.next) }.load(Ordering::Acquire)
    }

    /// Stores the place: the number of the first slot that is not waiting any more, or not yet.
    #[inline]
    pub(super) fn set_place(&self, number: usize) {
        self.place.word().store(number as u64, Ordering::Release);
    }

    /// The slots whose status `waits`, after another process had the ring; if none does, the range is empty and begins at the
    /// place. Their numbers are those of a second round, so that there are slots before them.
    pub(super) fn find(&self, waits: impl Fn(u32) -> bool) -> Range<usize> {
        let waits = |number: usize| waits(self.status(number));
        let place = self.count + self.place.word().load(Ordering::Acquire) as usize % self.count;
        // All wait if there is none.
        let first = (place..place + self.count).find(|number| waits(*number) && !waits(*number - 1)).unwrap_or(place);
        first..first + (first..first + self.count).take_while(|number| waits(*number)).count()
    }

    /// Number of slots.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Where a slot begins in the ring; numbers wrap around.
    #[inline]
    fn offset(&self, number: usize) -> usize {
        number % self.count * self.size
    }

    /// The first byte of a slot.
    #[inline]
    fn slot(&self, number: usize) -> *mut u8 {
        // SAFETY: it is below the mapping's end.
        unsafe { self.start.add(self.offset(number)) }
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, which both sides read and write atomically. Slots are multiples of half a page.
        unsafe { AtomicU32::from_ptr(self.slot(number).cast()) }
    }

    /// The status, which says whom a slot belongs to. What the kernel wrote into the slot before is visible.
    #[inline]
    pub(super) fn status(&self, number: usize) -> u32 {
        self.word(number).load(Ordering::Acquire)
    }

    /// Hands a slot over by this status. What was written into it before is visible to the kernel.
    #[inline]
    pub(super) fn hand_over(&self, number: usize, status: u32) {
        self.word(number).store(status, Ordering::Release);
    }

    /// What the kernel received into a slot, if it did.
    #[inline]
    pub(super) fn received(&mut self, number: usize) -> Option<Received<'_>> {
        let at = self.offset(number);
        // SAFETY: it is below the mapping's end.
        let slot = unsafe { self.start.add(at) };
        // SAFETY: as in `word`.
        let status = unsafe { AtomicU32::from_ptr(slot.cast()) }.load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: as in `header`: the status says that the slot is ours.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above.
        let Filling { bytes } = unsafe { self.filling(slot) };
        Some(Received { at, status, header, bytes })
    }

    /// Bytes of the ring, from `at` on, that are in slots of the process.
    ///
    /// # Safety
    /// As [`Slots::bytes`].
    #[inline]
    pub(super) unsafe fn part(&self, at: usize, len: usize) -> &[u8] {
        debug_assert!(at + len <= self.count * self.size);
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: the caller guarantees that the slots are ours, and that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.start.add(at), len)
        }
    }

    /// The kernel's header of a frame, in a slot that belongs to the process.
    #[inline]
    pub(super) fn header(&self, number: usize) -> libc::tpacket2_hdr {
        // SAFETY: the header is at the slot's start, and consists of numbers. The kernel does not write to it while the
        // slot is ours.
        unsafe { self.slot(number).cast::<libc::tpacket2_hdr>().read() }
    }

    /// The slot, if it is free: nothing in it waits for the kernel.
    #[inline]
    pub(super) fn free(&mut self, number: usize) -> Option<Filling<'_>> {
        let slot = self.slot(number);
        // SAFETY: as in `word`.
        let status = unsafe { AtomicU32::from_ptr(slot.cast()) }.load(Ordering::Acquire);
        // SAFETY: a free slot belongs to the process.
        (status == libc::TP_STATUS_AVAILABLE).then(|| unsafe { self.filling(slot) })
    }

    /// A slot that waits to be sent, to be filled anew.
    ///
    /// # Safety
    /// As [`Slots::bytes`].
    pub(super) unsafe fn refill(&mut self, number: usize) -> Filling<'_> {
        // SAFETY: the caller guarantees that it is the process's.
        unsafe { self.filling(self.slot(number)) }
    }

    /// # Safety
    /// The slot begins there, and is as in [`Slots::bytes`].
    #[inline]
    unsafe fn filling(&mut self, slot: *mut u8) -> Filling<'_> {
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: a slot has so many bytes, which are ours, and no other reference into the ring lives beside this one.
        let bytes = unsafe { std::slice::from_raw_parts_mut(slot, self.size) };
        Filling { bytes }
    }

    /// All bytes of a slot that belongs to the process.
    ///
    /// # Safety
    /// The kernel has handed it to the process, and does not write to it until it is handed back.
    #[inline]
    pub(super) unsafe fn bytes(&self, number: usize) -> &[u8] {
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: a slot has so many bytes, and the caller guarantees that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.slot(number), self.size)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{TP_STATUS_AVAILABLE, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST, TP_STATUS_USER};

    const COUNT: usize = 7;
    const FORM: Form = Form { slot: PAGE / 2, block: COUNT, blocks: 1 };

    /// A ring in memory that is all zeros, which is the status of a slot that is the kernel's, or free.
    fn ring() -> (Map, Slots) {
        let map = Map::anonymous(FORM.bytes());
        // SAFETY: the map has so many slots, and lives as long as they are used.
        let slots = unsafe { Slots::new(map.start(), FORM, Place::of_process()) };
        (map, slots)
    }

    fn is_of_user(status: u32) -> bool {
        status & TP_STATUS_USER != 0
    }

    /// The kernel has received `received` frames when the process, which has consumed `before` of them, is killed while it consumes
    /// `more`: after each of its stores.
    #[test]
    fn the_first_frame_not_consumed_is_found_wherever_a_process_was_killed() {
        for (before, received, more) in (0..30)
            .flat_map(|before| (before..=before + COUNT).map(move |received| (before, received)))
            .flat_map(|(before, received)| (0..=received - before).map(move |more| (before, received, more)))
        {
            for stores in 0..=more + 1 {
                let (_map, slots) = ring();
                slots.set_place(before);
                (before..received).for_each(|number| slots.hand_over(number, TP_STATUS_USER));
                // As in `Receive::consume`.
                if stores > 0 {
                    slots.set_place(before + more);
                }
                let handed = stores.saturating_sub(1);
                (before..before + handed).for_each(|number| slots.hand_over(number, TP_STATUS_KERNEL));
                let found = slots.find(is_of_user);
                let case = format!("{before} {received} {more} {stores}: {found:?}");
                // A full ring does not tell: a killed process's frames may come last instead of first, as the place says.
                let first =
                    if handed == 0 && received - before == COUNT { before + more * stores } else { before + handed };
                assert_eq!(found.start % COUNT, first % COUNT, "{case}");
                assert_eq!(found.len(), received - before - handed, "{case}");
            }
        }
    }

    /// The process has filled slots, never all, of which the kernel has taken all but `waiting`, and is killed while it fills one more or
    /// gives the last one up.
    #[test]
    fn frames_to_be_sent_are_found_wherever_a_process_was_killed() {
        let waits = |status| status == TP_STATUS_SEND_REQUEST;
        for (filled, waiting) in (1..30).flat_map(|filled| (0..filled.min(COUNT)).map(move |waiting| (filled, waiting)))
        {
            let ring = || {
                let (map, slots) = ring();
                slots.set_place(filled);
                (filled - waiting..filled).for_each(|number| slots.hand_over(number, TP_STATUS_SEND_REQUEST));
                (map, slots)
            };
            let found = |slots: &Slots, sent: usize, count: usize, case: &str| {
                let found = slots.find(waits);
                assert_eq!((found.start % COUNT, found.len()), (sent % COUNT, count), "{case} {filled} {waiting}");
            };
            for stores in 0..=2 {
                if waiting + 1 < COUNT {
                    // As in `Transmit::push`.
                    let (_map, slots) = ring();
                    if stores > 0 {
                        slots.hand_over(filled, TP_STATUS_SEND_REQUEST);
                    }
                    if stores > 1 {
                        slots.set_place(filled + 1);
                    }
                    found(&slots, filled - waiting, waiting + stores.min(1), "push");
                }
                if waiting > 0 {
                    // As in `Transmit::take_last`.
                    let (_map, slots) = ring();
                    if stores > 0 {
                        slots.set_place(filled - 1);
                    }
                    if stores > 1 {
                        slots.hand_over(filled - 1, TP_STATUS_AVAILABLE);
                    }
                    found(&slots, filled - waiting, waiting - stores / 2, "take back");
                }
            }
        }
    }
}
