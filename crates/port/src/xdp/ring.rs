//! The rings that a socket of AF_XDP shares with the kernel: one side adds entries, the other takes them
//! (linux/if_xdp.h, Documentation/networking/af_xdp.rst). The kernel is trusted, but what it wrote becomes visible only
//! with the number that it publishes.

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
        assert!(size.is_power_of_two());
        let Kind { place, offsets } = kind;
        let map = Map::at(socket, place, offsets.desc as usize + size as usize * size_of::<T>())?;
        Ok(Ring { map, offsets, mask: size - 1, entries: PhantomData })
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
        Ok(Producer { ring: Ring::of(socket, kind, size)?, filled: 0, published: 0 })
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
        Ok(Consumer { ring: Ring::of(socket, kind, size)?, next: 0, seen: 0 })
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
