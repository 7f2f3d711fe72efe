//! Packed rings (virtio 1.2, section 2.8): the service for a frontend that keeps the rules, and for one that breaks them.

mod frontend;

use fairlane_core::packet::{Offload, checksum};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_port::{Control, Put, Refusal, Room, Sink, Source, Status, Wanted};
use frontend::*;
use proptest::prelude::*;
use std::os::fd::AsRawFd;
use std::path::Path;

const PACKED: u64 = RICH | F_PACKED;
const SIZE: u16 = 8;

/// Event flags of the device area.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

fn device_area(frontend: &Frontend, queue: u32) -> (u16, u16) {
    let bytes = frontend.read(ring(queue)[2], 4);
    (u16::from_le_bytes([bytes[0], bytes[1]]), u16::from_le_bytes([bytes[2], bytes[3]]))
}

/// Asks for notifications: an offset with the wrap counter, and flags.
fn ask(frontend: &Frontend, queue: u32, offset: u16, flags: u16) {
    frontend.write(ring(queue)[1], &[offset.to_le_bytes(), flags.to_le_bytes()].concat());
}

/// Transmits a frame that is cut into descriptors at these bytes, the first of which has an index.
fn transmit_in_parts(frontend: &mut Frontend, first: u16, bytes: &[u8], cuts: &[u32]) {
    let at = BUFFERS + 0x2000 * u64::from(first);
    frontend.write(at, &[&NO_HEADER, bytes].concat());
    let len = (HEADER + bytes.len()) as u32;
    let ends = [&[0], cuts, &[len]].concat();
    for (part, ends) in (first..).zip(ends.windows(2)) {
        let flags = if ends[1] == len { 0 } else { NEXT };
        frontend.descriptor(1, part, at + u64::from(ends[0]), ends[1] - ends[0], flags, part + 1);
    }
    frontend.push(1, first);
}

/// Frames from the guest, in chains of one to three descriptors, over many rounds of the ring.
#[test]
fn frames_leave_in_order_over_many_rounds() {
    for features in [PACKED, PACKED | F_IN_ORDER, PACKED | F_EVENT_IDX] {
        let (_dir, _, mut backend, mut frontend) = connected(features, SIZE);
        for seed in 0..100u8 {
            let burst: Vec<_> =
                (0..2).map(|more| frame(seed.wrapping_mul(2) + more, 100 + usize::from(seed))).collect();
            for (index, bytes) in burst.iter().enumerate() {
                let cuts = if seed % 3 == 0 { vec![] } else { vec![12, 20 + u32::from(seed % 7)] };
                transmit_in_parts(&mut frontend, 4 * index as u16, bytes, &cuts);
            }
            let taken: Vec<_> = backend.take().into_iter().map(|(frame, _)| frame).collect();
            assert_eq!(taken, burst, "round {seed}");
            assert_eq!(frontend.completed(1), [(0, 0), (4, 0)]);
        }
    }
}

/// With IN_ORDER one used descriptor, the first, stands for a burst of the transmit queue, and the others are marked;
/// without it each chain has its own.
#[test]
fn a_burst_in_order_becomes_used_by_one_descriptor() {
    for (features, each) in [(PACKED, true), (PACKED | F_IN_ORDER, false)] {
        let (_dir, _, mut backend, mut frontend) = connected(features, SIZE);
        (0..4).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100)));
        assert_eq!(backend.take().len(), 4);
        let used: Vec<_> = (0..5).map(|number| frontend.used_packed(1, number).map(|(id, ..)| id)).collect();
        let all = [Some(0), Some(1), Some(2), Some(3), None];
        assert_eq!(used, if each { all } else { [Some(3), Some(3), Some(3), Some(3), None] });
        // And a burst of the receive queue has the lengths.
        (0..2).for_each(|index| frontend.post_buffer(index, 2048));
        (0..2).for_each(|seed| assert_eq!(backend.put(&frame(seed, 300), Offload::default()).refusal, None));
        assert_eq!(frontend.completed(0), [(0, 312), (1, 312)]);
    }
}

