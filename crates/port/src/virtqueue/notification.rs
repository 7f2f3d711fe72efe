//! Notifications between driver and device: kicks from the driver, and our interrupts to it (virtio 1.2, sections 2.7.7,
//! 2.7.10 and 2.8.10).

use super::format::{Format, Request};
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as DriverState;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The notifications of a queue.
pub(super) struct Notification {
    /// Whether they are requested by index (VIRTIO_RING_F_EVENT_IDX), or by flag.
    event_idx: bool,
    /// Kicks are enabled.
    kicks_enabled: bool,
    call: Option<Arc<Notifier>>,
    /// The index up to which the driver was notified, or did not ask to be.
    notified: u16,
}

impl Notification {
    /// The notifications of a queue whose kicks are enabled and whose driver was notified of all entries before `next`.
    pub(super) fn new(event_idx: bool, call: Option<Arc<Notifier>>, next: u16) -> Notification {
        Notification { event_idx, kicks_enabled: true, call, notified: next }
    }

    /// How many entries before `next` the driver was not notified of.
    #[inline]
    pub(super) fn unnotified(&self, next: u16) -> u16 {
        next.wrapping_sub(self.notified)
    }

    /// The driver was notified of all entries before `next`, or did not ask to be.
    #[inline]
    pub(super) fn set_notified(&mut self, next: u16) {
        self.notified = next;
    }

    /// Whether the driver asks to be notified of the entries since the last notification, all of which are
    /// [published](Format::publish).
    #[inline]
    pub(super) fn wanted(&self, queue: &impl Format) -> bool {
        match queue.request(self.event_idx) {
            Request::Entry(event) => needs_event(event, queue.next(), self.notified),
            Request::Every => true,
            Request::None => false,
        }
    }

    /// The state of the driver: entries that it has not taken, and a value that changes whenever it takes some. Known
    /// with EVENT_IDX only, where the driver writes an index each time it asks for a notification (2.7.7, 2.8.10).
    pub(super) fn driver_state(&self, queue: &impl Format) -> DriverState {
        if !self.event_idx {
            return DriverState::default();
        }
        let (event, available) = (queue.event(), queue.driver_index());
        DriverState {
            waiting: queue.published().wrapping_sub(event).into(),
            taken: u32::from(event) << 16 | u32::from(available),
        }
    }

    /// Notifies the driver even if it did not ask.
    pub(super) fn call(&self) {
        if let Some(call) = &self.call {
            call.notify();
        }
    }

    /// Asks the driver to kick when the entry `skip` after the first becomes available. True if it is available already.
    pub(super) fn enable_notifications<F: Format>(&mut self, queue: &mut F, skip: u16) -> bool {
        self.kicks_enabled = true;
        queue.enable_kicks(self.event_idx, skip);
        // The request must be visible before the index is read, the mirror image of `Format::publish`.
        F::fence(Ordering::SeqCst);
        queue.holds_more_than(skip)
    }

    /// Suppresses kicks: the worker polls.
    pub(super) fn disable_notifications(&mut self, queue: &mut impl Format) {
        if self.kicks_enabled {
            self.kicks_enabled = false;
            queue.disable_kicks(self.event_idx);
        }
    }
}

/// Whether a driver that asked to be notified of the entry `event` is to be notified at index `next`, after the last
/// notification at index `before` (`vring_need_event` of virtio 1.2, section 2.7.7).
#[inline(always)]
pub(super) fn needs_event(event: u16, next: u16, before: u16) -> bool {
    next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(before)
}
