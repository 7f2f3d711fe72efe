//! Where a queue lies and what was negotiated for it, in any layout.

/// The most entries in a queue (virtio 1.2, sections 2.7 and 2.8.10.1).
pub(crate) const MAX_SIZE: u16 = 32768;

/// Where a queue lies, in the frontend's addresses, and what was negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
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
    /// VIRTIO_F_IN_ORDER
    pub in_order: bool,
}
