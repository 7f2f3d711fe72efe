//! Tests with a real tap.

use super::*;
use crate::map::Map;
use crate::testing::{ALL, datagram, in_namespace, ip, put, tcp_passes};
use fairlane_core::packet::Checksum;
use fairlane_core::time::SECOND;
use std::net::UdpSocket;

/// A tap whose interface has an address, and a neighbour entry for 10.9.0.2.
fn tap() -> Tap {
    let tap = Tap::open("fl0").unwrap();
    ip("link set fl0 address 02:00:00:00:00:01");
    ip("addr add 10.9.0.1/24 dev fl0");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev fl0");
    tap
}

#[test]
fn datagrams_pass_both_ways() {
    in_namespace(|| {
        let mut tap = tap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();

        for size in [1, 60, 200, 1400] {
            let (frame, offload) = datagram(port, &vec![size as u8; size]);
            assert_eq!(put(&mut tap, &frame, offload), Put { accepted: 1, refusal: None });
            let mut received = [0; 2000];
            assert_eq!(socket.recv(&mut received).unwrap(), size);
            assert!(received[..size].iter().all(|byte| *byte == size as u8));
        }

        socket.send_to(&[7; 300], "10.9.0.2:9").unwrap();
        let mut burst = Burst::new();
        let mut found = false;
        while tap.enable_notifications(Wanted { frames: true, room: false }) {
            let batch = tap.offer(&mut burst, Budget { frames: 1, ..ALL }, Nanos(0));
            let frame = batch.frame(0);
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            if bytes.len() == 342 && bytes[12..14] == [8, 0] && bytes[42..] == [7; 300] {
                assert_eq!(frame.offload().checksum, Checksum::Partial { start: 34, offset: 6 });
                found = true;
            }
            tap.consume(1);
        }
        assert!(found, "the datagram arrived through the tap with a partial checksum");
    });
}

#[test]
fn an_empty_tap_is_read_again_when_the_poller_reports_it() {
    in_namespace(|| {
        let mut tap = tap();
        let (poller, mut ready) = (Poller::new().unwrap(), Vec::new());
        tap.register(&poller, Key(1)).unwrap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let (mut burst, mut now) = (Burst::new(), Nanos(0));
        for _ in 0..3 {
            // Drained, as a worker does before it sleeps; the interface itself may have sent something.
            while tap.enable_notifications(Wanted { frames: true, room: false }) {
                let frames = tap.offer(&mut burst, ALL, now).len();
                tap.consume(frames);
                now += PAUSE;
            }
            poller.wait(Nanos(0), &mut ready).unwrap();
            socket.send_to(&[7; 300], "10.9.0.2:9").unwrap();
            assert!(tap.offer(&mut burst, ALL, now).is_empty(), "a worker woken by something else does not read it");
            poller.wait(Nanos(SECOND), &mut ready).unwrap();
            assert!(!ready.is_empty());
            ready.iter().for_each(|(_, queue)| tap.event(*queue, &poller, now));
            assert!(!tap.offer(&mut burst, ALL, now).is_empty());
        }
    });
}

#[test]
fn a_flood_for_one_guest_leaves_room_for_others() {
    in_namespace(|| {
        let mut tap = tap();
        ip("neigh add 10.9.0.3 lladdr 02:00:00:00:00:03 dev fl0");
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        // More than any queue holds.
        for _ in 0..2000 {
            let _ = socket.send_to(&[7; 60], "10.9.0.2:9");
        }
        socket.send_to(&[8; 60], "10.9.0.3:9").unwrap();
        let mut burst = Burst::new();
        let batch = tap.offer(&mut burst, ALL, Nanos(0));
        let destinations: Vec<u8> = (0..batch.len()).map(|frame| batch.head(frame)[5]).collect();
        assert!(destinations.contains(&2) && destinations.contains(&3), "{destinations:?}");
    });
}

/// What is read belongs to this process alone; the rest can be left to its successor.
#[test]
fn no_more_is_read_than_may_be_offered() {
    in_namespace(|| {
        let mut tap = tap();
        ip("neigh add 10.9.0.3 lladdr 02:00:00:00:00:03 dev fl0");
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        for _ in 0..100 {
            socket.send_to(&[7; 60], "10.9.0.2:9").unwrap();
        }
        socket.send_to(&[8; 60], "10.9.0.3:9").unwrap();
        let (mut burst, mut now, mut destinations) = (Burst::new(), Nanos(0), Vec::new());
        for budget in [(1, 32), (u64::MAX, 1), (1000, 32), (u64::MAX, 3), (0, 32), (1, 0)].repeat(20) {
            let budget = Budget { bytes: budget.0, frames: budget.1 };
            assert!(tap.waiting(now));
            let batch = tap.offer(&mut burst, budget, now);
            destinations.extend((0..batch.len()).map(|frame| batch.head(frame)[5]));
            let (frames, nothing) = (batch.len(), budget.bytes == 0 || budget.frames == 0);
            assert_eq!(tap.count, if nothing { 1 } else { frames }, "{budget:?}");
            tap.consume(frames);
            now += PAUSE;
            if destinations.len() > 80 {
                break;
            }
        }
        let first = destinations.iter().position(|destination| *destination == 3);
        assert!(first.is_some_and(|first| first < 40), "each queue has its turn: {destinations:?}");
    });
}

