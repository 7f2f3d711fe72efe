//! Flaws that Xen's security advisories found in other network backends, tried on this one: one test for each, by
//! number.

use crate::netfront::*;
use fairlane_core::packet::{Gso, GsoKind, Offload};
use fairlane_core::time::Nanos;
use fairlane_port::{Control, Status, Wanted};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// XSA-155: a request that changes while it is read. Size and id share a word of the slot, which a racing guest
/// switches all the time between two pairs: the frame's length and the id in its response must always be of one pair.
#[test]
fn xsa_155_a_request_is_read_once() {
    const SIZES: [u16; 2] = [100, 3000];
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.grant(PAGES, 0, &[1; 4096]);
    let change = guest.changes_size_and_id();
    let ended = Arc::new(AtomicBool::new(false));
    let racing = std::thread::spawn({
        let ended = ended.clone();
        move || {
            while !ended.load(Ordering::Relaxed) {
                SIZES.into_iter().for_each(|size| change(size, size));
            }
        }
    });
    let (mut seen, mut rounds) = (BTreeSet::new(), 0);
    while rounds < 20_000 || seen.len() < 2 {
        guest.request(PAGES, 0, 0, SIZES[0]);
        guest.publish();
        let frames = backend.take();
        assert_eq!((frames.len(), backend.port.status()), (1, Status::Up));
        let (id, status) = guest.responses()[0];
        let len = frames[0].0.len();
        let unchanged = u32::from(id) == (guest.sent - 1) % 0x10000 && len == usize::from(SIZES[0]);
        assert!(status == 0 && (unchanged || len == usize::from(id)), "{len} bytes, id {id}");
        if !unchanged {
            seen.insert(id);
        }
        rounds += 1;
    }
    ended.store(true, Ordering::Relaxed);
    racing.join().unwrap();
}

/// XSA-216: responses overwrite the guest's requests byte for byte: padding is zero, and nothing after them is touched.
#[test]
fn xsa_216_responses_leak_no_memory() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.grant(PAGES, 0, &frame(1, 100));
    guest.slot([0x88, 0x13, 0, 0, 0, 0, 0, 0, 0xaa, 0xab, 100, 0]);
    guest.publish();
    assert_eq!(backend.take().len(), 1);
    assert_eq!(guest.transmit_slot(0), [0xaa, 0xab, 0, 0, 0, 0, 0, 0, 0xaa, 0xab, 100, 0]);
    assert_eq!(guest.transmit_slot(1), [0; 12]);
    guest.post_buffers(8);
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 0x0405, header: 54 });
    let offload = Offload { checksum: fairlane_core::packet::Checksum::Partial { start: 34, offset: 16 }, gso };
    assert_eq!(backend.put(&tcp_frame(2000), offload).accepted, 1);
    assert_eq!(guest.receive_slot(0), [0, 0, 0, 0, 11, 0, 6, 8], "id, offset, flags, bytes");
    assert_eq!(guest.receive_slot(1), [1, 0, 5, 4, 1, 0, 0, 0], "all of the extra info");
    assert_eq!(guest.receive_slot(2), [2, 0, 0, 0, 0xea, 3, 0, 0], "the next request");
}

/// XSA-332: events as fast as a frontend can send them. Between two sleeps of the worker one is received; those that
/// arrive while it works cost nothing, and the last of them is not lost.
#[test]
fn xsa_332_a_storm_of_events_is_received_once_a_sleep() {
    const EVERYTHING_WANTED: Wanted = Wanted { frames: true, room: true };
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    for round in 0..100 {
        let received: usize = (0..100).map(|_| (machine.send_event(), backend.handle(Nanos(0))).1).sum();
        assert_eq!(received, 1, "the worker is busy");
        // A frame whose event is sent while the channel is masked.
        guest.transmit(&frame(round, 100), 4096, 0, 0, None);
        machine.send_event();
        assert_eq!(backend.take().len(), 1);
        assert!(!backend.port.enable_notifications(EVERYTHING_WANTED));
        assert_eq!(backend.handle(Nanos(0)), 1, "the pending event wakes the worker");
        assert!(!backend.port.enable_notifications(EVERYTHING_WANTED));
        assert_eq!(backend.handle(Nanos(0)), 0, "it sleeps");
    }
}

/// XSA-423, 432 and 448: headers in segments of a few bytes and across slots' ends, and empty slots, first, between and
/// last. The frame received is the one that was sent, whether it is copied as a whole or has a body, and also by the
/// next guest.
#[test]
fn xsa_423_432_448_tiny_and_empty_slots() {
    let shapes: [&[usize]; 6] =
        [&[0], &[0, 0, 0], &[1, 1, 12, 0, 20, 1, 0], &[13, 1, 19, 33, 0, 0], &[127, 0, 1, 1], &[0, 1, 0, 128, 0]];
    for len in [300, 3000, 4200] {
        for shape in shapes {
            let machine = Arc::new(Machine::default());
            let (mut guest, mut other) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
            let mut backend = Backend::connected(&guest, EVERYTHING);
            let mut to = Backend::connected(&other, EVERYTHING);
            other.post_buffers(16);
            for end in [&[][..], &[0]] {
                let bytes = frame(len as u8, len);
                let body = len - shape.iter().sum::<usize>();
                let sizes = [shape, &[body.min(2100), body.saturating_sub(2100)], end].concat();
                guest.transmit_slots(&bytes, &sizes);
                assert_eq!(backend.pass(&mut to).accepted, 1, "{sizes:?}");
                assert_eq!(other.receive(), [(bytes.clone(), 0, None)], "{sizes:?}");
                guest.transmit_slots(&bytes, &sizes);
                assert_eq!(backend.take(), [(bytes, Offload::default())], "{sizes:?}");
            }
            assert!(guest.responses().iter().all(|(_, status)| *status == 0));
        }
    }
}

/// XSA-448: a frame of nothing but empty slots is answered like any frame, and does no harm to the frames after it.
#[test]
fn xsa_448_frames_without_a_byte() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    guest.transmit_slots(&[], &[0]);
    guest.transmit_slots(&[], &[0, 0, 0]);
    guest.transmit_slots(&frame(1, 200), &[200]);
    let lengths: Vec<usize> = backend.take().iter().map(|(bytes, _)| bytes.len()).collect();
    assert_eq!(lengths, [0, 0, 200]);
    assert_eq!(guest.responses().len(), 5);
    assert_eq!(backend.port.status(), Status::Up);
}
