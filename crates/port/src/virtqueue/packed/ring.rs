//! Where the parts of a packed queue are, and what the words in them mean.

use super::{EVENT_BYTES, GuestMemory, Layout, MAX_SIZE, Processor, Violation, Words};

/// VIRTQ_DESC_F_AVAIL and VIRTQ_DESC_F_USED
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The ring wrap counter beside an offset in the ring (2.8.14).
const WRAP: u16 = 1 << 15;

/// Where the parts of a queue are mapped.
pub(in super::super) struct Parts<A: Words> {
    /// Two words a descriptor.
    pub descriptors: *const A::Long,
    /// The driver's event suppression structure.
    pub driver: *const A::Word,
    /// Ours.
    pub device: *const A::Word,
}

impl Parts<Processor> {
    /// Finds the parts of a layout in guest memory, wholly inside it and aligned to their words.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub(super) fn find(layout: &Layout, memory: &GuestMemory) -> Result<Parts<Processor>, Violation> {
        let size = layout.size;
        if !size.is_power_of_two() || size > MAX_SIZE {
            return Err(Violation::RingSize(size));
        }
        // Sizes and alignments: virtio 1.2, section 2.8.10.1.
        let part = |name, address, len, align| memory.part(name, address, len, align);
        Ok(Parts {
            descriptors: part("descriptor ring", layout.descriptors, 16 * u64::from(size), 16)?.cast(),
            driver: part("driver area", layout.available, EVENT_BYTES, 4)?.cast(),
            device: part("device area", layout.used, EVENT_BYTES, 4)?.cast(),
        })
    }
}

/// A descriptor without its address: available, used, or in an indirect table.
pub(super) struct Descriptor {
    pub len: u32,
    pub id: u16,
    pub flags: u16,
}

impl Descriptor {
    /// Decodes a descriptor's second word: from the low bits up, length, buffer ID and flags.
    #[inline(always)]
    pub(super) fn parse(word: u64) -> Descriptor {
        Descriptor { len: word as u32, id: (word >> 32) as u16, flags: (word >> 48) as u16 }
    }

    #[inline(always)]
    pub(super) fn encode(self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags) << 48
    }
}

/// The places of a ring, a power of two, and the numbers of entries.
#[derive(Clone, Copy)]
pub(super) struct Places(u16);

impl Places {
    pub(super) fn of(size: u16) -> Places {
        Places(size)
    }

    #[inline(always)]
    pub(super) fn size(self) -> u16 {
        self.0
    }

    /// An entry's place in the ring.
    #[inline(always)]
    pub(super) fn place(self, entry: u16) -> usize {
        usize::from(entry & (self.0 - 1))
    }

    /// Whether the ring wrap counter is 1 at an entry.
    #[inline(always)]
    fn wrap(self, entry: u16) -> bool {
        entry & self.0 == 0
    }

    /// Whether a descriptor's second word, read at an entry's place, says that it is available (2.8.1).
    #[inline(always)]
    pub(super) fn is_available(self, word: u64, entry: u16) -> bool {
        let flags = (word >> 48) as u16 & (AVAILABLE | USED);
        flags == if self.wrap(entry) { AVAILABLE } else { USED }
    }

    /// The entry after the last that a driver made available, by the AVAILABLE bits of the descriptors' second words in
    /// the ring's order. If the driver adds a chain at this moment, it may be an entry of that chain.
    pub(super) fn driver(self, mut words: impl Iterator<Item = u64>) -> u16 {
        let bit = |word: u64| word & u64::from(AVAILABLE) << 48 != 0;
        let Some(first) = words.next().map(bit) else { return 0 };
        let same = words.take_while(|word| bit(*word) == first).count() as u16 + 1;
        // The driver wrote them in the round whose wrap counter is this bit.
        if first { same } else { same.wrapping_add(self.0) }
    }

    /// Whether a descriptor's second word, read at an entry's place, says that a device completed the entry, by its USED
    /// bit alone.
    #[inline]
    pub(super) fn is_completed(self, word: u64, entry: u16) -> bool {
        (word & u64::from(USED) << 48 != 0) == self.wrap(entry)
    }

    /// The flags of a used descriptor at an entry.
    #[inline(always)]
    pub(super) fn used(self, entry: u16) -> u16 {
        if self.wrap(entry) { AVAILABLE | USED } else { 0 }
    }

    /// An entry as an offset in the ring and, in the highest bit, the wrap counter.
    pub(super) fn offset(self, entry: u16) -> u16 {
        self.place(entry) as u16 | if self.wrap(entry) { WRAP } else { 0 }
    }

    /// An entry with this offset and wrap counter. Offsets beyond the ring are of no entry; any is returned.
    fn entry(self, offset: u16) -> u16 {
        self.place(offset) as u16 | if offset & WRAP == 0 { self.0 } else { 0 }
    }

    /// The last entry up to `next` with this offset and wrap counter.
    #[inline(always)]
    pub(super) fn last(self, offset: u16, next: u16) -> u16 {
        next.wrapping_sub(next.wrapping_sub(self.entry(offset)) & (2 * u32::from(self.0) - 1) as u16)
    }
}

/// What an event suppression structure asks for (2.8.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// RING_EVENT_FLAGS_ENABLE, and values that are reserved.
    Enable,
    /// RING_EVENT_FLAGS_DISABLE
    Disable,
    /// RING_EVENT_FLAGS_DESC, with an offset and the wrap counter.
    Descriptor(u16),
}

impl Event {
    #[inline(always)]
    pub(super) fn of(word: u32) -> Event {
        match word >> 16 {
            1 => Event::Disable,
            2 => Event::Descriptor(word as u16),
            _ => Event::Enable,
        }
    }

    pub(super) fn encode(self) -> u32 {
        match self {
            Event::Enable => 0,
            Event::Disable => 1 << 16,
            Event::Descriptor(offset) => 2 << 16 | u32::from(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u16; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768];

    /// All entries, by all sizes: the place counts up, and the wrap counter is 1 at first and changes with each round.
    #[test]
    fn proof_2_8_1_places_and_wrap_counters() {
        for size in SIZES {
            let places = Places::of(size);
            let (mut place, mut wrap) = (0, true);
            for entry in 0..=u16::MAX {
                assert_eq!((places.place(entry), places.wrap(entry)), (place, wrap), "entry {entry} of {size}");
                let own = u64::from(if wrap { AVAILABLE } else { USED }) << 48;
                let others = [0, AVAILABLE | USED, AVAILABLE ^ USED ^ (own >> 48) as u16];
                assert!(places.is_available(own | 0x7fu64 << 48, entry));
                assert!(others.iter().all(|flags| !places.is_available(u64::from(*flags) << 48, entry)));
                place += 1;
                if place == usize::from(size) {
                    (place, wrap) = (0, !wrap);
                }
            }
        }
    }

    /// Offsets name entries, up to two rounds back.
    #[test]
    fn proof_2_8_14_offsets_name_entries() {
        for size in SIZES {
            let places = Places::of(size);
            for entry in 0..=u16::MAX {
                let offset = places.offset(entry);
                let rounds = 2 * u32::from(size) - 1;
                assert_eq!(u32::from(places.entry(offset)), u32::from(entry) & rounds);
                for later in [0, 1, size - 1, size, rounds as u16] {
                    assert_eq!(places.last(offset, entry.wrapping_add(later)), entry, "{entry} and {later} of {size}");
                }
                let event = Event::Descriptor(offset);
                assert_eq!(Event::of(event.encode()), event);
            }
        }
    }
}
