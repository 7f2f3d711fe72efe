//! The service for a vhost-user frontend that keeps the rules.

mod frontend;

use fairlane_core::packet::{Offload, checksum};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_port::vhost_user::VhostUser;
use fairlane_port::{Control, Refusal, Room, Sink, Source, Status, Wanted, Withheld, memory};
use frontend::*;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;

#[test]
fn offers_the_features_it_serves() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 2);
    let mut frontend = Frontend::connect(&path, 8);
    for request in [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM] {
        frontend.send(request, 1, &[], &[]);
    }
    backend.settle();
    let (features, protocol) = (frontend.reply_long(), frontend.reply_long());
    // MRG_RXBUF, CSUM, TSO, LOG_ALL, INDIRECT, EVENT_IDX, VERSION_1, RING_PACKED, IN_ORDER, MQ; never the control queue
    // (17).
    for bit in [15, 0, 1, 7, 8, 11, 12, 26, 28, 29, 32, 34, 35, 22, 30] {
        assert!(features & 1 << bit != 0, "feature {bit} is not offered");
    }
    assert_eq!(features & 1 << 17, 0);
    // MQ, LOG_SHMFD, RARP, REPLY_ACK, NET_MTU, BACKEND_REQ, CONFIGURE_MEM_SLOTS, STATUS
    assert_eq!(protocol, 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 15 | 1 << 16);
    assert_eq!(frontend.reply_long(), 2);
}

#[test]
fn one_queue_is_offered_without_mq() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, 8);
    frontend.send(GET_FEATURES, 1, &[], &[]);
    backend.settle();
    assert_eq!(frontend.reply_long() & 1 << 22, 0);
}

/// A driver that sees MTU (3) takes it from the frontend, which must have it.
#[test]
fn an_mtu_is_offered_where_the_frontend_has_one() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, 8);
    for (protocol, offered) in [(1 << 3, false), (1 << 3 | 1 << 4, true)] {
        frontend.send_longs(SET_PROTOCOL_FEATURES, &[protocol], &[]);
        frontend.send(GET_FEATURES, 1, &[], &[]);
        backend.settle();
        assert_eq!(frontend.reply_long() & 1 << 3 != 0, offered);
    }
    frontend.send(NET_SET_MTU, 9, &9000u64.to_ne_bytes(), &[]);
    backend.settle();
    assert_eq!(frontend.reply_long(), 0, "it is accepted");
    frontend.send(NET_SET_MTU, 9, &67u64.to_ne_bytes(), &[]);
    assert!(backend.until_disabled().contains("an MTU of 67; it must be 68 to 65535"));
}

#[test]
fn frames_leave_in_order_and_are_completed() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let sent: Vec<_> = (0..5).map(|seed| frame(seed, 60 + 300 * seed as usize)).collect();
    for (index, frame) in sent.iter().enumerate() {
        frontend.transmit(index as u16, NO_HEADER, frame);
    }
    let taken = backend.take();
    assert_eq!(taken, sent.into_iter().map(|frame| (frame, Offload::default())).collect::<Vec<_>>());
    assert_eq!(frontend.completed(1), (0..5).map(|head| (head, 0)).collect::<Vec<_>>());
}

#[test]
fn unconsumed_frames_are_offered_again() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    for seed in 0..4 {
        frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100));
    }
    let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
    assert_eq!(batch.len(), 4);
    backend.port.consume(1);
    backend.port.consume(1);
    backend.port.flush(Nanos(0));
    assert_eq!(frontend.completed(1), [(0, 0), (1, 0)]);
    assert_eq!(backend.take(), [(frame(2, 100), Offload::default()), (frame(3, 100), Offload::default())]);
}

