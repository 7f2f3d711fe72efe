//! A packed ring against a driver on another processor, in every order that the memory model allows (virtio 1.2, section
//! 2.8).

use super::super::packed::{Chain, Packed, Parts};
use super::super::table::DESCRIPTOR;
use super::models::publish_two;
use super::*;
use crate::access::model::{Model, Modelled, Unfenced, Unordered, assert_woken, zeros};
use crate::access::{Word, Words};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const SIZE: u16 = 4;

/// Flags of a descriptor's second word in the ring's first round, and those it is used with.
const AVAILABLE: u64 = 1 << 55;
const USED: u64 = AVAILABLE | 1 << 63;

/// Event flags, and the wrap counter of the first round.
const DISABLE: u32 = 1 << 16;
const DESCRIPTOR_EVENT: u32 = 2 << 16;
const WRAP: u32 = 1 << 15;

/// A queue's words.
struct Memory<A: Words> {
    descriptors: Vec<A::Long>,
    driver: A::Word,
    device: A::Word,
}

impl<A: Modelled> Memory<A> {
    fn new() -> Arc<Memory<A>> {
        let descriptors = zeros(DESCRIPTOR * usize::from(SIZE));
        Arc::new(Memory { descriptors, driver: A::Word::default(), device: A::Word::default() })
    }

    /// The device's side. The words must outlive it.
    fn ring(&self, event_idx: bool) -> Ring<Packed<A>> {
        let parts = Parts {
            descriptors: self.descriptors.as_ptr(),
            driver: &raw const self.driver,
            device: &raw const self.device,
        };
        let layout = Layout { size: SIZE, event_idx, ..Layout::default() };
        // SAFETY: tests keep the memory as long as the ring.
        Ring::over(unsafe { Packed::over(parts, &layout) }, &layout, None)
    }

    /// Makes one more descriptor available, as in section 2.8.21: the address, and then the flags.
    fn push(&self, entry: u16) {
        let at = DESCRIPTOR * usize::from(entry);
        self.descriptors[at].store(7, Ordering::Relaxed);
        self.descriptors[at + 1].store(AVAILABLE | 1, Ordering::Release);
    }

    /// Whether the driver must kick the device after that (2.8.21.3).
    fn wants_kick(&self, entry: u16) -> bool {
        A::fence(Ordering::SeqCst);
        let asked = self.device.load(Ordering::Relaxed);
        match asked & !0xffff {
            DISABLE => false,
            DESCRIPTOR_EVENT => asked & 0xffff == WRAP | u32::from(entry),
            _ => true,
        }
    }

    /// The used descriptor at an entry: its length, if there is one.
    fn used(&self, entry: u16) -> Option<u32> {
        let word = self.descriptors[DESCRIPTOR * usize::from(entry) + 1].load(Ordering::Acquire);
        (word & USED == USED).then_some(word as u32)
    }

    /// Asks for a notification of entries after `taken` (2.8.10). True if there is one already.
    fn enable_notifications(&self, taken: u16, event_idx: bool) -> bool {
        let word = if event_idx { DESCRIPTOR_EVENT | WRAP | u32::from(taken) } else { 0 };
        self.driver.store(word, Ordering::Relaxed);
        A::fence(Ordering::SeqCst);
        self.used(taken).is_some()
    }
}

const CHAIN: Chain = Chain { id: 0, entries: 1 };

/// A device that sees the flags sees the address.
fn the_device_sees_whole_chains<A: Modelled>() {
    loom::model(|| {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(false);
        let driver = memory.clone();
        let driver = thread::spawn(move || driver.push(0));
        if ring.available(0).unwrap() > 0 {
            assert_eq!(memory.descriptors[0].load(Ordering::Relaxed), 7);
        }
        driver.join().unwrap();
    });
}

