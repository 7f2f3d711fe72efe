//! Well-behaved and hostile guests on threads of their own, while their rings are served: for race detectors (`make
//! race`), and as a test of what arrives.

use super::format::Mapped;
use super::layout::Layout;
use super::memory::{GuestMemory, Region};
use super::packed::Packed;
use super::receive::Receive;
use super::ring::Ring;
use super::split::Split;
use super::transmit::Transmit;
use crate::Refusal;
use crate::burst::Burst;
use fairlane_core::sched::Budget;
use fairlane_core::time::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: u16 = 8;
const ALL: Budget = Budget { bytes: u64::MAX, frames: 32 };

/// The guest's memory, by guest addresses. Tables of indirect descriptors are accessed as words and buffers as bytes,
/// and the two never overlap: a race detector could not judge a mixture.
const GUEST: u64 = 0x10000;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const TABLES: u64 = 0x1000;
const BUFFERS: u64 = 0x2000;
const END: u64 = 0x4000;

const WRITE: u64 = 2 << 32;
const INDIRECT: u64 = 4 << 32;

/// In a packed ring's descriptors: where a split ring has its flags and the next index, there are the buffer ID and
/// flags.
const ID: u64 = 1 << 32;
const PACKED_WRITE: u64 = 2 << 48;
const AVAILABLE_BIT: u64 = 1 << 55;
const USED_BIT: u64 = 1 << 63;

/// Bytes of a well-behaved frame, and of the header before it.
const FRAME: u64 = 200;
const HEADER: u64 = 12;

/// A guest's view of its memory.
#[derive(Clone, Copy)]
struct Guest(*mut u8);

// SAFETY: all access is atomic, and the memory outlives the threads.
unsafe impl Send for Guest {}

impl Guest {
    /// A guest with memory of its own, and the device's view of it.
    fn new() -> (Guest, GuestMemory) {
        let mut memory = GuestMemory::default();
        let start = memory.add_anonymous(Region { guest: GUEST, len: END, user: GUEST, offset: 0 });
        (Guest(start), memory)
    }

    fn at<T>(&self, at: u64) -> *mut T {
        assert!(at < END && at.is_multiple_of(align_of::<T>() as u64));
        self.0.wrapping_add(at as usize).cast()
    }

    fn byte(&self, at: u64) -> &AtomicU8 {
        // SAFETY: within the memory, and aligned. So are those below.
        unsafe { AtomicU8::from_ptr(self.at(at)) }
    }

    fn half(&self, at: u64) -> &AtomicU16 {
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(self.at(at)) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(at)) }
    }

    fn describe(&self, at: u64, address: u64, rest: u64) {
        // SAFETY: as above.
        let words = [0, 8].map(|more| unsafe { AtomicU64::from_ptr(self.at(at + more)) });
        words[0].store(GUEST + address, Ordering::Relaxed);
        words[1].store(rest, Ordering::Relaxed);
    }

    fn used(&self) -> u16 {
        self.half(USED + 2).load(Ordering::Acquire)
    }

    /// Makes the chain of this number's descriptor available.
    fn push(&self, number: u16) {
        let entry = u64::from(number % SIZE);
        self.half(AVAILABLE + 4 + 2 * entry).store(number % SIZE, Ordering::Relaxed);
        self.half(AVAILABLE + 2).store(number.wrapping_add(1), Ordering::Release);
    }

    /// The buffer of this number's descriptor.
    fn buffer(number: u16) -> u64 {
        BUFFERS + u64::from(number % SIZE) * 0x200
    }
}

fn ring<F: Mapped>(memory: &GuestMemory) -> Ring<F> {
    let (descriptors, available, used) = (GUEST, GUEST + AVAILABLE, GUEST + USED);
    let negotiated = Layout { event_idx: true, indirect: true, ..Layout::default() };
    Ring::new(Layout { size: SIZE, descriptors, available, used, ..negotiated }, None, None, memory).unwrap()
}

/// A byte of a well-behaved frame.
fn content(number: u16, at: u64) -> u8 {
    (u64::from(number) * 31 + at) as u8
}

/// Transmits frames as fast as they are consumed.
fn transmit(guest: Guest, frames: u16) {
    for number in 0..frames {
        while number.wrapping_sub(guest.used()) >= SIZE {
            thread::yield_now();
        }
        let buffer = Guest::buffer(number);
        (0..FRAME).for_each(|at| guest.byte(buffer + HEADER + at).store(content(number, at), Ordering::Relaxed));
        guest.describe(16 * u64::from(number % SIZE), buffer, HEADER + FRAME);
        guest.push(number);
    }
}

/// Posts buffers and checks each frame that arrives.
fn receive(guest: Guest, frames: u16) {
    let post = |number: u16| {
        guest.describe(16 * u64::from(number % SIZE), Guest::buffer(number), 0x200 | WRITE);
        guest.push(number);
    };
    (0..SIZE).for_each(post);
    for number in 0..frames {
        while guest.used() == number {
            thread::yield_now();
        }
        let element = USED + 4 + 8 * u64::from(number % SIZE);
        let [id, len] = [0, 4].map(|more| u64::from(guest.word(element + more).load(Ordering::Relaxed)));
        assert_eq!((id, len), (u64::from(number % SIZE), HEADER + FRAME));
        let buffer = Guest::buffer(number) + HEADER;
        (0..FRAME).for_each(|at| assert_eq!(guest.byte(buffer + at).load(Ordering::Relaxed), content(number, at)));
        post(number.wrapping_add(SIZE));
    }
}

