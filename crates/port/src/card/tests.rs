//! Tests with one end of a veth pair as the card, and the other end as the wire.

use super::*;
use crate::store::Stored;
use crate::testing::{ALL, datagram, in_namespace, ip, put, refused, settle, tcp_passes};
use fairlane_core::packet::{Checksum, Offload};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io::Write;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A card. At the other end, eth0, is a host with this address.
fn card(address: &str) -> Card {
    ip("link add fl0 type veth peer name eth0");
    ip("link set eth0 address 02:00:00:00:00:01");
    ip(&format!("addr add {address}/24 dev eth0"));
    ip("link set eth0 up");
    ip("link set fl0 up");
    Card::open("fl0").unwrap()
}

/// The same, with a neighbour entry for 10.9.0.2.
fn pair() -> Card {
    let card = card("10.9.0.1");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0");
    card
}

/// Takes frames until one is for a UDP port: returns it, and its offload. Hosts also send other frames.
fn take(card: &mut Card, header: usize, port: u16) -> Option<(Vec<u8>, Offload)> {
    let mut burst = Burst::new();
    let mut found = None;
    while card.waiting(Nanos(0)) {
        let batch = card.offer(&mut burst, Budget { frames: 1, ..ALL }, Nanos(0));
        let (mut bytes, offload) = (Vec::new(), batch.frame(0).offload());
        batch.frame(0).read(&mut bytes);
        if bytes.get(header + 22..header + 24) == Some(&port.to_be_bytes()) {
            found = Some((bytes, offload));
        }
        card.consume(1);
    }
    found
}

/// Takes the next frame that is for a UDP port.
fn take_one(card: &mut Card, port: u16) -> Option<(Vec<u8>, Offload)> {
    let mut burst = Burst::new();
    while card.waiting(Nanos(0)) {
        let batch = card.offer(&mut burst, Budget { frames: 1, ..ALL }, Nanos(0));
        let (mut bytes, offload) = (Vec::new(), batch.frame(0).offload());
        batch.frame(0).read(&mut bytes);
        card.consume(1);
        if bytes.get(36..38) == Some(&port.to_be_bytes()) {
            return Some((bytes, offload));
        }
    }
    None
}

#[test]
fn datagrams_pass_both_ways() {
    in_namespace(|| {
        let mut card = pair();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        for size in [1, 60, 200, 1400] {
            let (frame, offload) = datagram(port, &vec![size as u8; size]);
            assert_eq!(put(&mut card, &frame, offload), Put { accepted: 1, refusal: None });
            card.flush(Nanos(0));
            let mut received = [0; 2000];
            assert_eq!(socket.recv(&mut received).unwrap(), size);
            assert!(received[..size].iter().all(|byte| *byte == size as u8));
        }
        assert!(take(&mut card, 14, port).is_none(), "frames sent by the card do not come back");

        socket.send_to(&[7; 300], "10.9.0.2:9").unwrap();
        let (bytes, offload) = take(&mut card, 14, 9).expect("the datagram arrived");
        assert_eq!((bytes.len(), &bytes[12..14], &bytes[42..]), (342, &[8, 0][..], &[7; 300][..]));
        assert_eq!(offload.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(card.lost().total(), 0);
    });
}

/// A kernel stores a received frame's tag beside the frame: the port puts it into the frame, as on the wire.
#[test]
fn a_vlan_tag_is_put_back_into_its_frame() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let (untagged, offload) = datagram(700, &[3; 100]);
        assert_eq!(offload.checksum, Checksum::Partial { start: 34, offset: 6 });
        let tagged = [&untagged[..12], &[0x81, 0, 0x60, 5], &untagged[12..]].concat();
        for checksum in [Checksum::Partial { start: 38, offset: 6 }, Checksum::Present] {
            let offload = Offload { checksum, gso: None };
            assert_eq!(put(&mut wire, &tagged, offload), Put { accepted: 1, refusal: None });
            wire.flush(Nanos(0));
            assert_eq!(take(&mut card, 18, 700), Some((tagged.clone(), offload)));
        }
        assert_eq!(put(&mut card, &tagged, Offload::default()), Put { accepted: 1, refusal: None });
        card.flush(Nanos(0));
        assert_eq!(take(&mut wire, 18, 700), Some((tagged, Offload::default())));
    });
}

#[test]
fn tcp_passes_between_two_cards_in_large_frames() {
    let cards = tcp_passes(card, 10_000);
    assert!(cards.is_none_or(|cards| cards.map(|card| card.lost().total()) == [0; 2]));
}