/// A guest does not know of what was taken or put before the flush.
#[test]
fn a_queue_is_withheld_until_the_flush() {
    for features in [RICH, RICH | F_PACKED] {
        let (_dir, _, mut backend, mut frontend) = connected(features, 8);
        (0..6).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100)));
        assert_eq!(backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0)).len(), 6);
        for (consumed, sent) in [(3, false), (1, true)] {
            backend.port.consume(consumed);
            assert_eq!(backend.port.withheld(), Withheld { sent, received: false });
        }
        backend.port.flush(Nanos(0));
        assert_eq!(backend.port.withheld(), Withheld::default());
        (0..8).for_each(|index| frontend.post_buffer(index, 2048));
        let (mut source, peer) = memory::pair(4);
        (0..4).for_each(|seed| peer.send(&frame(seed, 100), Offload::default()));
        let batch = source.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
        for (frames, received) in [(0..3, false), (3..4, true)] {
            assert_eq!(backend.port.put(&batch, frames, Nanos(0)).refusal, None);
            assert_eq!(backend.port.withheld(), Withheld { sent: false, received });
        }
        backend.port.flush(Nanos(0));
        assert_eq!(backend.port.withheld(), Withheld::default());
    }
}

#[test]
fn a_budget_bounds_the_offer() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    for seed in 0..4 {
        frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 1000));
    }
    for (bytes, frames, expected) in [(1, 32, 1), (1000, 32, 1), (1001, 32, 2), (u64::MAX, 3, 3)] {
        let budget = fairlane_core::sched::Budget { bytes, frames };
        assert_eq!(backend.port.offer(&mut backend.burst, budget, Nanos(0)).len(), expected);
    }
}

/// The header may be spread over descriptors, and data begin anywhere: "never assume a descriptor layout".
#[test]
fn any_layout_of_a_chain_is_read() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 64);
    let wanted = frame(7, 300);
    let mut bytes = NO_HEADER.to_vec();
    bytes.extend(&wanted);
    for cuts in [vec![12], vec![5, 12], vec![1, 2, 3, 13, 140], vec![12, 13, 140, 141, 299]] {
        frontend.write(BUFFERS, &bytes);
        let ends = cuts.iter().copied().chain([bytes.len()]);
        let mut start = 0;
        for (index, end) in ends.enumerate() {
            let last = index == cuts.len();
            let flags = if last { 0 } else { NEXT };
            frontend.descriptor(1, index as u16, BUFFERS + start as u64, (end - start) as u32, flags, index as u16 + 1);
            start = end;
        }
        frontend.push(1, 0);
        assert_eq!(backend.take(), [(wanted.clone(), Offload::default())], "cut at {cuts:?}");
    }
}

#[test]
fn an_indirect_table_is_read() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let wanted = frame(9, 500);
    frontend.write(BUFFERS, &NO_HEADER);
    frontend.write(BUFFERS + 0x1000, &wanted);
    let table = BUFFERS + 0x4008; // aligned to nothing in particular
    frontend.write(table, &descriptor(GUEST + BUFFERS, 12, NEXT, 1));
    frontend.write(table + 16, &descriptor(GUEST + BUFFERS + 0x1000, 200, NEXT, 2));
    frontend.write(table + 32, &descriptor(GUEST + BUFFERS + 0x1000 + 200, 300, 0, 0));
    frontend.descriptor(1, 3, table, 48, INDIRECT, 0);
    frontend.push(1, 3);
    assert_eq!(backend.take(), [(wanted, Offload::default())]);
    assert_eq!(frontend.completed(1), [(3, 0)]);
}

#[test]
fn a_buffer_may_cross_from_one_region_into_the_next() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = Frontend::connect(&path, 8);
    frontend.send_longs(SET_FEATURES, &[RICH], &[]);
    let half = MEMORY / 2;
    let fd = frontend.memory.as_raw_fd();
    // Adjacent for the guest, apart for the frontend.
    let regions = [2, GUEST, half, USER, 0, GUEST + half, half, USER + 2 * MEMORY, half];
    frontend.send_longs(SET_MEM_TABLE, &regions, &[fd, fd]);
    (0..2).for_each(|queue| frontend.set_up_ring(queue));
    backend.until_up();
    let wanted = frame(1, 900);
    frontend.write(half - 100, &[NO_HEADER.to_vec(), wanted.clone()].concat());
    frontend.descriptor(1, 0, half - 100, 912, 0, 0);
    frontend.push(1, 0);
    assert_eq!(backend.take(), [(wanted, Offload::default())]);
}