/// The next number of an endless sequence that is the same in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Overwrites descriptors, tables, entries, indices and buffers at random until `over` is set.
fn scribble(guest: Guest, writable: u64, over: &AtomicBool) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ writable;
    while !over.load(Ordering::Relaxed) {
        let number = random(&mut state);
        if number >> 57 == 0 {
            // In case there are fewer processors than threads.
            thread::yield_now();
        }
        let (place, slot) = ((number >> 8) & 0xfff, (number >> 24) & 7);
        let direction = if (number >> 32) & 31 == 0 { WRITE ^ writable } else { writable };
        // Most of the values break no rule, so that some frames are served.
        let (next, wicked) = ((number >> 40) & 1, number >> 55 == 0);
        let plain = (16 + ((number >> 48) & 0xff)) | direction | (next << 32) | ((number >> 60) << 48);
        match number & 7 {
            0 | 1 if slot < 6 => guest.describe(16 * slot, BUFFERS + place, plain),
            0 | 1 => guest.describe(16 * slot, TABLES + 16 * (place & 3), (16 * (1 + ((number >> 48) & 3))) | INDIRECT),
            2 => guest.describe(TABLES + 16 * slot, BUFFERS + place, plain),
            3 => guest
                .half(AVAILABLE + 4 + 2 * slot)
                .store(if wicked { SIZE } else { (number >> 32) as u16 % SIZE }, Ordering::Relaxed),
            4 | 5 => {
                let ahead = (number >> 32) as u16 % (SIZE + 1);
                guest.half(AVAILABLE + 2).store(guest.used().wrapping_add(ahead), Ordering::Release);
            }
            6 => guest.byte(BUFFERS + 2 * place).store(if wicked { number as u8 } else { 0 }, Ordering::Relaxed),
            _ => guest.half(AVAILABLE + 4 + 2 * u64::from(SIZE)).store((number >> 32) as u16, Ordering::Relaxed),
        }
    }
}

/// [`scribble`] in a packed ring: most descriptors are available in one of the two rounds.
fn scribble_packed(guest: Guest, writable: u64, over: &AtomicBool) {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ writable;
    while !over.load(Ordering::Relaxed) {
        let number = random(&mut state);
        if number >> 57 == 0 {
            thread::yield_now();
        }
        let (place, slot) = ((number >> 8) & 0xfff, (number >> 24) & 7);
        let direction = (if (number >> 32) & 31 == 0 { WRITE ^ writable } else { writable }) << 16;
        let round = [AVAILABLE_BIT, USED_BIT, AVAILABLE_BIT | USED_BIT, 0][(number >> 40) as usize & 3];
        let next = u64::from((number >> 42) & 7 == 0) << 48;
        let plain = (16 + ((number >> 48) & 0xff)) | direction | next | round;
        match number & 7 {
            0..=3 => guest.describe(16 * slot, BUFFERS + place, plain),
            4 => {
                guest.describe(16 * slot, TABLES + 16 * (place & 3), (16 * (1 + (place & 3))) | INDIRECT << 16 | round)
            }
            5 => guest.describe(TABLES + 16 * slot, BUFFERS + place, plain),
            6 => guest
                .byte(BUFFERS + 2 * place)
                .store(if number >> 55 == 0 { number as u8 } else { 0 }, Ordering::Relaxed),
            _ => guest.word(AVAILABLE).store((number >> 32) as u32 & 0x3_800f, Ordering::Relaxed),
        }
    }
}

/// A packed ring's driver: the descriptor at an entry, with the flags that make it available (virtio 1.2, section 2.8.1).
fn push_packed(guest: Guest, number: u16, rest: u64) {
    let entry = u64::from(number % SIZE);
    let available = if (number / SIZE).is_multiple_of(2) { AVAILABLE_BIT } else { USED_BIT };
    // SAFETY: as in `Guest`.
    let words = [0, 8].map(|more| unsafe { AtomicU64::from_ptr(guest.at(16 * entry + more)) });
    words[0].store(GUEST + Guest::buffer(number), Ordering::Relaxed);
    words[1].store(rest | (ID * entry) | available, Ordering::Release);
}

/// The used descriptor of an entry, once there is one: its buffer ID and length.
fn take_packed(guest: Guest, number: u16) -> (u64, u64) {
    let used = if (number / SIZE).is_multiple_of(2) { AVAILABLE_BIT | USED_BIT } else { 0 };
    // SAFETY: as in `Guest`.
    let word = unsafe { AtomicU64::from_ptr(guest.at(16 * u64::from(number % SIZE) + 8)) };
    loop {
        let found = word.load(Ordering::Acquire);
        if found & (AVAILABLE_BIT | USED_BIT) == used {
            return (found >> 32 & 0xffff, found & 0xffff_ffff);
        }
        thread::yield_now();
    }
}