#[test]
fn an_indirect_table_is_read_by_its_length() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, SIZE);
    let wanted = frame(9, 500);
    frontend.write(BUFFERS, &NO_HEADER);
    frontend.write(BUFFERS + 0x1000, &wanted);
    let table = BUFFERS + 0x4008; // aligned to nothing in particular
    // The flag NEXT means nothing here (2.8.7): some drivers set it, and some do not.
    frontend.write(table, &descriptor(GUEST + BUFFERS, 12, 0, 0));
    frontend.write(table + 16, &descriptor(GUEST + BUFFERS + 0x1000, 200, 77, NEXT));
    frontend.write(table + 32, &descriptor(GUEST + BUFFERS + 0x1000 + 200, 300, 78, NEXT));
    frontend.descriptor(1, 3, table, 48, INDIRECT, 0);
    frontend.push(1, 3);
    assert_eq!(backend.take(), [(wanted, Offload::default())]);
    assert_eq!(frontend.completed(1), [(3, 0)]);
}

#[test]
fn a_budget_and_unconsumed_frames() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, SIZE);
    (0..4).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 1000)));
    for (bytes, frames, expected) in
        [(0, 32, 0), (1, 0, 0), (1, 32, 1), (1001, 32, 2), (u64::MAX, 3, 3), (u64::MAX, 32, 4)]
    {
        let budget = fairlane_core::sched::Budget { bytes, frames };
        assert_eq!(backend.port.offer(&mut backend.burst, budget, Nanos(0)).len(), expected);
    }
    assert!(!backend.port.more(false), "all are shown");
    backend.port.consume(1);
    backend.port.consume(1);
    backend.port.flush(Nanos(0));
    assert_eq!(frontend.completed(1), [(0, 0), (1, 0)]);
    assert_eq!(backend.take().len(), 2);
}

#[test]
fn large_frames_take_several_buffers_over_many_rounds() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED | F_EVENT_IDX, 32);
    for round in 0..20 {
        (0..17).for_each(|index| frontend.post_buffer(index, 4096));
        let sent = frame(round, 65_000);
        assert_eq!(backend.put(&sent, tcp_offload(Some(1448))).refusal, None);
        let completed = frontend.completed(0);
        assert_eq!(completed.len(), (65_000 + HEADER).div_ceil(4096));
        let got: Vec<u8> = completed.iter().flat_map(|(head, len)| frontend.received_buffer(*head, *len)).collect();
        assert_eq!(got[HEADER..], sent);
        assert_eq!(backend.put(&frame(0, 4000), Offload::default()).refusal, None);
        assert_eq!(frontend.completed(0), [(16, 4012)]);
    }
}

/// Segments of a frame that finds too few buffers are taken back: their descriptors are still available.
#[test]
fn a_guest_without_offloads_gets_all_segments_or_none() {
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_MRG_RXBUF | F_PACKED, SIZE);
    (0..2).for_each(|index| frontend.post_buffer(index, 2048));
    let put = backend.put(&tcp_frame(2500), tcp_offload(Some(1000)));
    assert_eq!((put.refusal, frontend.completed(0).len()), (Some(Refusal::Full), 0), "the third segment has no buffer");
    assert_eq!(backend.port.room(Nanos(0)), Room::Unknown);
    assert!(!backend.port.enable_notifications(Wanted { frames: false, room: true }));
    assert_eq!(device_area(&frontend, 0).1, ENABLE, "the event is not at the first entry");
    frontend.post_buffer(2, 2048);
    assert_eq!(backend.port.room(Nanos(0)), Room::Now);
    assert_eq!(backend.put(&tcp_frame(2500), tcp_offload(Some(1000))).refusal, None);
    let completed = frontend.completed(0);
    assert_eq!(completed.iter().map(|(_, len)| *len as usize - HEADER - 54).collect::<Vec<_>>(), [1000, 1000, 500]);
    for (head, len) in completed {
        assert!(checksum::verify(&frontend.received_buffer(head, len)[HEADER..]).unwrap());
    }
    // A ring can never hold the next frame.
    (3..11).for_each(|index| frontend.post_buffer(index % SIZE, 2048));
    let never = backend.put(&tcp_frame(9000), tcp_offload(Some(1000))).refusal;
    assert_eq!(never, Some(Refusal::Never(DropReason::TooLarge)));
    assert_eq!(backend.port.status(), Status::Up);
}