#[test]
fn a_frame_arrives_in_a_posted_buffer() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    frontend.post_buffer(2, 2048);
    let put = backend.put(&frame(3, 700), Offload::default());
    assert_eq!((put.accepted, put.refusal), (1, None));
    assert_eq!(frontend.completed(0), [(2, 712)]);
    let got = frontend.received_buffer(2, 712);
    // num_buffers is 1.
    assert_eq!(got[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(got[HEADER..], frame(3, 700));
}

#[test]
fn a_large_frame_takes_several_buffers_and_keeps_its_offload() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 32);
    for index in 0..20 {
        frontend.post_buffer(index, 4096);
    }
    let sent = frame(5, 65_000);
    let put = backend.put(&sent, tcp_offload(Some(1448)));
    assert_eq!((put.accepted, put.refusal), (1, None));
    let completed = frontend.completed(0);
    assert_eq!(completed.len(), (65_000 + HEADER).div_ceil(4096));
    let got: Vec<u8> = completed.iter().flat_map(|(head, len)| frontend.received_buffer(*head, *len)).collect();
    assert_eq!(got[HEADER..], sent);
    assert_eq!(got[..HEADER], [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, completed.len() as u8, 0]);
}

/// A driver without offloads gets segments with complete checksums: all of a frame or nothing of it.
#[test]
fn a_guest_without_offloads_gets_complete_frames() {
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_MRG_RXBUF, 8);
    (0..2).for_each(|index| frontend.post_buffer(index, 2048));
    let put = backend.put(&tcp_frame(2500), tcp_offload(Some(1000)));
    assert_eq!((put.refusal, frontend.completed(0).len()), (Some(Refusal::Full), 0), "the third segment has no buffer");
    assert_eq!(backend.port.room(Nanos(0)), Room::Unknown);
    frontend.post_buffer(2, 2048);
    assert_eq!(backend.port.room(Nanos(0)), Room::Now);
    assert_eq!(backend.put(&tcp_frame(2500), tcp_offload(Some(1000))).refusal, None);
    let completed = frontend.completed(0);
    assert_eq!(completed.iter().map(|(_, len)| *len as usize - HEADER - 54).collect::<Vec<_>>(), [1000, 1000, 500]);
    for (head, len) in completed {
        let got = frontend.received_buffer(head, len);
        assert_eq!(got[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert!(checksum::verify(&got[HEADER..]).unwrap());
    }
    frontend.post_buffer(3, 2048);
    assert_eq!(backend.put(&tcp_frame(300), tcp_offload(None)).refusal, None);
    assert!(checksum::verify(&frontend.received_buffer(3, 366)[HEADER..]).unwrap());
    assert_eq!(frontend.received_buffer(3, HEADER as u32)[0], 0, "there is no offload");
}

#[test]
fn more_segments_than_the_ring_holds_never_fit() {
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN | F_MRG_RXBUF, 4);
    (0..4).for_each(|index| frontend.post_buffer(index, 2048));
    let put = backend.put(&tcp_frame(5000), tcp_offload(Some(1000)));
    assert_eq!(put.refusal, Some(Refusal::Never(DropReason::TooLarge)));
    assert_eq!(backend.put(&tcp_frame(900), tcp_offload(None)).refusal, None);
    assert_eq!(frontend.completed(0), [(0, 966)]);
}

#[test]
fn a_full_ring_makes_frames_wait() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    frontend.post_buffer(0, 1000);
    assert_eq!(backend.put(&frame(0, 1500), Offload::default()).refusal, Some(Refusal::Full));
    assert_eq!(backend.port.room(Nanos(0)), Room::Unknown);
    assert!(!backend.port.enable_notifications(Wanted { frames: false, room: true }));
    frontend.post_buffer(1, 1000);
    assert!(
        backend.port.enable_notifications(Wanted { frames: false, room: true }),
        "there is room before the worker sleeps"
    );
    assert_eq!(backend.port.room(Nanos(0)), Room::Now);
    assert_eq!(backend.put(&frame(0, 1500), Offload::default()).refusal, None);
    assert_eq!(frontend.completed(0), [(0, 1000), (1, 512)]);
}