/// A driver that sees the first used descriptor of a burst sees the others.
fn the_driver_sees_whole_bursts<A: Modelled>() {
    loom::model(|| {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(false);
        let driver = memory.clone();
        let driver = thread::spawn(move || {
            if driver.used(0) == Some(60) {
                assert_eq!(driver.used(1), Some(70));
            }
        });
        ring.complete(CHAIN, 60);
        ring.complete(CHAIN, 70);
        ring.publish(Nanos(0), true);
        driver.join().unwrap();
    });
}

/// A driver that sleeps with entries to take is notified. The notification of the second completion is delayed.
fn no_call_is_lost<A: Modelled>(event_idx: bool) {
    loom::model(move || {
        let memory = Memory::<A>::new();
        memory.driver.store(DISABLE, Ordering::Relaxed);
        let mut ring = memory.ring(event_idx);
        let calls = Arc::new(AtomicU32::new(0));
        let (driver, driver_calls) = (memory.clone(), calls.clone());
        let driver = thread::spawn(move || {
            driver_calls.swap(0, Ordering::AcqRel);
            let taken = (0..2).take_while(|entry| driver.used(*entry).is_some()).count() as u16;
            (taken, driver.enable_notifications(taken, event_idx))
        });
        publish_two(&mut ring, CHAIN, &calls);
        let (taken, awake) = driver.join().unwrap();
        assert!(awake || taken == 2 || calls.load(Ordering::Acquire) > 0, "the driver sleeps at {taken}");
    });
}

/// A device that sleeps with entries to take is kicked.
fn no_kick_is_lost<A: Modelled>(event_idx: bool) {
    loom::model(move || {
        let memory = Memory::<A>::new();
        let mut ring = memory.ring(event_idx);
        let driver = memory.clone();
        let driver = thread::spawn(move || {
            [0, 1].map(|entry| {
                driver.push(entry);
                driver.wants_kick(entry)
            })
        });
        let mut taken = 0;
        while taken < 2 && ring.available(taken).unwrap() > 0 {
            taken += 1;
        }
        (0..taken).for_each(|_| ring.complete(CHAIN, 0));
        ring.publish(Nanos(0), true);
        let awake = ring.enable_notifications(0);
        let kicks = driver.join().unwrap();
        assert_woken("the device", taken.into(), awake, &kicks);
    });
}

#[test]
fn rule_2_8_21_1_the_device_sees_whole_chains() {
    the_device_sees_whole_chains::<Model>();
}

#[test]
#[should_panic]
fn rule_2_8_21_1_needs_acquire_and_release() {
    the_device_sees_whole_chains::<Unordered>();
}

#[test]
fn rule_2_8_16_the_driver_sees_whole_bursts() {
    the_driver_sees_whole_bursts::<Model>();
}

#[test]
#[should_panic]
fn rule_2_8_16_needs_acquire_and_release() {
    the_driver_sees_whole_bursts::<Unordered>();
}

#[test]
fn rule_2_8_10_no_call_is_lost() {
    no_call_is_lost::<Model>(true);
    no_call_is_lost::<Model>(false);
}

#[test]
#[should_panic = "the driver sleeps"]
fn rule_2_8_10_calls_need_a_fence_by_event() {
    no_call_is_lost::<Unfenced>(true);
}

#[test]
#[should_panic = "the driver sleeps"]
fn rule_2_8_10_calls_need_a_fence_by_flag() {
    no_call_is_lost::<Unfenced>(false);
}

#[test]
fn rule_2_8_10_no_kick_is_lost() {
    no_kick_is_lost::<Model>(true);
    no_kick_is_lost::<Model>(false);
}

#[test]
#[should_panic = "the device sleeps"]
fn rule_2_8_10_kicks_need_a_fence_by_event() {
    no_kick_is_lost::<Unfenced>(true);
}

#[test]
#[should_panic = "the device sleeps"]
fn rule_2_8_10_kicks_need_a_fence_by_flag() {
    no_kick_is_lost::<Unfenced>(false);
}