#[test]
fn a_frame_that_never_fits_is_refused() {
    let too_large = Some(Refusal::Never(DropReason::TooLarge));
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, 4);
    (0..4).for_each(|index| frontend.post_buffer(index, 1000));
    assert_eq!(backend.put(&frame(0, 5000), Offload::default()).refusal, too_large, "larger than the whole ring");
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_PACKED, 4);
    (0..4).for_each(|index| frontend.post_buffer(index, 1000));
    assert_eq!(backend.put(&frame(0, 1500), Offload::default()).refusal, too_large, "buffers are not mergeable");
    assert_eq!(backend.put(&frame(0, 988), Offload::default()).refusal, None);
    // Two chains of two descriptors are the whole ring.
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, 4);
    for first in [0, 2] {
        let at = BUFFERS + (1 << 20) + u64::from(first) * 0x2000;
        frontend.descriptor(0, first, at, 500, WRITE | NEXT, first + 1);
        frontend.descriptor(0, first + 1, at + 500, 500, WRITE, 0);
        assert_eq!(backend.put(&frame(0, 1989), Offload::default()).refusal, Some(Refusal::Full));
        frontend.push(0, first);
    }
    assert_eq!(backend.put(&frame(0, 1989), Offload::default()).refusal, too_large, "larger than two chains");
    assert_eq!(backend.put(&frame(0, 1988), Offload::default()).refusal, None);
    assert_eq!(frontend.completed(0), [(0, 1000), (2, 1000)]);
}

/// Tables of 400 tiny buffers: no frame is spread over more than 1,024, nor are the segments that it is cut into.
#[test]
fn a_frame_in_too_many_buffers_is_refused() {
    const PIECES: u16 = 400;
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_INDIRECT | F_MRG_RXBUF | F_PACKED, SIZE);
    let piece = |at: u16| {
        let len = if at == PIECES - 1 { 4096 } else { 1 };
        descriptor(GUEST + BUFFERS + (1 << 20) + u64::from(at), len, 0, WRITE)
    };
    let table: Vec<u8> = (0..PIECES).flat_map(piece).collect();
    frontend.write(BUFFERS, &table);
    for index in 0..SIZE {
        frontend.descriptor(0, index, BUFFERS, table.len() as u32, INDIRECT, 0);
        frontend.push(0, index);
    }
    let refused = backend.put(&tcp_frame(5000), tcp_offload(Some(1000)));
    assert_eq!(refused, Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::TooLarge)) });
    assert_eq!(backend.put(&tcp_frame(2000), tcp_offload(Some(1000))), Put { accepted: 1, refusal: None });
    assert_eq!(backend.port.status(), Status::Up);
    assert_eq!(frontend.completed(0), [(0, 1066), (1, 1066)], "the first frame used nothing up");
}

#[test]
fn kicks_are_enabled_only_before_sleep() {
    let wanted = Wanted { frames: true, room: false };
    for (features, flags) in [(PACKED, ENABLE), (PACKED | F_EVENT_IDX, DESC)] {
        let (_dir, _, mut backend, mut frontend) = connected(features, SIZE);
        for round in 0..20u16 {
            assert_eq!(device_area(&frontend, 1).1, DISABLE);
            assert!(!backend.port.enable_notifications(wanted));
            let offset = (round % SIZE) | if (round / SIZE).is_multiple_of(2) { 1 << 15 } else { 0 };
            assert_eq!(device_area(&frontend, 1), (if flags == DESC { offset } else { 0 }, flags));
            backend.port.disable_notifications();
            frontend.transmit(0, NO_HEADER, &frame(0, 80));
            assert!(backend.port.enable_notifications(wanted), "a frame arrived before the worker sleeps");
            backend.port.disable_notifications();
            assert_eq!(backend.take().len(), 1);
            assert_eq!(frontend.completed(1).len(), 1);
        }
    }
}

/// The driver's structure asks for every notification, none, or the one of an entry.
#[test]
fn the_driver_is_notified_as_it_asks() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED | F_EVENT_IDX, SIZE);
    frontend.calls[1].read().expect("each queue calls when it starts");
    // Offset and flags, and whether the completion of the entry at this number calls.
    let at = |number: u16| (number % SIZE) | if (number / SIZE).is_multiple_of(2) { 1 << 15 } else { 0 };
    let mut now = 0;
    for number in 0..40u16 {
        let asked = [
            (0, ENABLE, true),
            (0, DISABLE, false),
            (at(number), DESC, true),
            (at(number + 1), DESC, false),
            (at(number.wrapping_sub(1)), DESC, false),
            (at(number.wrapping_add(SIZE)), DESC, false),
        ];
        let (offset, flags, calls) = asked[usize::from(number) % asked.len()];
        ask(&frontend, 1, offset, flags);
        frontend.transmit(0, NO_HEADER, &frame(0, 80));
        let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(now));
        assert_eq!(batch.len(), 1);
        backend.port.consume(1);
        now += 1_000_000;
        backend.port.flush(Nanos(now));
        assert_eq!(frontend.calls[1].read().is_ok(), calls, "{number}: {offset:#x}, {flags}");
        assert_eq!(frontend.completed(1).len(), 1);
    }
}

