//! What the two formats of a virtqueue, split and packed, have in common, so that all else is written once. Each use is
//! compiled for its format.
//!
//! A queue is a sequence of entries, numbered by 16 bits that wrap. A chain of descriptors takes one entry of a split
//! queue (the one that names its head), and as many of a packed queue as it has descriptors in the ring. Entries are
//! completed in order, so that the state of a queue is one number.

use super::chain::Direction;
use super::layout::Layout;
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::violation::Violation;
use std::sync::atomic::Ordering;

/// What the driver asks to be notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing.
    None,
    /// Every entry.
    Every,
    /// This entry.
    Entry(u16),
}

/// A virtqueue in guest memory.
pub(crate) trait Format: Send {
    /// What is needed to complete a chain that was walked.
    type Chain: Copy + Default + Send;

    /// Whether [`Format::available`] counts all available entries. Otherwise it looks at the first only.
    const COUNTS: bool;

    /// Orders memory accesses before it and after it ([`Words::fence`](crate::access::Words::fence)).
    fn fence(order: Ordering);

    /// The entries that a chain takes.
    fn entries(chain: Self::Chain) -> u16;

    /// Entries of the queue, a power of two.
    fn size(&self) -> u16;

    /// The first entry that is not completed.
    fn next(&self) -> u16;

    /// The first entry that is not [published](Format::publish).
    fn published(&self) -> u16;

    /// That entry as the answer to GET_VRING_BASE (QEMU, docs/interop/vhost-user.rst).
    fn base(&self) -> u32;

    /// How many entries from the one `skip` after the first on are available, or 1 if the first of these is.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    fn available(&mut self, skip: u16) -> Result<u16, Violation>;

    /// Whether the entry `count` after the first is available in shared memory at this moment.
    fn holds_more_than(&self, count: u16) -> bool;

    /// The first entry that is not available at this moment, unchecked: it must not be used to read entries.
    fn driver_index(&self) -> u16;

    /// Whether an entry is available, without touching shared memory if one is known of.
    fn waiting(&self) -> bool;

    /// Walks the chain that begins `skip` entries after the first, which the last call of [`Format::available`] found,
    /// and passes each buffer's place to `buffer`, which may end the walk by an error. Indirect tables are followed if
    /// `indirect` was negotiated.
    ///
    /// # Errors
    /// The rule that the chain breaks, or the error of `buffer`.
    fn walk(
        &self,
        skip: u16,
        direction: Direction,
        indirect: bool,
        memory: &GuestMemory,
        buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<Self::Chain, Violation>;

    /// Completes a chain, the next in order, with `len` bytes written into it. The driver sees it after
    /// [`Format::publish`].
    fn complete(&mut self, chain: Self::Chain, len: u32);

    /// Undoes unpublished completions from entry `base` on: those buffers are available again. Something was written
    /// into each.
    fn take_back(&mut self, base: u16);

    /// Publishes all completed entries. They are visible before [`Format::request`] is read.
    fn publish(&mut self);

    /// What the driver asks for, by entry only if that was negotiated (VIRTIO_RING_F_EVENT_IDX).
    fn request(&self, event_idx: bool) -> Request;

    /// The entry that the driver asks to be notified of, or asked for last: with EVENT_IDX, the first it has not taken.
    fn event(&self) -> u16;

    /// Asks the driver to kick when the entry `skip` after the first becomes available, or earlier.
    fn enable_kicks(&mut self, event_idx: bool, skip: u16);

    /// Asks the driver not to kick.
    fn disable_kicks(&mut self, event_idx: bool);
}

/// A format that is found in a guest's memory.
pub(crate) trait Mapped: Format + Sized + 'static {
    /// Bytes of the device area of a queue with `size` entries.
    fn device_area(size: u16) -> u64;

    /// A queue that resumes where its last backend stopped, and logs to `log` what it writes into the device area.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    fn map(layout: &Layout, log: Option<UsedLog>, memory: &GuestMemory) -> Result<Self, Violation>;
}
