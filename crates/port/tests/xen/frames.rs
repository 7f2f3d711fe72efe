//! Frames through a Xen vif: out of granted pages, into granted pages, and straight from one guest to another.

use crate::netfront::*;
use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload, checksum};
use fairlane_core::time::Nanos;
use fairlane_port::xen::FrontendFeatures;
use fairlane_port::{Control, Put, Refusal, Room, Sink, Source, Status, Wanted, Withheld};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PARTIAL: Checksum = Checksum::Partial { start: 34, offset: 16 };

fn guests() -> (Frontend, Frontend, Backend, Backend) {
    let machine = Arc::new(Machine::default());
    let (one, two) = (Frontend::new(&machine, 1), Frontend::new(&machine, 2));
    let backends = [&one, &two].map(|frontend| Backend::connected(frontend, EVERYTHING));
    let [first, second] = backends;
    (one, two, first, second)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever pages a frame lies in, its bytes arrive, at a reader in this process and at another guest.
    #[test]
    fn bytes_arrive(lens in prop::collection::vec(1..20_000usize, 1..8), segment in 1200..4096usize, offset in 0..4096usize) {
        let (mut one, mut two, mut first, mut second) = guests();
        let segment = segment.min(4096 - offset).max(1100);
        let offset = offset.min(4096 - segment);
        two.post_buffers(256);
        let frames: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, len)| frame(at as u8, *len)).collect();
        frames.iter().for_each(|frame| one.transmit(frame, segment, offset, 0, None));
        let read: Vec<Vec<u8>> = first.take().into_iter().map(|(bytes, _)| bytes).collect();
        prop_assert_eq!(&read, &frames);
        let responses = one.responses();
        prop_assert_eq!(responses.len() as u32, one.sent);
        prop_assert!(responses.iter().enumerate().all(|(at, answer)| *answer == (at as u16, 0)));
        frames.iter().for_each(|frame| one.transmit(frame, segment, offset, 0, None));
        prop_assert_eq!(first.pass(&mut second), Put { accepted: frames.len(), refusal: None });
        let received: Vec<Vec<u8>> = two.receive().into_iter().map(|(bytes, ..)| bytes).collect();
        prop_assert_eq!(received, frames);
    }
}

/// A guest does not know of what was taken or put before the flush.
#[test]
fn a_ring_is_withheld_until_the_flush() {
    let (mut one, mut two, mut first, mut second) = guests();
    (0..128).for_each(|_| one.transmit(&frame(1, 100), 4000, 0, 0, None));
    two.post_buffers(256);
    let Worker { port, burst, .. } = &mut *first;
    for bursts in 1..=4 {
        let batch = port.offer(burst, ALL_FRAMES, Nanos(0));
        assert_eq!(second.port.put(&batch, 0..32, Nanos(0)), Put { accepted: 32, refusal: None });
        port.consume(32);
        let is_withheld = bursts == 4;
        assert_eq!(port.withheld(), Withheld { sent: is_withheld, received: false });
        assert_eq!(second.port.withheld(), Withheld { sent: false, received: is_withheld });
    }
    for port in [port, &mut second.port] {
        port.flush(Nanos(0));
        assert_eq!(port.withheld(), Withheld::default());
    }
}

/// With self-granted pages nothing is copied by address, until a burst has more segments than they hold.
#[test]
fn bytes_arrive_by_grants_at_both_ends() {
    let machine = Arc::new(Machine::with_self_grants());
    let mut guest = Frontend::new(&machine, 1);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    for (count, len) in [(1, 60), (32, 1500), (10, 9000), (6, 60_000)] {
        let frames: Vec<Vec<u8>> = (0..count).map(|at| frame(at, len)).collect();
        frames.iter().for_each(|frame| guest.transmit(frame, 4000, 50, 0, None));
        let before = machine.ours.load(Ordering::Relaxed);
        let read: Vec<Vec<u8>> = backend.take().into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(read, frames);
        let by_address = machine.ours.load(Ordering::Relaxed) - before;
        assert_eq!(by_address > 0, len == 60_000, "{count} frames of {len}: {by_address} bytes");
        guest.responses();
    }
    for (len, direct) in [(60, false), (2048, false), (2049, true)] {
        guest.post_buffers(2);
        let (bytes, before) = (frame(7, len), machine.ours.load(Ordering::Relaxed));
        assert_eq!(
            [backend.put(&bytes, Offload::default()).accepted, backend.put(&bytes, Offload::default()).accepted],
            [1; 2]
        );
        assert_eq!(guest.receive(), vec![(bytes, 0, None); 2]);
        assert_eq!(machine.ours.load(Ordering::Relaxed) > before, direct, "{len}");
    }
    // To another guest, heads are copied by grants as well.
    let mut other = Frontend::new(&machine, 2);
    let mut second = Backend::connected(&other, EVERYTHING);
    other.post_buffers(64);
    let frames: Vec<Vec<u8>> = (0..20).map(|at| frame(at, 3000)).collect();
    frames.iter().for_each(|frame| guest.transmit(frame, 1500, 50, 0, None));
    let before = machine.ours.load(Ordering::Relaxed);
    assert_eq!(backend.pass(&mut second).accepted, 20);
    let received: Vec<Vec<u8>> = other.receive().into_iter().map(|(bytes, ..)| bytes).collect();
    assert_eq!((received, machine.ours.load(Ordering::Relaxed)), (frames, before));
}