#[test]
fn a_frame_that_never_fits_is_refused() {
    let too_large = Some(Refusal::Never(DropReason::TooLarge));
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 4);
    (0..4).for_each(|index| frontend.post_buffer(index, 1000));
    assert_eq!(backend.put(&frame(0, 5000), Offload::default()).refusal, too_large, "larger than the whole ring");
    let (_dir, _, mut backend, mut frontend) = connected(PLAIN, 4);
    (0..4).for_each(|index| frontend.post_buffer(index, 1000));
    assert_eq!(backend.put(&frame(0, 1500), Offload::default()).refusal, too_large, "buffers are not mergeable");
    assert_eq!(backend.put(&frame(0, 988), Offload::default()).refusal, None);
}

#[test]
fn without_a_frontend_the_receiver_is_down() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 1);
    let put = backend.put(&frame(0, 100), Offload::default());
    assert_eq!(put.refusal, Some(Refusal::Never(DropReason::ReceiverDown)));
    assert_eq!(backend.port.status(), Status::Waiting);
}

#[test]
fn kicks_are_enabled_only_before_sleep() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let flags = |frontend: &Frontend| frontend.read(ring(1)[2], 2);
    assert_eq!(flags(&frontend), [1, 0]); // VRING_USED_F_NO_NOTIFY
    assert!(!backend.port.enable_notifications(Wanted { frames: true, room: false }));
    assert_eq!(flags(&frontend), [0, 0]);
    backend.port.disable_notifications();
    assert_eq!(flags(&frontend), [1, 0]);
    frontend.transmit(0, NO_HEADER, &frame(0, 80));
    assert!(
        backend.port.enable_notifications(Wanted { frames: true, room: false }),
        "a frame arrived before the worker sleeps"
    );
}

#[test]
fn each_kick_wakes_a_worker_once() {
    let (_dir, _, mut backend, frontend) = connected(RICH, 8);
    for _ in 0..20_000 {
        frontend.kick(1);
        assert_eq!(backend.handle(Nanos(0)), 1);
        assert_eq!(backend.handle(Nanos(0)), 0, "a handled kick is over");
    }
}

#[test]
fn a_reconnected_frontend_resumes_where_it_stopped() {
    let (_dir, path, mut backend, mut frontend) = connected(RICH, 8);
    for seed in 0..4 {
        frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100));
    }
    backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
    backend.port.consume(2);
    backend.port.flush(Nanos(0));
    let mut frontend = frontend.reconnect(&path);
    frontend.set_up(RICH, 2);
    backend.until(|port| port.status() != Status::Up);
    backend.until_up();
    assert_eq!(backend.take(), [(frame(2, 100), Offload::default()), (frame(3, 100), Offload::default())]);
    assert_eq!(frontend.completed(1).len(), 4);
}

#[test]
fn a_restarted_backend_resumes_where_it_stopped() {
    let (_dir, path, mut backend, mut frontend) = connected(RICH, 8);
    frontend.transmit(0, NO_HEADER, &frame(0, 100));
    assert_eq!(backend.take().len(), 1);
    frontend.transmit(1, NO_HEADER, &frame(1, 100));
    drop(backend);
    let mut backend = Backend::listen(&path, 1);
    let mut frontend = frontend.reconnect(&path);
    frontend.set_up(RICH, 2);
    backend.until_up();
    assert_eq!(backend.take(), [(frame(1, 100), Offload::default())]);
    assert_eq!(frontend.completed(1).len(), 2);
}

