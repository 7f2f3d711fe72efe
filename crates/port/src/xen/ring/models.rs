//! The ring against a frontend on another processor, in every order that the memory model allows
//! (xen/include/public/io/ring.h).

use super::*;
use crate::access::model::{Model, Modelled, Unfenced, Unordered, assert_woken, zeros};
use loom::sync::Arc;
use loom::thread;

/// Words of the slots that are used here.
const USED: usize = 3 * 3;

/// The frontend's side of a page.
struct Frontend<A: Words>(Vec<A::Word>);

impl<A: Modelled> Frontend<A> {
    /// Both sides of a page that the frontend initialized as SHARED_RING_INIT does.
    fn new() -> (Arc<Frontend<A>>, Ring<12, A>) {
        let frontend = Arc::new(Frontend::<A>(zeros(HEADER + USED)));
        frontend.0[REQUEST_EVENT].store(1, Ordering::Relaxed);
        frontend.0[RESPONSE_EVENT].store(1, Ordering::Relaxed);
        let start = frontend.0.as_ptr().cast_mut().cast();
        // SAFETY: the words live as long as the page, which keeps the frontend, and no test uses a slot beyond them.
        let ring = unsafe { Ring::over(Page::new(start, Box::new(frontend.clone()))) };
        (frontend, ring.unwrap())
    }

    /// RING_PUSH_REQUESTS_AND_CHECK_NOTIFY for one request. True if the backend is to be notified.
    fn push(&self, index: u32) -> bool {
        let slot = HEADER + 3 * index as usize;
        self.0[slot].store(7, Ordering::Relaxed);
        self.0[REQUESTS].store(index + 1, Ordering::Release);
        A::fence(Ordering::SeqCst);
        let event = self.0[REQUEST_EVENT].load(Ordering::Relaxed);
        (index + 1).wrapping_sub(event) < 1
    }

    fn responses(&self) -> u32 {
        self.0[RESPONSES].load(Ordering::Acquire)
    }

    /// RING_FINAL_CHECK_FOR_RESPONSES: asks for a notification of responses after `taken`. True if there is one
    /// already.
    fn enable_notifications(&self, taken: u32) -> bool {
        self.0[RESPONSE_EVENT].store(taken + 1, Ordering::Relaxed);
        A::fence(Ordering::SeqCst);
        self.responses() != taken
    }
}

fn either_side_sees_whole_slots<A: Modelled>() {
    loom::model(|| {
        let (frontend, mut ring) = Frontend::<A>::new();
        let other = frontend.clone();
        let other = thread::spawn(move || {
            other.push(0);
            if other.responses() == 1 {
                assert_eq!(other.0[HEADER].load(Ordering::Relaxed), 9, "a response is whole");
            }
        });
        if ring.available(0).unwrap() > 0 {
            assert_eq!(ring.request(0)[0], 7, "a request is whole");
            ring.respond(9u32.to_ne_bytes());
            ring.publish();
        }
        other.join().unwrap();
    });
}

fn no_event_to_the_frontend_is_lost<A: Modelled>() {
    loom::model(|| {
        let (frontend, mut ring) = Frontend::<A>::new();
        (0..2).for_each(|index| _ = frontend.push(index));
        let other = frontend.clone();
        let other = thread::spawn(move || {
            let taken = other.responses();
            (taken, other.enable_notifications(taken))
        });
        let notified = [0, 1].map(|_| {
            ring.respond([0; 4]);
            ring.publish()
        });
        let (taken, awake) = other.join().unwrap();
        assert_woken("the frontend", taken as usize, awake, &notified);
    });
}

fn no_event_to_the_backend_is_lost<A: Modelled>() {
    loom::model(|| {
        let (frontend, mut ring) = Frontend::<A>::new();
        let other = frontend.clone();
        let other = thread::spawn(move || [0, 1].map(|index| other.push(index)));
        let taken = ring.available(0).unwrap();
        (0..taken).for_each(|_| ring.respond([0; 4]));
        let awake = ring.enable_notifications(0);
        let notified = other.join().unwrap();
        assert_woken("the backend", taken as usize, awake, &notified);
    });
}

#[test]
fn ring_push_either_side_sees_whole_slots() {
    either_side_sees_whole_slots::<Model>();
}

#[test]
#[should_panic = "is whole"]
fn ring_push_needs_acquire_and_release() {
    either_side_sees_whole_slots::<Unordered>();
}

#[test]
fn ring_push_and_check_notify_loses_no_event() {
    no_event_to_the_frontend_is_lost::<Model>();
}

#[test]
#[should_panic = "the frontend sleeps"]
fn ring_push_and_check_notify_needs_a_fence() {
    no_event_to_the_frontend_is_lost::<Unfenced>();
}

#[test]
fn ring_final_check_for_requests_loses_no_event() {
    no_event_to_the_backend_is_lost::<Model>();
}

#[test]
#[should_panic = "the backend sleeps"]
fn ring_final_check_for_requests_needs_a_fence() {
    no_event_to_the_backend_is_lost::<Unfenced>();
}