/// Limits the rate of the interface's own queue.
fn shape(rate: &str) {
    let line = format!("qdisc add dev fl0 root tbf rate {rate}");
    let done = Command::new("tc").args(line.split(' ')).output().expect("iproute2 is there");
    assert!(done.status.success(), "tc {line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// An interface queue that accepts a frame now and then: the ring fills and pushes back, and accepted frames arrive,
/// each once and in order.
#[test]
fn a_full_ring_pushes_back_and_loses_nothing() {
    const FRAMES: usize = 600;
    in_namespace(|| {
        let mut card = pair();
        // Room for four frames: the rest is dropped.
        shape("16mbit burst 2000 limit 6000");
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let clock = std::time::Instant::now();
        let (mut sent, mut received, mut full, mut waits) = (0, 0, 0, false);
        while received < FRAMES {
            // On a busy machine, or one that itself waits for its CPU, the queue may stand still for longer than the card tries a frame,
            // whose clock is slow for that.
            let now = Nanos(clock.elapsed().as_nanos() as u64 / 1000);
            waits = waits && card.room(now) != Room::Now;
            while sent < FRAMES && !waits {
                let mut payload = vec![0; 1000];
                payload[..8].copy_from_slice(&(sent as u64).to_be_bytes());
                let (frame, offload) = datagram(port, &payload);
                let Put { accepted, refusal } = put(&mut card, &frame, offload);
                assert!(matches!(refusal, None | Some(Refusal::Full)), "{refusal:?}");
                sent += accepted;
                waits = accepted == 0;
                full += usize::from(waits);
            }
            card.flush(now);
            let mut bytes = [0; 2000];
            while let Ok(len) = socket.recv(&mut bytes) {
                let number = (received as u64).to_be_bytes();
                assert_eq!((len, &bytes[..8]), (1000, &number[..]), "{:?}", card.lost());
                received += 1;
            }
        }
        assert!(full > 0, "the ring was never full");
        assert_eq!(card.lost().get(DropReason::Refused), 0);
    });
}

/// Puts datagrams of these sizes.
fn put_sizes(card: &mut Card, port: u16, sizes: &[usize]) {
    for size in sizes {
        let (frame, offload) = datagram(port, &vec![1; *size]);
        assert_eq!(put(card, &frame, offload).accepted, 1);
    }
}

/// The sizes of the next `count` datagrams.
fn sizes(socket: &UdpSocket, count: usize) -> Vec<usize> {
    socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    (0..count).map(|_| socket.recv(&mut [0; 2000]).unwrap()).collect()
}

/// Frames that are dropped on output, before, between and after others: they are given up at once and counted, and all
/// others pass.
fn dropped_frames_do_not_block_others(card: &mut Card) {
    let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    put_sizes(card, port, &[1300, 1300, 100, 1300, 101, 102, 1300]);
    // A frame that passes a veth is in flight until it is read at the other end. The card's clock stands still here.
    socket.set_nonblocking(true).unwrap();
    let mut received = Vec::new();
    while card.flush(Nanos(0)) != Nanos::NEVER || received.len() < 3 {
        received.extend(socket.recv(&mut [0; 2000]));
    }
    assert_eq!(received, [100, 101, 102]);
    assert_eq!(card.lost().iter().collect::<Vec<_>>(), [(DropReason::Refused, 4)]);
}

#[test]
fn frames_that_the_queue_never_accepts_do_not_block_others() {
    in_namespace(|| {
        let mut card = pair();
        shape("1gbit burst 1000 limit 90000");
        dropped_frames_do_not_block_others(&mut card);
    });
}

#[test]
fn frames_that_a_filter_drops_do_not_block_others() {
    in_namespace(|| {
        let mut card = pair();
        let rules = "add table netdev t; add chain netdev t e { type filter hook egress device fl0 priority 0; }; \
                     add rule netdev t e ip length > 228 drop";
        if !Command::new("nft").arg(rules).status().is_ok_and(|done| done.success()) {
            let _ = writeln!(io::stderr(), "SKIPPED: this test needs nft, and Linux 5.16 with NETFILTER_EGRESS");
            return;
        }
        dropped_frames_do_not_block_others(&mut card);
    });
}

/// A frame that the interface's queue would drop for ever waits while others of ours are in flight, but not for ever;
/// the frames after it pass.
#[test]
fn a_frame_that_is_never_accepted_is_given_up() {
    in_namespace(|| {
        let mut card = pair();
        // A frame larger than the burst never passes, and the third waits for eight seconds for its turn.
        shape("1kbit burst 1000 limit 9000");
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        put_sizes(&mut card, port, &[1400, 500, 900, 1400, 300]);
        for millis in [0, 50, 99] {
            assert_eq!(card.flush(Nanos::from_millis(millis)), Nanos::from_millis(millis) + RETRY);
            assert_eq!((card.transmit.waiting(), card.lost().get(DropReason::Refused)), (2, 1));
        }
        assert_eq!(card.flush(Nanos::from_millis(100)), Nanos::NEVER);
        assert_eq!((card.transmit.waiting(), card.lost().get(DropReason::Refused)), (0, 2));
        assert_eq!(sizes(&socket, 1), [500]);
    });
}

/// Sends numbered datagrams to 10.9.0.HOST, whose address ends with HOST, small ones and large ones in turn, which the card receives in
/// different rings.
fn send_numbered(socket: &UdpSocket, host: u8, numbers: Range<u32>) {
    for number in numbers {
        let payload = [&number.to_be_bytes()[..], &[host; 2000][..if number % 3 == 0 { 2000 } else { 10 }]].concat();
        socket.send_to(&payload, format!("10.9.0.{host}:9")).unwrap();
    }
}

/// Neighbour entries for 10.9.0.HOST, and an MTU for large frames.
fn add_hosts(hosts: Range<u8>) {
    ip("link set eth0 mtu 9000");
    ip("link set fl0 mtu 9000");
    hosts.for_each(|host| ip(&format!("neigh add 10.9.0.{host} lladdr 02:00:00:00:00:{host:02x} dev eth0")));
}

/// Takes frames, at most so many and a few, and returns the numbers of those that are for each of these hosts, in their order.
fn take_numbered(card: &mut Card, hosts: Range<u8>, most: usize) -> Vec<Vec<u32>> {
    let mut numbers = vec![Vec::new(); hosts.len()];
    let (mut burst, mut taken) = (Burst::new(), 0);
    while taken < most && card.waiting(Nanos(0)) {
        let batch = card.offer(&mut burst, Budget { frames: 7, ..ALL }, Nanos(0));
        for frame in batch.frames() {
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            if bytes.get(36..38) == Some(&9u16.to_be_bytes()) && hosts.contains(&bytes[5]) {
                let number = bytes[42..46].try_into().unwrap();
                numbers[usize::from(bytes[5] - hosts.start)].push(u32::from_be_bytes(number));
            }
        }
        let frames = batch.len();
        card.consume(frames);
        taken += frames;
    }
    numbers
}

/// A flood for 10.9.0.2 fills that destination's queue, and what finds it full is counted; no other destination loses a frame, but one
/// of the same queue. And a guest's frames pass in the order in which they arrived, whichever ring they waited in.
#[test]
fn a_flood_for_one_guest_fills_its_queue_only() {
    in_namespace(|| {
        let mut card = pair();
        add_hosts(3..11);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let flood = |frames| (0..frames).for_each(|_| assert!(socket.send_to(&[1; 10], "10.9.0.2:8").is_ok()));
        flood(1100);
        for first in (0..40).step_by(10) {
            (3..11).for_each(|host| send_numbered(&socket, host, first..first + 10));
            flood(25);
        }
        let mut burst = Burst::new();
        let batch = card.offer(&mut burst, ALL, Nanos(0));
        let of_flood = batch.frames().filter(|frame| frame.head()[5] == 2).count();
        assert!((1..=8).contains(&of_flood), "each queue has its turn: {of_flood} of {}", batch.len());
        let numbers = take_numbered(&mut card, 3..11, usize::MAX);
        numbers[..7].iter().for_each(|numbers| assert_eq!(*numbers, (0..40).collect::<Vec<_>>()));
        let large: Vec<u32> = (0..40).step_by(3).collect();
        assert_eq!(numbers[7], large, "10 has the queue of 2, where the ring of large frames is not full");
        // Later frames report the loss.
        flood(1);
        assert!(card.waiting(Nanos(0)));
        let small = 1200 + 40 - large.len() as u64;
        assert!(card.lost().get(DropReason::RingFull) >= small - 1024, "{:?}", card.lost());
    });
}

/// The kernel removes the sockets from the group while the interface is down, and adds them again.
#[test]
fn queues_are_the_same_after_the_interface_was_down() {
    in_namespace(|| {
        let mut card = pair();
        ip("link set fl0 down");
        ip("link set fl0 up");
        add_hosts(3..11);
        card.recover();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        // The other end sends again some time after that.
        let arrives = |card: &mut Card| {
            socket.send_to(&[0], "10.9.0.3:7").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
            take(card, 14, 7).is_some()
        };
        assert!((0..5000).any(|_| arrives(&mut card)));
        (3..11).for_each(|host| send_numbered(&socket, host, 0..100));
        let numbers = take_numbered(&mut card, 3..11, usize::MAX);
        numbers.iter().for_each(|numbers| assert_eq!(*numbers, (0..100).collect::<Vec<_>>()));
        let (frame, offload) = datagram(9, &[1; 20]);
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        assert_eq!(card.flush(Nanos(0)), Nanos::NEVER);
    });
}

/// A socket that is not in the group yet would receive what is for all of them.
#[test]
fn what_arrives_while_a_card_is_opened_passes_once() {
    in_namespace(|| {
        drop(pair());
        add_hosts(3..11);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let is_open = AtomicBool::new(false);
        let mut card = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !is_open.load(Ordering::Relaxed) || number < 100 {
                    (3..11).for_each(|host| send_numbered(&socket, host, number..number + 1));
                    number += 1;
                }
            });
            let card = Card::open("fl0").unwrap();
            is_open.store(true, Ordering::Relaxed);
            card
        });
        (3..11).for_each(|host| send_numbered(&socket, host, u32::MAX - 1..u32::MAX));
        for numbers in take_numbered(&mut card, 3..11, usize::MAX) {
            assert!(!numbers.is_empty() && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        }
    });
}

