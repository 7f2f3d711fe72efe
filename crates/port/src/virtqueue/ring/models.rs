//! The ring against a driver on another processor, in every order that the memory model allows (virtio 1.2, section
//! 2.7).

use super::super::split::{FLAGS, INDEX, NO_INTERRUPT, NO_NOTIFY, Parts, Split};
use super::super::table::DESCRIPTOR;
use super::*;
use crate::access::model::{Model, Modelled, Unfenced, Unordered, assert_woken, zeros};
use crate::access::{Word, Words};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const SIZE: u16 = 4;

/// A queue's words.
struct Memory<A: Words> {
    descriptors: Vec<A::Long>,
    available: Vec<A::Half>,
    used: Vec<A::Half>,
    elements: Vec<A::Word>,
    available_event: A::Half,
}

impl<A: Modelled> Memory<A> {
    fn new() -> Arc<Memory<A>> {
        let size = usize::from(SIZE);
        Arc::new(Memory {
            descriptors: zeros(DESCRIPTOR * size),
            available: zeros(3 + size),
            used: zeros(2),
            elements: zeros(2 * size),
            available_event: A::Half::default(),
        })
    }

    /// The device's side. The words must outlive it.
    fn ring(&self, event_idx: bool) -> Ring<Split<A>> {
        let parts = Parts {
            descriptors: self.descriptors.as_ptr(),
            available: self.available.as_ptr(),
            used: self.used.as_ptr(),
            elements: self.elements.as_ptr(),
            available_event: &raw const self.available_event,
        };
        let layout = Layout { size: SIZE, event_idx, ..Layout::default() };
        // SAFETY: tests keep the memory as long as the ring.
        Ring::over(unsafe { Split::over(parts, SIZE, None) }, &layout, None)
    }

    /// Makes one more chain available, as in section 2.7.13: the descriptor, the entry, and then the index.
    fn push(&self, index: u16) {
        self.descriptors[2].store(7, Ordering::Relaxed);
        self.available[2 + usize::from(index)].store(1, Ordering::Relaxed);
        self.available[1].store(index + 1, Ordering::Release);
    }