#[test]
fn it_connects_to_a_frontend_that_listens_now_or_later() {
    let (_dir, path) = place();
    let mut backend = Backend::new(VhostUser::connect("test", &path, 1).unwrap());
    backend.settle();
    let listener = UnixListener::bind(&path).unwrap();
    let memory = {
        let (_dir, path) = place();
        let _listener = UnixListener::bind(&path).unwrap();
        Frontend::connect(&path, 8).memory
    };
    for _ in 0..2 {
        // The second time the frontend was restarted.
        listener.set_nonblocking(true).unwrap();
        let stream = std::cell::RefCell::new(None);
        backend.until(|_| {
            let mut stream = stream.borrow_mut();
            *stream = stream.take().or_else(|| listener.accept().ok());
            stream.is_some()
        });
        let (stream, _) = stream.into_inner().unwrap();
        stream.set_nonblocking(false).unwrap();
        let frontend = Frontend::over(stream, memory.try_clone().unwrap(), 8);
        frontend.set_up(RICH, 2);
        backend.until_up();
        drop(frontend);
        backend.until(|port| port.status() == Status::Waiting);
    }
}

#[test]
fn stopping_a_ring_returns_its_index() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    (0..3).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100)));
    backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
    backend.port.consume(2);
    // Not flushed: stopping publishes.
    frontend.send_words(GET_VRING_BASE, &[1, 0]);
    backend.settle();
    assert_eq!(frontend.reply(), [1u32.to_ne_bytes(), 2u32.to_ne_bytes()].concat());
    assert_eq!(frontend.completed(1).len(), 2);
    assert!(backend.take().is_empty(), "a stopped ring offers nothing");
    frontend.set_up_ring(1);
    backend.settle();
    assert_eq!(backend.take(), [(frame(2, 100), Offload::default())]);
}

/// QEMU 7.2 stops a device in this way, and refuses to migrate a guest whose rings are then reported to be at their
/// start.
#[test]
fn a_reset_device_returns_its_rings_indices() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    (0..3).for_each(|seed| frontend.transmit(seed.into(), NO_HEADER, &frame(seed, 100)));
    assert_eq!(backend.take().len(), 3);
    frontend.send_longs(SET_STATUS, &[0], &[]);
    frontend.send_words(GET_VRING_BASE, &[1, 0]);
    backend.settle();
    assert_eq!(backend.port.status(), Status::Waiting);
    assert_eq!(frontend.reply(), [1u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat());
}

#[test]
fn memory_regions_are_added_and_removed() {
    let (_dir, _, mut backend, mut frontend) = connected(RICH, 8);
    let extra = [0, GUEST + MEMORY, 4096, USER + MEMORY, 0];
    frontend.send_longs(ADD_MEM_REG, &extra, &[frontend.memory.as_raw_fd()]);
    backend.settle();
    frontend.transmit(0, NO_HEADER, &frame(0, 100));
    assert_eq!(backend.take().len(), 1);
    frontend.send_longs(REM_MEM_REG, &extra, &[]);
    backend.settle();
    frontend.transmit(1, NO_HEADER, &frame(1, 100));
    assert_eq!(backend.take().len(), 1, "the rings survive the removal of another region");
}

/// Memory is plugged in region by region while the rings are configured, and each part of a ring is in another one.
#[test]
fn a_ring_in_several_regions_runs_once_all_are_there() {
    let cuts = [0, 0x8000, 0xc000, 0x10000, 0x18000, 0x1c000, MEMORY];
    let regions: Vec<(u64, u64)> = cuts.windows(2).map(|ends| (ends[0], ends[1] - ends[0])).collect();
    for last in 0..regions.len() {
        let (_dir, path) = place();
        let mut backend = Backend::listen(&path, 1);
        let mut frontend = Frontend::connect(&path, 8);
        frontend.send_longs(SET_OWNER, &[], &[]);
        frontend.send_longs(SET_FEATURES, &[RICH], &[]);
        (0..2).for_each(|queue| frontend.set_up_ring(queue));
        let plug = |frontend: &Frontend, (at, len): (u64, u64)| {
            frontend.send_longs(ADD_MEM_REG, &[0, GUEST + at, len, USER + at, at], &[frontend.memory.as_raw_fd()]);
        };
        regions.iter().enumerate().filter(|(at, _)| *at != last).for_each(|(_, region)| plug(&frontend, *region));
        backend.settle();
        plug(&frontend, regions[last]);
        backend.until_up();
        frontend.transmit(0, NO_HEADER, &frame(1, 200));
        assert_eq!(backend.take(), [(frame(1, 200), Offload::default())]);
        frontend.post_buffer(0, 4096);
        assert_eq!(backend.put(&frame(2, 300), Offload::default()).accepted, 1);
        assert_eq!(frontend.completed(0).len(), 1);
    }
}