/// Before Linux 6.2 a group cannot be told to leave out what the host sends, so that it would come back.
#[test]
fn what_is_sent_does_not_come_back_on_older_kernels() {
    in_namespace(|| {
        drop(pair());
        let found = open::find("fl0").unwrap();
        let sockets = Sockets::new("fl0", found.index, 0).unwrap();
        let rings = sockets.rings("fl0").unwrap();
        let mut card = open::over(found, sockets.into(), rings);
        let (frame, offload) = datagram(9, &[1; 20]);
        let sent_by_host = || {
            let host = UdpSocket::bind("10.8.0.1:0").unwrap();
            host.send_to(&[2; 20], "10.8.0.2:9").unwrap();
        };
        ip("addr add 10.8.0.1/24 dev fl0");
        ip("neigh add 10.8.0.2 lladdr 02:00:00:00:00:08 dev fl0");
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        card.flush(Nanos(0));
        sent_by_host();
        assert!(take(&mut card, 14, 9).is_none());
        // A filter keeps out what the host sends; what the card sends is not even shown to it.
        for socket in card.queues.sockets() {
            let socket = socket.try_clone_to_owned().unwrap();
            crate::interface::set(&socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0).unwrap();
        }
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        card.flush(Nanos(0));
        assert!(take(&mut card, 14, 9).is_none());
        sent_by_host();
        assert!(take(&mut card, 14, 9).is_some());
    });
}