#[test]
fn an_interface_with_one_queue_is_a_tap_too() {
    in_namespace(|| {
        for (kind, queues) in [("", 1), (" multi_queue", device::QUEUES)] {
            ip(&format!("tuntap add fl0 mode tap{kind}"));
            let mut tap = tap();
            assert_eq!(tap.queues.len(), queues);
            let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
            (0..10).for_each(|_| drop(socket.send_to(&[7; 60], "10.9.0.2:9")));
            let mut burst = Burst::new();
            let batch = tap.offer(&mut burst, ALL, Nanos(0));
            assert!((0..batch.len()).filter(|frame| batch.head(*frame)[5] == 2).count() == 10);
            drop(tap);
            ip("link del fl0");
        }
    });
}

#[test]
fn a_body_of_many_segments_is_one_frame() {
    in_namespace(|| {
        let mut tap = tap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let payload: Vec<u8> = (0..1400).map(|at| at as u8).collect();
        let (frame, offload) = datagram(socket.local_addr().unwrap().port(), &payload);
        for size in [600, 10] {
            let mut burst = Burst::new();
            let mut filler = burst.fill();
            // SAFETY: `frame` outlives the batch.
            frame.chunks(size).for_each(|segment| unsafe {
                assert!(filler.segment(segment.as_ptr(), segment.len() as u32));
            });
            filler.gathered(0, frame.len() as u32);
            filler.settle::<0, ()>(0, |_, _, _| Ok(offload)).unwrap();
            assert_eq!(tap.put(&filler.done(), 0..1, Nanos(0)).accepted, 1);
            let mut received = [0; 2000];
            assert_eq!(socket.recv(&mut received).unwrap(), payload.len());
            assert_eq!(received[..payload.len()], payload);
        }
    });
}

/// Its sender truncated the file that the frame is in: the kernel cannot read it.
#[test]
fn a_torn_frame_is_its_senders_and_the_tap_goes_on() {
    in_namespace(|| {
        let mut tap = tap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let (frame, offload) = datagram(socket.local_addr().unwrap().port(), &[7; 1000]);
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = Map::of(&file, 4096).unwrap();
        let mut burst = Burst::new();
        let mut filler = burst.fill();
        // SAFETY: the mapping outlasts the batch, and `frame` too.
        unsafe {
            assert!(filler.segment(frame.as_ptr(), 600));
            assert!(filler.segment(memory.start(), 442));
        }
        filler.gathered(0, 1042);
        filler.settle::<0, ()>(0, |_, _, _| Ok(offload)).unwrap();
        let batch = filler.done();
        file.set_len(0).unwrap();
        let torn = tap.put(&batch, 0..1, Nanos(0));
        assert_eq!(torn, Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::Malformed)) });
        assert_eq!(tap.status(), Status::Up);
        assert_eq!(put(&mut tap, &frame, offload).accepted, 1);
        assert_eq!(socket.recv(&mut [0; 2000]).unwrap(), 1000);
    });
}

#[test]
fn tcp_passes_between_two_taps_in_large_frames() {
    let taps = tcp_passes(
        |address| {
            let tap = Tap::open("fl0").unwrap();
            ip(&format!("addr add {address}/24 dev fl0"));
            tap
        },
        10_000,
    );
    assert!(taps.is_none_or(|taps| taps.map(|tap| tap.refused()) == [0, 0]));
}

#[test]
fn errors_name_the_cause() {
    assert!(matches!(Tap::open(""), Err(Error::Name(_))));
    assert!(matches!(Tap::open("a/b"), Err(Error::Name(_))));
    assert!(matches!(Tap::open("sixteen-bytes-16"), Err(Error::Name(_))));
    in_namespace(|| {
        let mut tap = tap();
        assert!(matches!(Tap::open("fl0"), Err(Error::Busy { .. })));
        assert!(Tap::open("lo").err().unwrap().to_string().contains("another kind"));

        let (frame, offload) = datagram(9, &[1; 20]);
        assert_eq!(
            put(&mut tap, &frame[..13], Offload::default()).refusal,
            Some(Refusal::Never(DropReason::Malformed))
        );
        ip("link set fl0 down");
        assert_eq!(put(&mut tap, &frame, offload).refusal, Some(Refusal::Never(DropReason::ReceiverDown)));
        assert_eq!(tap.status(), Status::Up);
        ip("link del fl0");
        assert_eq!(put(&mut tap, &frame, offload).refusal, Some(Refusal::Never(DropReason::ReceiverDown)));
        assert!(matches!(tap.status(), Status::Disabled(_)));
    });
}

#[test]
fn without_permission_the_error_says_what_to_do() {
    in_namespace(|| {
        // Root without capabilities (linux/capability.h, version 3): who may use the device depends on the machine.
        let (this_thread, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        // SAFETY: both structures are readable and of that version's size. Only this thread is changed, and it ends
        // with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_capset, this_thread.as_ptr(), none.as_ptr()) }, 0);
        let error = Tap::open("fl0").err().expect("refused").to_string();
        assert!(error.contains("ip tuntap add fl0 mode tap") && error.contains("CAP_NET_ADMIN"), "{error}");
    });
}