    /// Whether the driver must kick the device after that (2.7.10).
    fn wants_kick(&self, index: u16, event_idx: bool) -> bool {
        A::fence(Ordering::SeqCst);
        if event_idx {
            let event = self.available_event.load(Ordering::Relaxed);
            (index + 1).wrapping_sub(event).wrapping_sub(1) < 1
        } else {
            self.used[FLAGS].load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    fn used_index(&self) -> u16 {
        self.used[INDEX].load(Ordering::Acquire)
    }

    /// Asks for a notification of entries after `taken` (2.7.7). True if there is one already.
    fn enable_notifications(&self, taken: u16, event_idx: bool) -> bool {
        if event_idx {
            self.available[2 + usize::from(SIZE)].store(taken, Ordering::Relaxed);
        } else {
            self.available[0].store(0, Ordering::Relaxed);
        }
        A::fence(Ordering::SeqCst);
        self.used_index() != taken
    }
}

/// 2.7.13.3: a device that sees the index sees the entry and the descriptor.
fn the_device_sees_whole_chains<A: Modelled>() {
    loom::model(|| {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(false);
        let driver = memory.clone();
        let driver = thread::spawn(move || driver.push(0));
        if ring.available(0).unwrap() > 0 {
            assert_eq!(ring.queue.head(0).unwrap(), 1);
            // SAFETY: the table has four descriptors.
            assert_eq!(unsafe { ring.queue.table().read(1) }[0], 7);
        }
        driver.join().unwrap();
    });
}

/// 2.7.8.2: a driver that sees the index sees the element.
fn the_driver_sees_whole_elements<A: Modelled>() {
    loom::model(|| {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(false);
        let driver = memory.clone();
        let driver = thread::spawn(move || {
            if driver.used_index() == 1 {
                assert_eq!([0, 1].map(|at| driver.elements[at].load(Ordering::Relaxed)), [3, 60]);
            }
        });
        ring.complete(3, 60);
        ring.publish(Nanos(0), true);
        driver.join().unwrap();
    });
}

/// Completes a chain twice, publishes each time and once the last notification is due, and counts the notifications.
pub(super) fn publish_two<F: Format>(ring: &mut Ring<F>, chain: F::Chain, calls: &AtomicU32) {
    let publish = |ring: &mut Ring<F>, now| {
        let before = ring.moderation.quiet_until;
        let again = ring.publish(now, false);
        if ring.moderation.quiet_until != before {
            calls.fetch_add(1, Ordering::AcqRel);
        }
        again
    };
    let mut again = Nanos::NEVER;
    for now in 0..2 {
        ring.complete(chain, 0);
        again = publish(ring, Nanos(now));
    }
    if again < Nanos::NEVER {
        publish(ring, again);
    }
}

/// 2.7.7.2: a driver that sleeps with entries to take is notified. The notification of the second completion is
/// delayed.
fn no_call_is_lost<A: Modelled>(event_idx: bool) {
    loom::model(move || {
        let memory = Memory::<A>::new();
        if !event_idx {
            memory.available[0].store(NO_INTERRUPT, Ordering::Relaxed);
        }
        let mut ring = memory.ring(event_idx);
        let calls = Arc::new(AtomicU32::new(0));
        let (driver, driver_calls) = (memory.clone(), calls.clone());
        let driver = thread::spawn(move || {
            driver_calls.swap(0, Ordering::AcqRel);
            let taken = driver.used_index();
            (taken, driver.enable_notifications(taken, event_idx))
        });
        publish_two(&mut ring, 0, &calls);
        let (taken, awake) = driver.join().unwrap();
        assert!(awake || taken == 2 || calls.load(Ordering::Acquire) > 0, "the driver sleeps at {taken}");
    });
}

/// 2.7.10: a device that sleeps with entries to take is kicked.
fn no_kick_is_lost<A: Modelled>(event_idx: bool) {
    loom::model(move || {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(event_idx);
        ring.disable_notifications();
        let driver = memory.clone();
        let driver = thread::spawn(move || {
            [0, 1].map(|index| {
                driver.push(index);
                driver.wants_kick(index, event_idx)
            })
        });
        let taken = ring.available(0).unwrap();
        (0..taken).for_each(|_| ring.complete(1, 0));
        let awake = ring.enable_notifications(0);
        let kicks = driver.join().unwrap();
        assert_woken("the device", taken.into(), awake, &kicks);
    });
}

#[test]
fn rule_2_7_13_3_the_device_sees_whole_chains() {
    the_device_sees_whole_chains::<Model>();
}

#[test]
#[should_panic]
fn rule_2_7_13_3_needs_acquire_and_release() {
    the_device_sees_whole_chains::<Unordered>();
}

#[test]
fn rule_2_7_8_2_the_driver_sees_whole_elements() {
    the_driver_sees_whole_elements::<Model>();
}

#[test]
#[should_panic]
fn rule_2_7_8_2_needs_acquire_and_release() {
    the_driver_sees_whole_elements::<Unordered>();
}

#[test]
fn rule_2_7_7_2_no_call_is_lost() {
    no_call_is_lost::<Model>(true);
    no_call_is_lost::<Model>(false);
}

#[test]
#[should_panic = "the driver sleeps"]
fn rule_2_7_7_2_needs_a_fence_by_event() {
    no_call_is_lost::<Unfenced>(true);
}

#[test]
#[should_panic = "the driver sleeps"]
fn rule_2_7_7_2_needs_a_fence_by_flag() {
    no_call_is_lost::<Unfenced>(false);
}

#[test]
fn rule_2_7_10_no_kick_is_lost() {
    no_kick_is_lost::<Model>(true);
    no_kick_is_lost::<Model>(false);
}

#[test]
#[should_panic = "the device sleeps"]
fn rule_2_7_10_needs_a_fence_by_event() {
    no_kick_is_lost::<Unfenced>(true);
}

#[test]
#[should_panic = "the device sleeps"]
fn rule_2_7_10_needs_a_fence_by_flag() {
    no_kick_is_lost::<Unfenced>(false);
}
