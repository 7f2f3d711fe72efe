//! A virtqueue seen from the device's side: its layout, its chains, and who is told of what when.

#[cfg(test)]
mod models;
#[cfg(test)]
mod proofs;

use super::chain::{self, Direction};
use super::layout::Layout;
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::moderation::Moderation;
use super::notification::Notification;
use super::split::{Parts, Split};
use super::violation::Violation;
use crate::access::{Processor, Words};
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as Standing;
use fairlane_core::time::Nanos;
use std::sync::Arc;

/// A running queue. All of its parts were checked against the memory that [`Ring::new`] was given, and hold while it does.
pub struct Ring<A: Words = Processor> {
    split: Split<A>,
    indirect: bool,
    notification: Notification,
    moderation: Moderation,
}

impl Ring {
    /// A queue that goes on where its last backend left it, writes to `call` when the driver wants to know, and logs to `log` what it
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
        let parts = Parts::find(&layout, memory)?;
        // SAFETY: the parts were just found in the memory.
        Ok(unsafe { Ring::over(parts, layout, call, log) })
    }
}

impl<A: Words> Ring<A> {
    /// The same where the parts of the layout are already found.
    ///
    /// # Safety
    /// The parts are there for queues of the layout's size, a power of two, as long as the ring.
    pub unsafe fn over(
        parts: Parts<A>,
        Layout { size, event_idx, indirect, .. }: Layout,
        call: Option<Arc<Notifier>>,
        log: Option<UsedLog>,
    ) -> Ring<A> {
        // SAFETY: the caller's.
        let split = unsafe { Split::over(parts, size, log) };
        let notification = Notification::new(event_idx, call, split.next);
        let mut ring = Ring { split, indirect, notification, moderation: Moderation::default() };
        ring.disable_notifications();
        ring
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.split.size()
    }

    /// The first entry that is not completed: what GET_VRING_BASE asks for.
    pub fn base(&self) -> u16 {
        self.split.next
    }

    /// How many entries from the first that is not completed and `skip` more on are available.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    #[inline]
    pub fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        self.split.available(skip)
    }

    /// Whether more than `count` entries are available.
    #[inline]
    pub fn holds_more_than(&self, count: u16) -> bool {
        self.split.driver_index().wrapping_sub(self.split.next) > count
    }

    /// Whether an entry is available, without touching shared state if one is known of.
    #[inline]
    pub fn waiting(&self) -> bool {
        self.split.waiting()
    }

    /// The head of the chain that is `skip` behind the first, which [`Ring::available`] said is there.
    #[inline]
    pub fn head(&self, skip: u16) -> Result<u16, Violation> {
        self.split.head(skip)
    }

    /// Walks a chain and gives each buffer's place to `buffer`, which answers whether it wants more.
    ///
    /// # Errors
    /// What the chain breaks, or what `buffer` says.
    #[inline]
    pub fn walk(
        &self,
        head: u16,
        direction: Direction,
        memory: &GuestMemory,
        buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        chain::walk(self.split.table(), head, direction, self.indirect, memory, buffer)
    }

    /// Completes the chain with this head, the next in order, `len` bytes written into it. Seen by the driver after
    /// [`Ring::publish`].
    #[inline]
    pub fn complete(&mut self, head: u16, len: u32) {
        self.split.complete(head, len);
    }

    /// Takes back what was completed from entry `base` on and is not published yet: those buffers are available still.
    pub fn take_back(&mut self, base: u16) {
        self.split.take_back(base);
    }

    /// Shows the driver all that was completed, and calls it if it wants to know. Soon after the last call it is called only if that
    /// is urgent, or half of the queue is to be told of. Answers when to publish again for the sake of a call that was held back;
    /// [`Nanos::NEVER`] if none was.
    #[inline]
    pub fn publish(&mut self, now: Nanos, urgent: bool) -> Nanos {
        let untold = self.notification.untold(self.split.next);
        if untold == 0 {
            return Nanos::NEVER;
        }
        self.split.publish();
        if self.notification.wanted(&self.split) {
            if let Some(until) = self.moderation.hold(now, urgent || untold >= self.size() / 2) {
                return until;
            }
            self.notification.call();
        }
        self.notification.tell(self.split.next);
        Nanos::NEVER
    }

    /// How the driver stands.
    pub fn standing(&self) -> Standing {
        self.notification.standing(&self.split)
    }

    /// Calls the driver whatever it wants.
    pub fn call(&self) {
        self.notification.call();
    }

    /// Asks the driver to kick when the entry that is `skip` behind the first becomes available. True if it is already.
    pub fn enable_notifications(&mut self, skip: u16) -> bool {
        self.notification.enable_notifications(&self.split, skip)
    }

    /// Kicks are not needed: we look by ourselves.
    pub fn disable_notifications(&mut self) {
        self.notification.disable_notifications(&self.split);
    }
}