/// GET_VRING_BASE has the place and the wrap counter twice, and the ring goes on from there.
#[test]
fn stopping_a_ring_returns_its_place_and_wrap_counter() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, SIZE);
    for number in 1..20u32 {
        frontend.transmit(0, NO_HEADER, &frame(0, 100));
        assert_eq!(backend.take().len(), 1);
        assert_eq!(frontend.completed(1).len(), 1);
        frontend.send_words(GET_VRING_BASE, &[1, 0]);
        backend.settle();
        let half = (number % 8) | if (number / 8).is_multiple_of(2) { 1 << 15 } else { 0 };
        let base = half << 16 | half;
        assert_eq!(frontend.reply(), [1u32.to_ne_bytes(), base.to_ne_bytes()].concat());
        // The ring starts with the first kick after that. What the frontend sends may be older than the ring.
        frontend.send_words(SET_VRING_BASE, &[1, if number % 2 == 0 { base } else { 1 << 15 }]);
        frontend.send_longs(SET_VRING_KICK, &[1], &[frontend.kicks[1].as_raw_fd()]);
        backend.settle();
    }
}

/// What the places of a ring hold.
fn places(frontend: &Frontend, queue: u32) -> Vec<u8> {
    frontend.read(ring(queue)[0], 16 * usize::from(SIZE))
}

/// A killed backend, the content of whose device area is lost, and the next one.
fn killed(backend: Backend, frontend: Frontend, path: &Path, features: u64) -> (Backend, Frontend) {
    let rings = [0, 1].map(|queue| places(&frontend, queue));
    drop(backend);
    // One that is dropped publishes.
    (0..).zip(&rings).for_each(|(queue, ring_then)| frontend.write(ring(queue)[0], ring_then));
    (0..2).for_each(|queue| frontend.write(ring(queue)[2], &[0x5a; 4]));
    let mut backend = Backend::listen(path, 1);
    let frontend = frontend.reconnect(path);
    frontend.set_up(features, 2);
    backend.until_up();
    (backend, frontend)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The frontend knows only where its rings began. Chains have one to three descriptors.
    #[test]
    fn a_killed_backend_goes_on_where_it_published_last(
        in_order: bool,
        sent in proptest::collection::vec(0..3usize, 0..40),
        waiting in proptest::collection::vec(0..2usize, 0..3),
        consumed in 0..2usize,
        flushed: bool,
    ) {
        let features = PACKED | F_EVENT_IDX | if in_order { F_IN_ORDER } else { 0 };
        let (_dir, path, mut backend, mut frontend) = connected(features, SIZE);
        for (seed, cuts) in sent.iter().enumerate() {
            transmit_in_parts(&mut frontend, 0, &frame(seed as u8, 100), &[12, 40][..*cuts]);
            prop_assert_eq!(backend.take().len(), 1);
            prop_assert_eq!(frontend.completed(1), [(0, 0)]);
            frontend.post_buffer(seed as u16 % SIZE, 2048);
            prop_assert_eq!(backend.put(&frame(1, 100), Offload::default()).refusal, None);
            prop_assert_eq!(frontend.completed(0), [(seed as u32 % u32::from(SIZE), 112)]);
        }
        for (seed, cuts) in waiting.iter().enumerate() {
            transmit_in_parts(&mut frontend, 4 * seed as u16, &frame(seed as u8, 100), &[20][..*cuts]);
        }
        let consumed = consumed.min(waiting.len());
        backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
        backend.port.consume(consumed);
        if flushed {
            backend.port.flush(Nanos(0));
        }
        let (mut backend, mut frontend) = killed(backend, frontend, &path, features);
        // What was not published is sent once more.
        let left = if flushed { consumed } else { 0 }..waiting.len();
        let expected: Vec<_> = left.map(|seed| (frame(seed as u8, 100), Offload::default())).collect();
        prop_assert_eq!(backend.take(), expected);
        let completed: Vec<_> = (0..waiting.len() as u32).map(|seed| (4 * seed, 0)).collect();
        prop_assert_eq!(frontend.completed(1), completed);
        frontend.post_buffer(0, 2048);
        prop_assert_eq!(backend.put(&frame(1, 100), Offload::default()).refusal, None);
        prop_assert_eq!(frontend.completed(0), [(0, 112)]);
    }

    /// While no backend is connected, QEMU drops what the guest sends from where it believes the backend to be on; and a
    /// backend may be killed before it publishes the first entry of a burst, which it does last. The guest gets
    /// everything back.
    #[test]
    fn what_was_completed_out_of_turn_is_skipped(
        before in 0..20u16,
        waiting in 1..=SIZE,
        skipped in 0..SIZE,
        more in 0..=SIZE,
    ) {
        let (_dir, path, mut backend, mut frontend) = connected(PACKED, SIZE);
        for _ in 0..before {
            frontend.transmit(0, NO_HEADER, &frame(0, 100));
            prop_assert_eq!(backend.take().len(), 1);
            prop_assert_eq!(frontend.completed(1).len(), 1);
        }
        (0..waiting).for_each(|id| frontend.transmit(id, NO_HEADER, &frame(0, 100)));
        for id in skipped..waiting {
            let number = before + id;
            let flags = if number & SIZE == 0 { AVAILABLE | USED } else { 0 };
            let word = [0, 0, id, flags].map(u16::to_le_bytes).concat();
            frontend.write(ring(1)[0] + 16 * u64::from(number % SIZE) + 8, &word);
        }
        let more = waiting..(waiting + more).min(SIZE);
        more.clone().for_each(|id| frontend.transmit(id, NO_HEADER, &frame(1, 100)));
        let (mut backend, mut frontend) = killed(backend, frontend, &path, PACKED);
        let dropped = skipped < waiting;
        let expected: usize = more.len() + if dropped { 0 } else { usize::from(waiting) };
        prop_assert_eq!(backend.take().len(), expected);
        let completed: Vec<_> = (0..more.end.into()).map(|id| (id, 0)).collect();
        prop_assert_eq!(frontend.completed(1), completed);
        frontend.transmit(0, NO_HEADER, &frame(2, 100));
        prop_assert_eq!(backend.take(), [(frame(2, 100), Offload::default())]);
    }
}