/// Of large frames only the heads are copied to this process.
#[test]
fn a_burst_between_guests_is_two_copies() {
    for (len, here) in [(60, 60), (1500, 1500), (2048, 2048), (2049, 128), (3000, 128)] {
        let (mut one, mut two, mut first, mut second) = guests();
        two.post_buffers(256);
        let frames: Vec<Vec<u8>> = (0..10).map(|at| frame(at, len)).collect();
        frames.iter().for_each(|frame| one.transmit(frame, 4096, 0, 0, None));
        let before = one.machine.ours.load(Ordering::Relaxed);
        assert_eq!(first.pass(&mut second).accepted, 10);
        assert_eq!(one.machine.copies.load(Ordering::Relaxed), 2, "one to this process, one to the receiver");
        assert_eq!(one.machine.ours.load(Ordering::Relaxed) - before, 2 * 10 * here, "{len}");
        let received: Vec<Vec<u8>> = two.receive().into_iter().map(|(bytes, ..)| bytes).collect();
        assert_eq!(received, frames);
    }
}

#[test]
fn offloads_pass_through() {
    let (mut one, mut two, mut first, mut second) = guests();
    two.post_buffers(256);
    let large = tcp_frame(30_000);
    one.transmit(&large, 4000, 10, BLANK, Some((1448, 1)));
    one.transmit(&tcp_frame(100), 4096, 0, BLANK, None);
    first.pass(&mut second);
    let received = two.receive();
    assert_eq!(received, [(large.clone(), 3, Some((1448, 1))), (tcp_frame(100), 3, None)]);
    assert_eq!(
        one.responses().iter().map(|(_, status)| *status).collect::<Vec<_>>()[..3],
        [0, 1, 0],
        "extra info is NULL"
    );
    // Between memory and a guest.
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1448, header: 54 });
    let offload = Offload { checksum: PARTIAL, gso };
    one.transmit(&large, 4000, 10, BLANK, Some((1448, 1)));
    assert_eq!(first.take(), [(large.clone(), offload)]);
    second.put(&large, offload);
    assert_eq!(two.receive(), [(large, 3, Some((1448, 1)))]);
}

#[test]
fn a_guest_without_offloads_gets_complete_frames() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 3);
    guest.post_buffers(64);
    let mut backend = Backend::connected(&guest, FrontendFeatures::default());
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, header: 54 });
    let large = tcp_frame(5000);
    assert_eq!(backend.put(&large, Offload { checksum: PARTIAL, gso }).accepted, 1);
    let received = guest.receive();
    assert_eq!(received.len(), 5);
    assert!(received.iter().all(|(bytes, flags, _)| *flags == 0 && checksum::verify(bytes) == Ok(true)));
    let payload: Vec<u8> = received.iter().flat_map(|(bytes, ..)| bytes[54..].to_vec()).collect();
    assert_eq!(payload, large[54..]);
    let never = backend.put(&frame(0, 4097), Offload::default()).refusal;
    assert!(matches!(never, Some(Refusal::Never(_))), "it has no feature-sg");
}

/// A guest finds no blank checksum behind a VLAN tag, however much it can do.
#[test]
fn tagged_frames_arrive_with_complete_checksums() {
    let (mut one, mut two, mut first, mut second) = guests();
    two.post_buffers(64);
    for tags in [&[0x81, 0x00, 0, 5][..], &[0x88, 0xa8, 0, 9, 0x81, 0x00, 0, 5]] {
        let tagged = |payload| {
            let mut frame = tcp_frame(payload);
            frame.splice(12..12, tags.iter().copied());
            frame
        };
        let payload = 54 + tags.len();
        let large = tagged(5000);
        one.transmit(&tagged(100), 4096, 0, BLANK, None);
        one.transmit(&large, 4000, 10, BLANK, Some((1000, 1)));
        assert_eq!(first.pass(&mut second), Put { accepted: 2, refusal: None });
        let received = two.receive();
        assert_eq!(
            received.iter().map(|(bytes, ..)| bytes.len() - payload).collect::<Vec<_>>(),
            [100, 1000, 1000, 1000, 1000, 1000]
        );
        for (bytes, flags, gso) in &received {
            assert_eq!((*flags, *gso, checksum::verify(bytes)), (0, None, Ok(true)));
        }
        let whole: Vec<u8> = received[1..].iter().flat_map(|(bytes, ..)| bytes[payload..].to_vec()).collect();
        assert_eq!(whole, large[payload..]);
    }
}

