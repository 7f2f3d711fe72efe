//! The rings that a socket of AF_XDP shares with the kernel: one side adds entries, the other takes them
//! (linux/if_xdp.h, Documentation/networking/af_xdp.rst). The kernel is trusted, but what it wrote becomes visible only
//! with the number that it publishes.
//!
//! A ring outlives the process, with both numbers. Another process that maps it goes on there (`find`).

use crate::map::Map;
use libc::{XDP_RING_NEED_WAKEUP, xdp_ring_offset};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Which ring of a socket.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Where a socket's mappings have it.
    pub place: libc::off_t,
    /// Where its words and entries are.
    pub offsets: xdp_ring_offset,
}

/// A mapped ring with entries of type `T`, as many as a power of two. Numbers of entries only grow, and wrap around.
struct Ring<T> {
    map: Map,
    offsets: xdp_ring_offset,
    mask: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn of(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Ring<T>> {
        let Kind { place, offsets } = kind;
        let map = Map::at(socket, place, offsets.desc as usize + size as usize * size_of::<T>())?;
        Ok(Ring::over(map, offsets, size))
    }

    fn over(map: Map, offsets: xdp_ring_offset, size: u32) -> Ring<T> {
        assert!(size.is_power_of_two());
        Ring { map, offsets, mask: size - 1, entries: PhantomData }
    }

    /// A word at an offset that the kernel named.
    #[inline]
    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the word is within the mapping, before the entries, and both sides access it atomically.
        unsafe { AtomicU32::from_ptr(self.map.start().add(offset as usize).cast()) }
    }

    /// The place of an entry.
    #[inline]
    fn entry(&self, number: u32) -> *mut T {
        let at = self.offsets.desc as usize + (number & self.mask) as usize * size_of::<T>();
        // SAFETY: entries of all masked numbers are within the mapping.
        unsafe { self.map.start().add(at).cast() }
    }

    /// Whether the kernel wants a system call to continue with this ring.
    #[inline]
    fn wants_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that this process adds entries to. The owner adds no more than the ring has entries.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The next entry to be added, and to be published.
    filled: u32,
    published: u32,
}

impl<T: Copy> Producer<T> {
    /// Maps a socket's ring of `size` entries.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn of(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Producer<T>> {
        Ring::of(socket, kind, size).map(Producer::over)
    }

    fn over(ring: Ring<T>) -> Producer<T> {
        let mut producer = Producer { ring, filled: 0, published: 0 };
        producer.find();
        producer
    }

    /// Goes on where another process left the ring. Entries that it did not publish are not there.
    pub(super) fn find(&mut self) {
        self.published = self.ring.word(self.ring.offsets.producer).load(Ordering::Acquire);
        self.filled = self.published;
    }

    /// Has all entries before this one added, which another process wrote and did not publish.
    pub(super) fn find_up_to(&mut self, number: u32) {
        self.find();
        self.filled = number;
    }

    /// The number of the next entry to be added.
    #[inline]
    pub(super) fn filled(&self) -> u32 {
        self.filled
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the kernel does not read an entry before it is published, and reads no more when it published that it
        // took it.
        unsafe { self.ring.entry(self.filled).write(entry) };
        self.filled = self.filled.wrapping_add(1);
    }

    /// Shows the kernel all entries. False if it has seen all of them.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.filled {
            return false;
        }
        self.published = self.filled;
        self.ring.word(self.ring.offsets.producer).store(self.filled, Ordering::Release);
        true
    }

    /// Entries that the kernel has not taken.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.filled.wrapping_sub(self.ring.word(self.ring.offsets.consumer).load(Ordering::Acquire))
    }

    /// Whether the kernel wants a system call to take entries. Checked after [`Producer::publish`].
    #[inline]
    pub(super) fn wants_wakeup(&self) -> bool {
        self.ring.wants_wakeup()
    }
}

/// A ring that this process takes entries from.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// The next entry to be taken, and the next that the kernel had not published when it was asked.
    next: u32,
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    /// Maps a socket's ring of `size` entries.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn of(socket: &OwnedFd, kind: Kind, size: u32) -> io::Result<Consumer<T>> {
        Ring::of(socket, kind, size).map(Consumer::over)
    }

    fn over(ring: Ring<T>) -> Consumer<T> {
        let mut consumer = Consumer { ring, next: 0, seen: 0 };
        consumer.find();
        consumer
    }

    /// Goes on where another process left the ring.
    pub(super) fn find(&mut self) {
        self.next = self.ring.word(self.ring.offsets.consumer).load(Ordering::Acquire);
        self.seen = self.next;
    }

    /// The number of the next entry to be taken.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// How many entries there are, asking the kernel only if it is not known that `wanted` are.
    #[inline]
    pub(super) fn available(&mut self, wanted: u32) -> u32 {
        if self.seen.wrapping_sub(self.next) < wanted {
            self.seen = self.ring.word(self.ring.offsets.producer).load(Ordering::Acquire);
        }
        self.seen.wrapping_sub(self.next)
    }

    /// An entry, counted from the next. It must be available.
    #[inline]
    pub(super) fn get(&self, index: u32) -> T {
        debug_assert!(index < self.seen.wrapping_sub(self.next));
        // SAFETY: the kernel does not write to an entry that it published until this process has released it; any bits
        // are an entry.
        unsafe { self.ring.entry(self.next.wrapping_add(index)).read() }
    }

    /// Returns the next entries to the kernel.
    #[inline]
    pub(super) fn release(&mut self, entries: u32) {
        self.next = self.next.wrapping_add(entries);
        self.ring.word(self.ring.offsets.consumer).store(self.next, Ordering::Release);
    }
}

/// Rings in a file that both a test's processes and its kernel map, each over the side of the other one as well.
#[cfg(test)]
pub(super) mod shared {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Where both numbers are, the flags, and the entries.
    const OFFSETS: xdp_ring_offset = xdp_ring_offset { producer: 0, consumer: 64, desc: 192, flags: 128 };

    /// Room for a ring of any size here, whose numbers begin at `start`.
    pub(crate) fn file(start: u32) -> File {
        let file = File::from(memfd_create(c"ring", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(1 << 16).unwrap();
        for at in [OFFSETS.producer, OFFSETS.consumer] {
            file.write_all_at(&start.to_ne_bytes(), at).unwrap();
        }
        file
    }

    pub(crate) fn producer<T: Copy>(file: &File, size: u32) -> Producer<T> {
        Producer::over(Ring::over(Map::of(file, 1 << 16).unwrap(), OFFSETS, size))
    }

    pub(crate) fn consumer<T: Copy>(file: &File, size: u32) -> Consumer<T> {
        Consumer::over(Ring::over(Map::of(file, 1 << 16).unwrap(), OFFSETS, size))
    }
}