/// A card of another process, which has copies of the descriptors.
fn successor(card: &Card) -> Card {
    // In any order.
    let fds = card.sockets.fds().iter().rev().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let sockets = Sockets::of(fds, card.index).expect("they are of this interface");
    let rings = sockets.rings("fl0").unwrap();
    open::over(open::find("fl0").unwrap(), sockets.into(), rings)
}

/// Two processes have the card in turns, and the second ends each time. Frames from the wire wait for whoever is next, and no frame is
/// lost or passes twice, in either direction, wherever the rings begin.
#[test]
fn processes_that_have_the_card_in_turns_lose_nothing() {
    in_namespace(|| {
        let mut first = pair();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (mut arrived, mut taken, mut put_frames, mut received) = (0u32, 0u32, 0u32, 0u32);
        for turn in 0..12 {
            let mut second = (turn % 2 > 0).then(|| successor(&first));
            let card = second.as_mut().unwrap_or(&mut first);
            // Some of what arrives is left for the next one, and some of what is put was not sent yet.
            for _ in 0..200 {
                socket.send_to(&arrived.to_be_bytes(), "10.9.0.2:9").unwrap();
                arrived += 1;
            }
            while arrived - taken > 70 {
                let (bytes, _) = take_one(card, 9).expect("a frame waits");
                assert_eq!(bytes[42..46], taken.to_be_bytes());
                taken += 1;
            }
            for last in 0..90 {
                let (frame, offload) = datagram(port, &put_frames.to_be_bytes());
                assert_eq!(put(card, &frame, offload).accepted, 1);
                put_frames += 1;
                if last < 80 {
                    card.flush(Nanos(0));
                }
            }
            let mut bytes = [0; 4];
            while socket.recv(&mut bytes).is_ok() {
                assert_eq!(bytes, received.to_be_bytes());
                received += 1;
            }
            assert_eq!(put_frames - received, 10);
            if second.take().is_some() {
                first.take_back();
            }
        }
        assert_eq!(first.lost().total(), 0);
    });
}