/// [`transmit`] in a packed ring.
fn transmit_packed(guest: Guest, frames: u16) {
    for number in 0..frames {
        if number >= SIZE {
            assert_eq!(take_packed(guest, number - SIZE).0, u64::from(number % SIZE));
        }
        let buffer = Guest::buffer(number);
        (0..FRAME).for_each(|at| guest.byte(buffer + HEADER + at).store(content(number, at), Ordering::Relaxed));
        push_packed(guest, number, HEADER + FRAME);
    }
}

/// [`receive`] in a packed ring.
fn receive_packed(guest: Guest, frames: u16) {
    let post = |number: u16| push_packed(guest, number, 0x200 | PACKED_WRITE);
    (0..SIZE).for_each(post);
    for number in 0..frames {
        assert_eq!(take_packed(guest, number), (u64::from(number % SIZE), HEADER + FRAME));
        let buffer = Guest::buffer(number) + HEADER;
        (0..FRAME).for_each(|at| assert_eq!(guest.byte(buffer + at).load(Ordering::Relaxed), content(number, at)));
        post(number.wrapping_add(SIZE));
    }
}

#[test]
fn frames_of_racing_guests_arrive_whole_and_in_order() {
    frames_arrive::<Split>(transmit, receive);
}

#[test]
fn frames_of_racing_guests_with_packed_rings_arrive_whole_and_in_order() {
    frames_arrive::<Packed>(transmit_packed, receive_packed);
}

fn frames_arrive<F: Mapped>(transmit: fn(Guest, u16), receive: fn(Guest, u16)) {
    let frames = if cfg!(miri) { 24 } else { 5000 };
    let ((sender, from), (receiver, to)) = (Guest::new(), Guest::new());
    let (mut out, mut into) = (Transmit::new(ring::<F>(&from)), Receive::new(ring::<F>(&to), true, None));
    let threads = [thread::spawn(move || transmit(sender, frames)), thread::spawn(move || receive(receiver, frames))];
    let (mut burst, mut done) = (Burst::new(), 0);
    // Each loop ends only with the last frame, or with an error.
    while done < usize::from(frames) && !threads[1].is_finished() {
        let mut filler = burst.fill();
        out.offer(&from, &mut filler, ALL).unwrap();
        let batch = filler.done();
        let taken = batch.frames().take_while(|frame| into.put(&to, frame).unwrap().is_none()).count();
        out.consume(taken);
        done += taken;
        out.publish(Nanos(0));
        into.publish(Nanos(0));
        if taken == 0 && !out.ring.enable_notifications(0) && !into.enable_notifications() {
            thread::yield_now();
        }
        out.ring.disable_notifications();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn hostile_guests_race_with_none_of_our_own_memory() {
    hostile_guests_race::<Split>(scribble);
}

#[test]
fn hostile_guests_with_packed_rings_race_with_none_of_our_own_memory() {
    hostile_guests_race::<Packed>(scribble_packed);
}

fn hostile_guests_race<F: Mapped>(scribble: fn(Guest, u64, &AtomicBool)) {
    let rounds = if cfg!(miri) { 60 } else { 4000 };
    let ((sender, from), (receiver, to)) = (Guest::new(), Guest::new());
    let (mut out, mut into) = (Transmit::new(ring::<F>(&from)), Receive::new(ring::<F>(&to), true, None));
    let over = Arc::new(AtomicBool::new(false));
    let threads = [(sender, 0), (receiver, WRITE)].map(|(guest, writable)| {
        let over = over.clone();
        thread::spawn(move || scribble(guest, writable, &over))
    });
    let (mut burst, mut frames, mut broken) = (Burst::new(), 0, 0);
    let (clock, mut round) = (Instant::now(), 0);
    // On a busy machine the threads may start only when all rounds are over: then more rounds follow.
    while round < rounds || (broken == 0 || frames == 0 && !cfg!(miri)) && clock.elapsed() < Duration::from_secs(60) {
        round += 1;
        let mut filler = burst.fill();
        if out.offer(&from, &mut filler, Budget { frames: 1 + round % 4, ..ALL }).is_err() {
            filler.clear();
            out = Transmit::new(ring::<F>(&from));
            broken += 1;
        }
        let batch = filler.done();
        for frame in batch.frames() {
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            assert!(frame.bytes() > 0 && bytes.len() as u64 == frame.bytes());
            match into.put(&to, &frame) {
                Ok(None) => frames += 1,
                Ok(Some(Refusal::Full | Refusal::Never(_))) => {}
                Err(_) => {
                    into = Receive::new(ring::<F>(&to), true, None);
                    broken += 1;
                }
            }
        }
        out.consume(batch.len());
        out.publish(Nanos(0));
        into.publish(Nanos(0));
        out.ring.enable_notifications(0);
        out.ring.disable_notifications();
        if round % 16 == 0 {
            thread::yield_now();
        }
    }
    over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(broken > 0, "rules were broken");
    assert!(frames > 0 || cfg!(miri), "some frames were delivered");
}
