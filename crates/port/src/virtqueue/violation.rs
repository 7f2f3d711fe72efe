//! The rules of a virtqueue that a frontend can break. Each disables the port, with this as the reason.

use thiserror::Error;

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Violation {
    /// Virtio 1.2, section 2.7.
    #[error("a ring of {0} entries; it must be a power of two, 1 to 32768")]
    RingSize(u16),
    /// A part of the ring is not in shared memory.
    #[error("the {part} at {address:#x} is not wholly inside one shared memory region")]
    RingPlace {
        /// Which part.
        part: &'static str,
        /// Its address in the frontend.
        address: u64,
    },
    /// Virtio 1.2, section 2.7: 16, 2 and 4 bytes.
    #[error("the {part} at {address:#x} is not aligned")]
    RingAlignment {
        /// Which part.
        part: &'static str,
        /// Its address in the frontend.
        address: u64,
    },
    /// The driver's index moved too far or backwards.
    #[error("the available index {index} is not within a ring's size after {next}")]
    AvailableIndex {
        /// The index read.
        index: u16,
        /// The entry it must stay within a ring's size of.
        next: u16,
    },
    /// An available entry with an index out of the table.
    #[error("an available entry names descriptor {head} of a ring of {size}")]
    Head {
        /// The index.
        head: u16,
        /// Entries of the table.
        size: u16,
    },
    /// A chain that leads out of its table.
    #[error("a descriptor's next is {next} in a table of {entries}")]
    Next {
        /// The next index.
        next: u16,
        /// Entries of the table.
        entries: u32,
    },
    /// A chain with more descriptors than its table.
    #[error("an endless chain of descriptors")]
    EndlessChain,
    /// Virtio 1.2, section 2.7.5.3: not nested, not followed by a descriptor, whole descriptors.
    #[error(
        "an indirect table of {len} bytes with flags {flags:#x}; it must be whole descriptors, neither nested nor followed"
    )]
    Indirect {
        /// Flags of the descriptor that refers to it.
        flags: u16,
        /// Bytes.
        len: u32,
    },
    /// Virtio 1.2, section 2.7.5.3.1.
    #[error("an indirect table, but VIRTIO_RING_F_INDIRECT_DESC was not negotiated")]
    NotNegotiated,
    /// An empty descriptor costs time and appears in no count of bytes or segments. QEMU refuses it as well.
    #[error("a descriptor of 0 bytes; a buffer has 1 at least")]
    EmptyBuffer,
    /// A buffer outside the guest's memory.
    #[error("a buffer of {len} bytes at {address:#x} is not in shared memory")]
    Buffer {
        /// Guest physical address.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// A transmit buffer marked writable or a receive buffer that is not.
    #[error("a buffer is {} the device", if *.wanted_writable { "not writable by" } else { "writable by" })]
    Direction {
        /// Whether the queue needs writable buffers.
        wanted_writable: bool,
    },
    /// A chain too short for a header and a frame.
    #[error("a chain of {0} bytes has no room for the packet header")]
    NoHeader(u32),
    /// More than the largest frame.
    #[error("a frame of more than {0} bytes")]
    TooLong(u32),
    /// A frame in more segments than a burst holds.
    #[error("a frame in more segments than any driver makes")]
    TooManySegments,
    /// An impossible packet header.
    #[error("packet header: {0}")]
    Header(fairlane_core::packet::Error),
    /// A file of the guest's memory was truncated.
    #[error("the frontend truncated its guest's memory while it was in use")]
    Torn,
    /// The dirty log's file was truncated.
    #[error("the frontend truncated the dirty log while it was in use")]
    TornLog,
}
