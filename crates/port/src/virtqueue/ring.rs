//! A virtqueue as the device sees it: its layout, its chains, and its notifications.

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
use fairlane_core::ack::Ring as DriverState;
use fairlane_core::time::Nanos;
use std::sync::Arc;

/// A running queue. All of its parts were checked against the memory given to [`Ring::new`], and stay valid as long as
/// that does.
pub(crate) struct Ring<A: Words = Processor> {
    split: Split<A>,
    indirect: bool,
    notification: Notification,
    moderation: Moderation,
}

impl Ring {
    /// A queue that resumes where its last backend stopped, notifies the driver by `call`, and logs to `log` what it
    /// writes into the used ring.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub(crate) fn new(
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
    /// [`Ring::new`] with parts that are found already.
    ///
    /// # Safety
    /// The parts are valid for queues of the layout's size, a power of two, as long as the ring lives.
    pub(crate) unsafe fn over(
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
    pub(crate) fn size(&self) -> u16 {
        self.split.size()
    }

    /// The first entry that is not completed: the answer to GET_VRING_BASE.
    pub(crate) fn base(&self) -> u16 {
        self.split.next
    }

    /// How many entries are available, `skip` entries after the first that is not completed.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    #[inline]
    pub(crate) fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        self.split.available(skip)
    }

    /// Whether more than `count` entries are available.
    #[inline]
    pub(crate) fn holds_more_than(&self, count: u16) -> bool {
        self.split.driver_index().wrapping_sub(self.split.next) > count
    }

    /// Whether an entry is available, without touching shared memory if one is known of.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        self.split.waiting()
    }

    /// The head of the chain `skip` entries after the first, which [`Ring::available`] reported.
    #[inline]
    pub(crate) fn head(&self, skip: u16) -> Result<u16, Violation> {
        self.split.head(skip)
    }

    /// Walks a chain and passes each buffer's place to `buffer`, which may end the walk by an error.
    ///
    /// # Errors
    /// The rule that the chain breaks, or the error of `buffer`.
    #[inline]
    pub(crate) fn walk(
        &self,
        head: u16,
        direction: Direction,
        memory: &GuestMemory,
        buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        chain::walk(self.split.table(), head, direction, self.indirect, memory, buffer)
    }

    /// Completes the chain with this head, the next in order, with `len` bytes written into it. The driver sees it
    /// after [`Ring::publish`].
    #[inline]
    pub(crate) fn complete(&mut self, head: u16, len: u32) {
        self.split.complete(head, len);
    }

    /// Undoes unpublished completions from entry `base` on: those buffers are available again.
    pub(crate) fn take_back(&mut self, base: u16) {
        self.split.take_back(base);
    }

    /// Publishes all completed entries, and notifies the driver if it asks for that. A notification soon after the last
    /// one is delayed, unless it is urgent or covers half of the queue. Returns when to publish again for the sake of a
    /// delayed notification; [`Nanos::NEVER`] if none was delayed.
    #[inline]
    pub(crate) fn publish(&mut self, now: Nanos, urgent: bool) -> Nanos {
        let unnotified = self.notification.unnotified(self.split.next);
        if unnotified == 0 {
            return Nanos::NEVER;
        }
        self.split.publish();
        if self.notification.wanted(&self.split) {
            if let Some(until) = self.moderation.delay(now, urgent || unnotified >= self.size() / 2) {
                return until;
            }
            self.notification.call();
        }
        self.notification.set_notified(self.split.next);
        Nanos::NEVER
    }

    /// The state of the driver.
    pub(crate) fn driver_state(&self) -> DriverState {
        self.notification.driver_state(&self.split)
    }

    /// Notifies the driver even if it did not ask.
    pub(crate) fn call(&self) {
        self.notification.call();
    }

    /// Asks the driver to kick when the entry `skip` after the first becomes available. True if it is available
    /// already.
    pub(crate) fn enable_notifications(&mut self, skip: u16) -> bool {
        self.notification.enable_notifications(&self.split, skip)
    }

    /// Suppresses kicks: the worker polls.
    pub(crate) fn disable_notifications(&mut self) {
        self.notification.disable_notifications(&self.split);
    }
}
