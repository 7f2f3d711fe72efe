//! A well-behaved and a hostile frontend on a thread of its own, while its ring is served: for race detectors (`make
//! race`), and as a test of what arrives.

use super::*;
use crate::map::Map;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread;
use std::time::{Duration, Instant};

/// A frontend's view of its page.
#[derive(Clone, Copy)]
struct Frontend(*mut u32);

// SAFETY: all access is atomic, and the page outlives the threads.
unsafe impl Send for Frontend {}

impl Frontend {
    fn new() -> (Frontend, Ring<12>) {
        let map = Map::anonymous(PAGE);
        let start = map.start();
        // SAFETY: the mapping has a page.
        let ring = Ring::new(unsafe { Page::new(start, Box::new(map)) }).unwrap();
        (Frontend(start.cast()), ring)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at < PAGE / WORD);
        // SAFETY: within the page, and aligned.
        unsafe { AtomicU32::from_ptr(self.0.add(at)) }
    }

    fn slot(&self, index: u32, at: usize) -> &AtomicU32 {
        self.word(HEADER + 3 * (index % SLOTS) as usize + at)
    }

    fn responses(&self) -> u32 {
        self.word(RESPONSES).load(Ordering::Acquire)
    }
}

/// Sends requests that contain their number, and checks that each response matches.
fn send_requests(frontend: Frontend, requests: u32) {
    let (mut sent, mut answered) = (0, 0);
    while answered < requests {
        while sent < requests && sent - answered < SLOTS {
            (0..3).for_each(|at| frontend.slot(sent, at).store(sent, Ordering::Relaxed));
            sent += 1;
            frontend.word(REQUESTS).store(sent, Ordering::Release);
        }
        while answered != frontend.responses() {
            assert_eq!(frontend.slot(answered, 0).load(Ordering::Relaxed), !answered);
            answered += 1;
        }
        thread::yield_now();
    }
}

/// Overwrites indices and slots at random until `over` is set.
fn scribble(frontend: Frontend, over: &AtomicBool) {
    let mut number = 1u32;
    while !over.load(Ordering::Relaxed) {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if number >> 25 == 0 {
            // In case there are fewer processors than threads.
            thread::yield_now();
        }
        match number >> 30 {
            0 => {
                frontend.word(REQUESTS).store(frontend.responses().wrapping_add(number >> 8 & 0xff), Ordering::Release)
            }
            1 => frontend.word(RESPONSE_EVENT).store(number, Ordering::Relaxed),
            _ => frontend.slot(number >> 8, (number >> 20) as usize % 3).store(number, Ordering::Relaxed),
        }
    }
}

#[test]
fn requests_of_a_racing_frontend_are_answered_in_order() {
    let requests = if cfg!(miri) { 300 } else { 50_000 };
    let (frontend, mut ring) = Frontend::new();
    let other = thread::spawn(move || send_requests(frontend, requests));
    let mut done = 0;
    while done < requests && !other.is_finished() {
        while ring.available(0).unwrap() > 0 {
            assert_eq!(ring.request(0), [done; 3].map(u32::to_ne_bytes).concat()[..]);
            ring.respond((!done).to_ne_bytes());
            done += 1;
        }
        ring.publish();
        if !ring.enable_notifications(0) {
            thread::yield_now();
        }
    }
    other.join().unwrap();
}

#[test]
fn a_hostile_frontend_races_with_none_of_our_own_memory() {
    let rounds = if cfg!(miri) { 200 } else { 4000 };
    let (frontend, mut ring) = Frontend::new();
    let over = Arc::new(AtomicBool::new(false));
    let other = over.clone();
    let other = thread::spawn(move || scribble(frontend, &other));
    let (clock, mut round, mut served, mut broken) = (Instant::now(), 0, 0, 0);
    // On a busy machine the thread may start only when all rounds are over: then more rounds follow.
    while round < rounds || (served == 0 || broken == 0 && !cfg!(miri)) && clock.elapsed() < Duration::from_secs(60) {
        round += 1;
        match ring.available(0) {
            Ok(requests) => {
                (0..requests.min(4)).for_each(|_| {
                    let [a, b, c, d, ..] = ring.request(0);
                    ring.respond([a, b, c, d]);
                    served += 1;
                });
            }
            Err(_) => {
                // As if it connected again.
                (ring.requested, broken) = (ring.next, broken + 1);
            }
        }
        ring.publish();
        ring.enable_notifications(0);
        if round % 16 == 0 {
            thread::yield_now();
        }
    }
    over.store(true, Ordering::Relaxed);
    other.join().unwrap();
    assert!(served > 0 && (broken > 0 || cfg!(miri)), "{served} requests, {broken} broken rules");
}