#[test]
fn a_chain_longer_than_the_ring() {
    disabled_by(PACKED, "an endless chain of descriptors", |frontend| {
        // From the sixth place on, over the end of the ring, and around.
        (0..SIZE).for_each(|number| frontend.write_packed(1, number, BUFFERS, 100, 0, NEXT));
    });
}

/// A chain may not lead into descriptors of the chains before it, which are not used yet.
#[test]
fn a_chain_into_the_one_before_it() {
    disabled_by(PACKED, "an endless chain of descriptors", |frontend| {
        frontend.transmit(0, NO_HEADER, &frame(0, 100));
        (1..SIZE).for_each(|number| frontend.write_packed(1, number, BUFFERS, 100, 0, NEXT));
    });
}

#[test]
fn buffers_and_tables_that_break_rules() {
    let chain = |address: u64, len: u32, flags: u16| {
        move |frontend: &mut Frontend| frontend.write_packed(1, 0, address, len, 7, flags)
    };
    disabled_by(PACKED, "a descriptor of 0 bytes", chain(BUFFERS, 0, 0));
    disabled_by(PACKED, "writable by the device", chain(BUFFERS, 100, WRITE));
    disabled_by(PACKED, "has no room for the packet header", chain(BUFFERS, 12, 0));
    disabled_by(PACKED, "a frame of more than 65557 bytes", chain(BUFFERS, 65570, 0));
    for address in [MEMORY, MEMORY - 50, 0u64.wrapping_sub(GUEST), u64::MAX - GUEST - 20] {
        disabled_by(PACKED, "is not in shared memory", chain(address, 100, 0));
    }
    for (len, flags) in [(0, INDIRECT), (24, INDIRECT), (16, INDIRECT | NEXT), (16 * 32769, INDIRECT)] {
        disabled_by(PACKED, "an indirect table of", chain(BUFFERS, len, flags));
    }
    disabled_by(PACKED, "is not in shared memory", chain(MEMORY - 8, 16, INDIRECT));
    disabled_by(PACKED, "neither nested nor followed", |frontend| {
        frontend.write(BUFFERS, &descriptor(GUEST + BUFFERS, 16, 0, INDIRECT));
        frontend.write_packed(1, 0, BUFFERS, 16, 0, INDIRECT);
    });
    disabled_by(PACKED, "in more segments than any driver makes", |frontend| {
        let table: Vec<u8> = (0..2000).flat_map(|_| descriptor(GUEST + BUFFERS, 1, 0, 0)).collect();
        frontend.write(BUFFERS + 0x10000, &table);
        frontend.write_packed(1, 0, BUFFERS + 0x10000, 2000 * 16, 0, INDIRECT);
    });
    disabled_by(PACKED, "not writable by the device", |frontend| frontend.write_packed(0, 0, BUFFERS, 2048, 0, 0));
    disabled_by(PACKED, "truncated its guest's memory", |frontend| frontend.memory.set_len(0).unwrap());
}