#[test]
fn a_full_ring_reports_when_there_is_room() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 3);
    guest.post_buffers(2);
    let mut backend = Backend::connected(&guest, EVERYTHING);
    let large = frame(1, 9000);
    assert_eq!(backend.put(&large, Offload::default()), Put { accepted: 0, refusal: Some(Refusal::Full) });
    assert_eq!(backend.port.room(fairlane_core::time::Nanos(0)), Room::Unknown);
    assert!(!backend.port.enable_notifications(Wanted { frames: false, room: true }));
    guest.post_buffers(1);
    assert_eq!(backend.port.room(fairlane_core::time::Nanos(0)), Room::Now);
    assert!(backend.port.enable_notifications(Wanted { frames: false, room: true }));
    assert_eq!(backend.put(&large, Offload::default()).accepted, 1);
    assert_eq!(guest.receive(), [(large, 0, None)]);
}

#[test]
fn waiting_for_room_in_one_queue_ignores_the_other() {
    let machine = Arc::new(Machine::default());
    let mut one = Frontend::new(&machine, 3);
    let mut other = one.another();
    one.post_buffers(8);
    let mut backend = Backend::new();
    backend.connect(&[&one, &other], EVERYTHING);
    // Flows are spread over both queues; the second has no buffers.
    let refused = (1..).find(|seed| backend.put(&frame(*seed, 90), Offload::default()).refusal == Some(Refusal::Full));
    assert!(refused.is_some_and(|seed| seed < 8), "the first queue has buffers left");
    let room = Wanted { frames: false, room: true };
    let now = fairlane_core::time::Nanos(0);
    assert_eq!((backend.port.room(now), backend.port.enable_notifications(room)), (Room::Unknown, false));
    other.post_buffers(1);
    assert_eq!((backend.port.room(now), backend.port.enable_notifications(room)), (Room::Now, true));
    assert_eq!(backend.put(&frame(refused.unwrap(), 90), Offload::default()).accepted, 1);
    assert_eq!(other.receive(), [(frame(refused.unwrap(), 90), 0, None)]);
}

#[test]
fn a_segmented_frame_arrives_whole_or_not_at_all() {
    let machine = Arc::new(Machine::default());
    let mut guest = Frontend::new(&machine, 3);
    guest.post_buffers(4);
    let mut backend = Backend::connected(&guest, FrontendFeatures::default());
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, header: 54 });
    let offload = Offload { checksum: PARTIAL, gso };
    assert_eq!(backend.put(&tcp_frame(5000), offload), Put { accepted: 0, refusal: Some(Refusal::Full) });
    assert!(guest.receive().is_empty());
    guest.post_buffers(1);
    assert_eq!(backend.port.room(fairlane_core::time::Nanos(0)), Room::Now);
    assert_eq!(backend.put(&tcp_frame(5000), offload).accepted, 1);
    assert_eq!(guest.receive().len(), 5);
}

#[test]
fn rings_wrap_and_frontends_are_notified_when_they_ask() {
    let (mut one, _two, mut first, _second) = guests();
    let start = one.machine.notified.load(Ordering::Relaxed);
    for round in 0..40u8 {
        (0..20).for_each(|_| one.transmit(&frame(round, 100), 4096, 0, 0, None));
        assert_eq!(first.take().len(), 20);
        assert_eq!(one.responses().len(), 20);
    }
    assert_eq!(one.machine.notified.load(Ordering::Relaxed) - start, 1, "rsp_event was 1 and was passed once");
}

#[test]
fn a_restarted_backend_resumes_where_the_last_one_stopped() {
    let (mut one, _two, mut first, _second) = guests();
    one.transmit(&frame(1, 100), 4096, 0, 0, None);
    assert_eq!(first.take().len(), 1);
    one.transmit(&frame(2, 100), 4096, 0, 0, None);
    drop(first);
    assert_eq!(one.machine.users(1, TX), 2, "the frontend and its grant");
    let mut next = Backend::connected(&one, EVERYTHING);
    assert_eq!(next.take(), [(frame(2, 100), Offload::default())]);
    assert_eq!(one.responses().len(), 2);
}

#[test]
fn disconnecting_leaves_nothing_mapped() {
    let (one, _two, mut first, _second) = guests();
    assert_eq!(one.machine.users(1, TX), 3);
    first.plug().disconnect();
    first.settle();
    assert_eq!(first.port.status(), Status::Waiting);
    assert_eq!(first.disconnected.try_recv(), Ok(None));
    assert_eq!([TX, RX].map(|ring| one.machine.users(1, ring)), [2, 2]);
}