#[test]
fn two_queue_pairs_carry_frames() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 2);
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH | 1 << 22, 4);
    backend.until_up();
    for (queue, seed) in [(1, 1), (3, 3)] {
        frontend.write(BUFFERS + 0x2000 * u64::from(seed), &[NO_HEADER.to_vec(), frame(seed, 90)].concat());
        frontend.descriptor(queue, 0, BUFFERS + 0x2000 * u64::from(seed), 102, 0, 0);
        frontend.push(queue, 0);
    }
    let mut taken: Vec<_> = (0..2).flat_map(|_| backend.take()).map(|(frame, _)| frame[0]).collect();
    taken.sort();
    assert_eq!(taken, [1, 3]);
}

#[test]
fn a_queue_with_unconsumed_frames_keeps_its_turn() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 2);
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH | 1 << 22, 4);
    backend.until_up();
    for (queue, seed) in [(1, 1), (1, 2), (3, 3), (3, 4)] {
        let at = BUFFERS + 0x2000 * u64::from(seed);
        frontend.write(at, &[NO_HEADER.to_vec(), frame(seed, 90)].concat());
        frontend.descriptor(queue, seed.into(), at, 102, 0, 0);
        frontend.push(queue, seed.into());
    }
    // Offered, and the first of the offered frames consumed or not.
    let mut shown = |taken: usize| {
        let batch = backend.port.offer(&mut backend.burst, ALL_FRAMES, Nanos(0));
        let seeds: Vec<u8> = batch.frames().map(|frame| frame.head()[0]).collect();
        backend.port.consume(taken);
        seeds
    };
    let first = shown(0);
    assert_eq!(shown(1), first, "none of its frames was consumed");
    assert_eq!(shown(0), first[1..]);
    assert_eq!(shown(1), first[1..]);
    let second = shown(2);
    assert_eq!((first.len(), second.len(), first[0] == second[0]), (2, 2, false));
    assert!(shown(0).is_empty());
}

#[test]
fn waiting_for_room_in_one_queue_ignores_the_other() {
    let (_dir, path) = place();
    let mut backend = Backend::listen(&path, 2);
    let mut frontend = Frontend::connect(&path, 8);
    frontend.set_up(RICH | 1 << 22, 4);
    backend.until_up();
    (0..8).for_each(|index| frontend.post_buffer(index, 1600));
    // Flows are spread over both queues; the second has no buffers.
    let refused = (1..).find(|seed| backend.put(&frame(*seed, 90), Offload::default()).refusal == Some(Refusal::Full));
    assert!(refused.is_some_and(|seed| seed < 8), "the first queue has buffers left");
    let room = Wanted { frames: false, room: true };
    assert_eq!((backend.port.room(Nanos(0)), backend.port.enable_notifications(room)), (Room::Unknown, false));
    frontend.descriptor(2, 0, BUFFERS + 0x10000, 1600, WRITE, 0);
    frontend.push(2, 0);
    assert_eq!((backend.port.room(Nanos(0)), backend.port.enable_notifications(room)), (Room::Now, true));
    let put = backend.put(&frame(refused.unwrap(), 90), Offload::default());
    assert_eq!((put.accepted, put.refusal), (1, None));
}

#[test]
fn a_socket_in_use_is_reported_and_a_stale_one_replaced() {
    let (_dir, path) = place();
    let _backend = Backend::listen(&path, 1);
    let error = VhostUser::listen("second", &path, 1).err().unwrap().to_string();
    assert!(error.contains("is in use by another process") && error.contains("vif.sock"), "{error}");
    let (_dir, path) = place();
    drop(UnixListener::bind(&path).unwrap());
    VhostUser::listen("test", &path, 1).unwrap();
    assert!(!path.exists(), "a dropped port removes its socket");
}
