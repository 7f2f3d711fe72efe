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

/// Bytes of a slot: a frame of 64 KiB and everything before it. Whole pages, so that the kernel, which sends a frame from
/// its slot, needs no more than the 17 fragments that a packet may have (MAX_SKB_FRAGS).
pub(super) const SLOT: usize = 17 * PAGE;

/// Slots of a block, which the kernel allocates contiguously: this number fills the 512 pages that it allocates for a
/// block best.
pub(super) const BLOCK: usize = 30;

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

/// The slots of one ring, in memory that the owner maps.
pub(super) struct Slots {
    start: *mut u8,
    count: usize,
    place: Place,
}

// SAFETY: the address of a mapping means the same in every thread.
unsafe impl Send for Slots {}

impl Slots {
    /// A ring of `count` slots from `start` on. Its place is that of the former owner, or 0 if there was none.
    ///
    /// # Safety
    /// `start` is the first of `count` slots that stay mapped as long as this lives and that nothing else in this process
    /// uses.
    pub(super) unsafe fn new(start: *mut u8, count: usize, place: Place) -> Slots {
        Slots { start, count, place }
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

    /// The first byte of a slot; numbers wrap around.
    fn slot(&self, number: usize) -> *mut u8 {
        // SAFETY: it is below the mapping's end.
        unsafe { self.start.add(number % self.count * SLOT) }
    }

    fn word(&self, number: usize) -> &AtomicU32 {
        // SAFETY: a slot begins at a page with its status, which both sides read and write atomically.
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

    /// The kernel's header of a frame, in a slot that belongs to the process.
    #[inline]
    pub(super) fn header(&self, number: usize) -> libc::tpacket2_hdr {
        // SAFETY: the header is at the slot's start, and consists of numbers. The kernel does not write to it while the
        // slot is ours.
        unsafe { self.slot(number).cast::<libc::tpacket2_hdr>().read() }
    }

    /// Sets the frame's length in a slot, before it is handed to the kernel.
    #[inline]
    pub(super) fn set_len(&mut self, number: usize, len: u32) {
        // SAFETY: the header is at the slot's start.
        unsafe { (&raw mut (*self.slot(number).cast::<libc::tpacket2_hdr>()).tp_len).write(len) };
    }

    /// All bytes of a slot that belongs to the process.
    ///
    /// # Safety
    /// The kernel has handed it to the process, and does not write to it until it is handed back.
    #[inline]
    pub(super) unsafe fn bytes(&self, number: usize) -> &[u8] {
        #[expect(clippy::disallowed_methods, reason = "the kernel does not write to them")]
        // SAFETY: a slot has SLOT bytes, and the caller guarantees that nobody writes to them.
        unsafe {
            std::slice::from_raw_parts(self.slot(number), SLOT)
        }
    }

    /// [`Slots::bytes`] for writing.
    ///
    /// # Safety
    /// As [`Slots::bytes`].
    #[inline]
    pub(super) unsafe fn bytes_mut(&mut self, number: usize) -> &mut [u8] {
        #[expect(clippy::disallowed_methods, reason = "as above")]
        // SAFETY: as above, and no other reference into the ring lives beside this one.
        unsafe {
            std::slice::from_raw_parts_mut(self.slot(number), SLOT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{TP_STATUS_AVAILABLE, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST, TP_STATUS_USER};

    const COUNT: usize = 7;

    /// A ring in memory that is all zeros, which is the status of a slot that is the kernel's, or free.
    fn ring() -> (Map, Slots) {
        let map = Map::anonymous(COUNT * SLOT);
        // SAFETY: the map has so many slots, and lives as long as they are used.
        let slots = unsafe { Slots::new(map.start(), COUNT, Place::of_process()) };
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
