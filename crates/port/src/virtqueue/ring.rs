//! A virtqueue as the device sees it: its layout, its chains, and its notifications.

#[cfg(test)]
mod models;
#[cfg(test)]
mod packed_models;
#[cfg(test)]
mod proofs;

use super::chain::Direction;
use super::format::{Format, Mapped};
use super::layout::Layout;
use super::log::UsedLog;
use super::memory::GuestMemory;
use super::moderation::Moderation;
use super::notification::Notification;
use super::violation::Violation;
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as DriverState;
use fairlane_core::time::Nanos;
use std::sync::Arc;

/// A running queue. All of its parts were checked against the memory given to [`Ring::new`], and stay valid as long as
/// that does.
pub(crate) struct Ring<F> {
    queue: F,
    indirect: bool,
    notification: Notification,
    moderation: Moderation,
}

impl<F: Mapped> Ring<F> {
    /// A queue that resumes where its last backend stopped, notifies the driver by `call`, and logs to `log` what it
    /// writes into the device area.
    ///
    /// # Errors
    /// A size, an alignment or a place that the specification forbids.
    pub(crate) fn new(
        layout: Layout,
        call: Option<Arc<Notifier>>,
        log: Option<UsedLog>,
        memory: &GuestMemory,
    ) -> Result<Ring<F>, Violation> {
        Ok(Ring::over(F::map(&layout, log, memory)?, &layout, call))
    }
}

impl<F: Format> Ring<F> {
    /// [`Ring::new`] with a queue that is found already.
    fn over(queue: F, layout: &Layout, call: Option<Arc<Notifier>>) -> Ring<F> {
        let notification = Notification::new(layout.event_idx, call, queue.next());
        let mut ring = Ring { queue, indirect: layout.indirect, notification, moderation: Moderation::default() };
        ring.disable_notifications();
        ring
    }

    /// Entries.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The first entry that is not completed.
    pub(crate) fn next(&self) -> u16 {
        self.queue.next()
    }

    /// That entry as the answer to GET_VRING_BASE.
    pub(crate) fn base(&self) -> u32 {
        self.queue.base()
    }

    /// How many entries are available, `skip` entries after the first that is not completed; or, if the format does not
    /// [count](Format::COUNTS) them, 1 if one is.
    ///
    /// # Errors
    /// The driver's index is further ahead than the queue has entries.
    #[inline]
    pub(crate) fn available(&mut self, skip: u16) -> Result<u16, Violation> {
        self.queue.available(skip)
    }

    /// Whether more than `count` entries are available.
    #[inline]
    pub(crate) fn holds_more_than(&self, count: u16) -> bool {
        self.queue.holds_more_than(count)
    }

    /// Whether an entry is available, without touching shared memory if one is known of.
    #[inline]
    pub(crate) fn waiting(&self) -> bool {
        self.queue.waiting()
    }

    /// Walks the chain `skip` entries after the first, which [`Ring::available`] reported, and passes each buffer's place
    /// to `buffer`, which may end the walk by an error.
    ///
    /// # Errors
    /// The rule that the chain breaks, or the error of `buffer`.
    #[inline]
    pub(crate) fn walk(
        &self,
        skip: u16,
        direction: Direction,
        memory: &GuestMemory,
        buffer: impl FnMut(*mut u8, u32) -> Result<(), Violation>,
    ) -> Result<F::Chain, Violation> {
        self.queue.walk(skip, direction, self.indirect, memory, buffer)
    }

    /// Completes a chain, the next in order, with `len` bytes written into it. The driver sees it
    /// after [`Ring::publish`].
    #[inline]
    pub(crate) fn complete(&mut self, chain: F::Chain, len: u32) {
        self.queue.complete(chain, len);
    }

    /// Whether completed entries that are not published fill half of the queue ([`Withheld`](crate::Withheld)).
    pub(crate) fn is_withheld(&self) -> bool {
        self.queue.next().wrapping_sub(self.queue.published()) >= self.size() / 2
    }

    /// Undoes unpublished completions from entry `base` on: those buffers are available again.
    pub(crate) fn take_back(&mut self, base: u16) {
        self.queue.take_back(base);
    }

    /// Publishes all completed entries, and notifies the driver if it asks for that. A notification soon after the last
    /// one is delayed, unless it is urgent or covers half of the queue. Returns when to publish again for the sake of a
    /// delayed notification; [`Nanos::NEVER`] if none was delayed.
    #[inline]
    pub(crate) fn publish(&mut self, now: Nanos, urgent: bool) -> Nanos {
        let unnotified = self.notification.unnotified(self.queue.next());
        if unnotified == 0 {
            return Nanos::NEVER;
        }
        self.queue.publish();
        if self.notification.wanted(&self.queue) {
            if let Some(until) = self.moderation.delay(now, urgent || unnotified >= self.size() / 2) {
                return until;
            }
            self.notification.call();
        }
        self.notification.set_notified(self.queue.next());
        Nanos::NEVER
    }

    /// The state of the driver.
    pub(crate) fn driver_state(&self) -> DriverState {
        self.notification.driver_state(&self.queue)
    }

    /// Notifies the driver even if it did not ask.
    pub(crate) fn call(&self) {
        self.notification.call();
    }

    /// Asks the driver to kick when the entry `skip` after the first becomes available. True if it is available
    /// already.
    pub(crate) fn enable_notifications(&mut self, skip: u16) -> bool {
        self.notification.enable_notifications(&mut self.queue, skip)
    }

    /// Suppresses kicks: the worker polls.
    pub(crate) fn disable_notifications(&mut self) {
        self.notification.disable_notifications(&mut self.queue);
    }
}
