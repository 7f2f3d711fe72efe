//! What driver and device ask each other to be told of: kicks of the driver's and calls of ours (virtio 1.2, sections 2.7.7 and 2.7.10).

use super::split::Split;
use crate::access::Words;
use crate::notifier::Notifier;
use fairlane_core::ack::Ring as Standing;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The notifications of a queue.
pub struct Notification {
    /// Whether they are asked for by index (VIRTIO_RING_F_EVENT_IDX), or by flag.
    event_idx: bool,
    /// Kicks are enabled.
    armed: bool,
    call: Option<Arc<Notifier>>,
    /// Up to where the driver was called or did not wish to be.
    told: u16,
}

impl Notification {
    /// Those of a queue whose kicks are enabled, and whose driver was told of all in front of `next`.
    pub fn new(event_idx: bool, call: Option<Arc<Notifier>>, next: u16) -> Notification {
        Notification { event_idx, armed: true, call, told: next }
    }

    /// How many entries in front of `next` the driver was not told of.
    #[inline]
    pub fn untold(&self, next: u16) -> u16 {
        next.wrapping_sub(self.told)
    }

    /// The driver was told of all in front of `next`, or did not wish to be.
    #[inline]
    pub fn tell(&mut self, next: u16) {
        self.told = next;
    }

    /// Whether the driver wishes to be called for what it was not told of. All of that is [published](Split::publish).
    #[inline]
    pub fn wanted<A: Words>(&self, split: &Split<A>) -> bool {
        if self.event_idx { needs_event(split.used_event(), split.next, self.told) } else { split.interrupts() }
    }

    /// How the driver stands: entries that it has not taken, and what changes whenever it takes some. Where it stands it
    /// says with each wish to be called, which has an index with EVENT_IDX alone (2.7.7): without, nothing is known.
    pub fn standing<A: Words>(&self, split: &Split<A>) -> Standing {
        if !self.event_idx {
            return Standing::default();
        }
        let (event, available) = (split.used_event(), split.driver_index());
        Standing {
            waiting: split.published.wrapping_sub(event).into(),
            taken: u32::from(event) << 16 | u32::from(available),
        }
    }

    /// Calls the driver whatever it wants.
    pub fn call(&self) {
        if let Some(call) = &self.call {
            call.notify();
        }
    }

    /// Asks the driver to kick when the entry at `next + skip` becomes available. True if it is already.
    pub fn enable_notifications<A: Words>(&mut self, split: &Split<A>, skip: u16) -> bool {
        self.armed = true;
        if self.event_idx {
            split.set_available_event(split.next.wrapping_add(skip));
        } else {
            split.set_kicks(true);
        }
        // The wish must be visible before the index is read, the mirror image of `Split::publish`.
        A::fence(Ordering::SeqCst);
        split.driver_index().wrapping_sub(split.next) > skip
    }

    /// Kicks are not needed: we look by ourselves.
    pub fn disable_notifications<A: Words>(&mut self, split: &Split<A>) {
        if self.armed {
            self.armed = false;
            // With EVENT_IDX the wish stands where the driver passed it or will once; kicks stop by themselves.
            if !self.event_idx {
                split.set_kicks(false);
            }
        }
    }
}

/// Whether the driver, who wishes to be told of the entry `event`, is to be told now that the index is `next`, if it was `before` when it
/// last was (`vring_need_event` of virtio 1.2, section 2.7.7).
#[inline(always)]
pub(super) fn needs_event(event: u16, next: u16, before: u16) -> bool {
    next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(before)
}