#[test]
fn an_indirect_table_that_was_not_negotiated() {
    let (_dir, _, mut backend, frontend) = connected(PACKED & !F_INDIRECT, SIZE);
    frontend.write_packed(1, 0, BUFFERS, 16, 0, INDIRECT);
    assert!(backend.take().is_empty());
    backend.assert_disabled("was not negotiated");
}

/// A driver that turns used descriptors back, or makes those available that it does not own, gets no more of the worker
/// than a ring's length, and breaks only its own ring.
#[test]
fn descriptors_made_available_out_of_turn_are_bounded() {
    let (_dir, _, mut backend, mut frontend) = connected(PACKED, SIZE);
    let place = |frontend: &Frontend, round: u16| {
        (0..SIZE).for_each(|number| frontend.write_packed(1, number + round * SIZE, BUFFERS, 112, number, 0));
    };
    frontend.write(BUFFERS, &[NO_HEADER.to_vec(), frame(0, 100)].concat());
    place(&frontend, 0);
    let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
    assert_eq!(batch.len(), usize::from(SIZE));
    backend.port.consume(usize::from(SIZE));
    // Available in the next round, while the first round is completed and not published.
    place(&frontend, 1);
    assert!(backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0)).is_empty());
    assert!(!backend.port.waiting(Nanos(0)));
    backend.port.flush(Nanos(0));
    place(&frontend, 1);
    assert_eq!(backend.take().len(), usize::from(SIZE));
    assert_eq!(backend.port.status(), Status::Up);
    frontend.used[1] = 0;
}

#[test]
fn rings_of_impossible_form() {
    for (at, reason) in [
        ([MEMORY - 64, 0x8000, 0xc000], "the descriptor ring at"),
        ([0, MEMORY - 2, 0xc000], "the driver area at"),
        ([0, 0x8000, MEMORY - 2], "the device area at"),
        ([8, 0x8000, 0xc000], "is not aligned"),
        ([0, 0x8002, 0xc000], "is not aligned"),
        ([0, 0x8000, 0xc002], "is not aligned"),
    ] {
        let (_dir, path) = place();
        let mut backend = Backend::listen(&path, 1);
        let frontend = Frontend::connect(&path, SIZE);
        frontend.set_up(PACKED, 0);
        frontend.send_words(SET_VRING_NUM, &[1, SIZE.into()]);
        let [descriptors, driver, device] = at.map(|at| USER + at);
        frontend.send_longs(SET_VRING_ADDR, &[1, descriptors, device, driver, 0], &[]);
        frontend.send_longs(SET_VRING_KICK, &[1], &[frontend.kicks[1].as_raw_fd()]);
        frontend.send_words(SET_VRING_ENABLE, &[1, 1]);
        let why = backend.until_disabled();
        assert!(why.contains(reason), "the reason is: {why}");
    }
}

/// User-Mode Linux sends 0 for where its rings begin, without the wrap counter.
#[test]
fn a_ring_that_begins_at_0_has_the_wrap_counter_1() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, SIZE);
    frontend.set_up(PACKED, 0);
    for queue in 0..2 {
        frontend.set_up_ring(queue);
        frontend.send_words(SET_VRING_BASE, &[queue, 0]);
    }
    backend.until_up();
    frontend.transmit(0, NO_HEADER, &frame(1, 200));
    assert_eq!(backend.take(), [(frame(1, 200), Offload::default())]);
}