/// What waits in all queues is the next process's, in its order, and what that one leaves the one's after it.
#[test]
fn processes_that_have_the_card_in_turns_have_all_its_queues() {
    in_namespace(|| {
        let mut first = pair();
        add_hosts(3..11);
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let mut numbers = vec![Vec::new(); 8];
        for turn in 0..6 {
            let mut second = (turn % 2 > 0).then(|| successor(&first));
            let card = second.as_mut().unwrap_or(&mut first);
            (3..11).for_each(|host| send_numbered(&socket, host, turn * 50..(turn + 1) * 50));
            // All that waits in the end, and before that less than what came.
            let most = if turn == 5 { usize::MAX } else { 350 };
            let taken = take_numbered(card, 3..11, most);
            numbers.iter_mut().zip(taken).for_each(|(all, taken)| all.extend(taken));
            if second.take().is_some() {
                first.take_back();
            }
        }
        numbers.iter().for_each(|numbers| assert_eq!(*numbers, (0..300).collect::<Vec<_>>()));
        assert_eq!(first.lost().total(), 0);
    });
}

/// Descriptors of another interface, or of none, are not used.
#[test]
fn sockets_of_another_interface_are_not_gone_on_with() {
    in_namespace(|| {
        let card = pair();
        let copies = || card.sockets.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        assert!(Sockets::of(copies(), card.index).is_some());
        assert!(Sockets::of(copies(), card.index + 1).is_none());
        assert!(Sockets::of(copies().split_off(1), card.index).is_none());
        let twice = copies().split_off(1).into_iter().chain(copies().split_off(1)).collect();
        assert!(Sockets::of(twice, card.index).is_none());
        let mut short = copies();
        *short.last_mut().unwrap() = memfd_create(c"short", MFdFlags::empty()).unwrap();
        assert!(Sockets::of(short, card.index).is_none());
        let other = Card::open("fl0").unwrap();
        let mut mixed = copies();
        mixed[0] = other.sockets.fds()[0].try_clone_to_owned().unwrap();
        assert!(Sockets::of(mixed, card.index).is_none());
    });
}

#[test]
fn errors_name_the_cause() {
    let error = |name| Card::open(name).err().expect("refused").to_string();
    assert!(matches!(Card::open("a/b"), Err(Error::Name(_))));
    in_namespace(move || {
        assert!(error("fl9").contains("no interface fl9"));
        ip("link set lo up");
        assert!(error("lo").contains("carries no Ethernet"));
        ip("link add fl0 type veth peer name eth0");
        assert!(error("fl0").contains("ip link set fl0 up"));
    });
    in_namespace(|| {
        let mut card = pair();
        let poller = Poller::new().unwrap();
        card.register(&poller, Key(1)).unwrap();
        let look = |card: &mut Card| settle(card, &poller, Nanos::from_millis(50));
        let (frame, offload) = datagram(9, &[1; 20]);
        let (large, _) = datagram(9, &[1; 1474]);
        refused(&mut card, &frame[..13], offload, DropReason::Malformed);
        refused(&mut card, &large, offload, DropReason::TooLarge);
        ip("link set fl0 mtu 1502");
        assert_eq!(put(&mut card, &large, offload).accepted, 1);
        card.flush(Nanos(0));

        ip("link set fl0 down");
        assert_eq!(look(&mut card), Status::Waiting);
        refused(&mut card, &frame, offload, DropReason::ReceiverDown);
        ip("link set fl0 up");
        assert_eq!(look(&mut card), Status::Up);
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        card.flush(Nanos(0));
        assert_eq!(card.transmit.waiting(), 0);

        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        ip("link del fl0");
        card.flush(Nanos(0));
        assert!(matches!(card.status(), Status::Disabled(_)), "sending reports it before any netlink message");
        assert_eq!(card.lost().get(DropReason::Refused), 1);
        refused(&mut card, &frame, offload, DropReason::ReceiverDown);
        assert!(matches!(look(&mut card), Status::Disabled(_)));
    });
}

#[test]
fn without_permission_the_error_says_what_to_do() {
    in_namespace(|| {
        ip("link add fl0 type veth peer name eth0");
        ip("link set fl0 up");
        // SAFETY: no pointer is passed. The bare system call changes this thread only, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let error = Card::open("fl0").err().expect("refused").to_string();
        assert!(error.contains("CAP_NET_RAW"), "{error}");
    });
}
