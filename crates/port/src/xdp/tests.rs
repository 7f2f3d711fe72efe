//! Tests with one end of a veth pair as the card, and the other end as the wire.

mod handover;

use super::*;
use crate::card::open::{self, Which, find, receiver};
use crate::card::{Card, Form, Place};
use crate::testing::{ALL, datagram, in_namespace, ip, put, refused, settle, tcp_passes};
use fairlane_core::packet::{Checksum, Gso, GsoKind};
use handover::successor;
use std::collections::HashMap;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// The card's own address, and that of a guest.
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 7];
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A veth pair. At the other end of fl0, eth0, is a host with this address.
fn wire(address: &str) {
    ip("link add fl0 address 02:00:00:00:00:07 type veth peer name eth0");
    ip("link set eth0 address 02:00:00:00:00:01");
    ip(&format!("addr add {address}/24 dev eth0"));
    // What a host at the end of a wire would do: a card's driver does not see frames without their checksums, or larger
    // than the wire carries.
    let done =
        Command::new("ethtool").args("-K eth0 tx off tso off gso off".split(' ')).output().expect("ethtool is there");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    ip("link set eth0 up");
    ip("link set fl0 up");
}

/// A card.
fn card(address: &str) -> Xdp {
    wire(address);
    Xdp::open("fl0").unwrap()
}

/// The same, with a neighbour entry for 10.9.0.2.
fn pair() -> Xdp {
    let card = card("10.9.0.1");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0");
    card
}

/// A packet socket that receives from an interface, with a ring of so many blocks.
fn receive(name: &str, blocks: usize, which: Which) -> Receive {
    let (index, form) = (find(name).unwrap().index, Form::large(blocks));
    let socket = receiver(name, index, form, which).unwrap();
    open::receive(name, socket.into(), form, Place::of_process()).unwrap()
}

/// Takes all frames that wait now.
fn take_all(card: &mut Xdp) -> Vec<(Vec<u8>, Offload)> {
    let (mut burst, mut taken) = (Burst::new(), Vec::new());
    while card.waiting(Nanos(0)) {
        let batch = card.offer(&mut burst, ALL, Nanos(0));
        for frame in batch.frames() {
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            taken.push((bytes, frame.offload()));
        }
        let frames = batch.len();
        card.consume(frames);
        card.flush(Nanos(0));
    }
    taken
}

/// Takes frames to a UDP port behind a header of so many bytes, until there are `count`.
fn take(card: &mut Xdp, header: usize, port: u16, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for _ in 0..500 {
        let frames = take_all(card).into_iter().map(|(bytes, _)| bytes);
        found.extend(frames.filter(|bytes| bytes.get(header + 22..header + 24) == Some(&port.to_be_bytes())));
        if found.len() >= count {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(found.len(), count, "datagrams to port {port}");
    found
}

/// Sends frames that a test makes out of the other end, untouched.
fn send(wire: &mut Card, frame: &[u8]) {
    assert_eq!(put(wire, frame, Offload::default()), Put { accepted: 1, refusal: None });
    wire.flush(Nanos(0));
}

/// Sends so many frames for the guest out of the other end, to port 700.
fn flood(wire: &mut Card, frames: u32) {
    let frame = to(GUEST, 700, &[1; 10]);
    for _ in 0..frames {
        while put(wire, &frame, Offload::default()).accepted == 0 {
            wire.flush(Nanos(0));
        }
    }
    wire.flush(Nanos(0));
}

/// A socket at the other end that waits for what it is to receive, and its port.
fn listener() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// A complete datagram to a port of 10.9.0.1, in a frame to this address.
fn to(address: [u8; 6], port: u16, payload: &[u8]) -> Vec<u8> {
    let (mut frame, _) = datagram(port, payload);
    fairlane_core::packet::checksum::complete(&mut frame, 34, 6).unwrap();
    frame[..6].copy_from_slice(&address);
    frame
}

#[test]
fn datagrams_pass_both_ways() {
    in_namespace(|| {
        let mut card = pair();
        let (socket, port) = listener();
        for size in [1, 60, 200, 1400] {
            let (frame, offload) = datagram(port, &vec![size as u8; size]);
            assert_eq!(put(&mut card, &frame, offload), Put { accepted: 1, refusal: None });
            card.flush(Nanos(0));
            let mut received = [0; 2000];
            assert_eq!(socket.recv(&mut received).unwrap(), size, "a complete checksum, or it would be dropped");
            assert!(received[..size].iter().all(|byte| *byte == size as u8));
        }
        socket.send_to(&[7; 300], "10.9.0.2:9").unwrap();
        let frame = &take(&mut card, 14, 9, 1)[0];
        assert_eq!((frame.len(), &frame[..6], &frame[42..]), (342, &GUEST[..], &[7; 300][..]));
        assert_eq!(fairlane_core::packet::checksum::verify(frame), Ok(true));
        assert_eq!(card.mode(), Mode::Driver);
        assert_eq!(card.lost().total(), 0);
    });
}

/// The card's own frames are the host's, others the guests', and those to a group are for both.
#[test]
fn the_host_keeps_its_own_frames() {
    in_namespace(|| {
        let mut card = pair();
        ip("addr add 10.9.0.1/32 dev fl0");
        let mut wire = Card::open("eth0").unwrap();
        // A socket that receives as the host behind fl0 does.
        let mut host = receive("fl0", 1, Which::All);
        for (port, address) in [(700, HOST), (701, GUEST), (702, [0xff; 6]), (703, [1, 0, 0x5e, 0, 0, 1])] {
            send(&mut wire, &to(address, port, &[1; 40]));
        }
        let port_of = |bytes: &[u8]| bytes.get(36..38).map(|port| u16::from_be_bytes([port[0], port[1]]));
        let ours = |port: &u16| (700..704).contains(port);
        let mut guests: Vec<u16> =
            take_all(&mut card).iter().filter_map(|(bytes, _)| port_of(bytes)).filter(ours).collect();
        guests.sort();
        assert_eq!(guests, [701, 702, 703]);
        let mut hosts = Vec::new();
        while host.fill(1) > 0 {
            hosts.extend(port_of(host.frame(0).0).filter(ours));
            host.consume(1);
        }
        assert_eq!(hosts, [700, 702, 703]);
    });
}

#[test]
fn a_vlan_tag_stays_in_its_frame() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let untagged = to(GUEST, 700, &[3; 100]);
        let tagged = [&untagged[..12], &[0x81, 0, 0x60, 5], &untagged[12..]].concat();
        send(&mut wire, &tagged);
        assert_eq!(take(&mut card, 18, 700, 1)[0], tagged);
        // The other way with a checksum to be completed behind the tag.
        let (untagged, _) = datagram(700, &[3; 100]);
        let tagged = [&untagged[..12], &[0x81, 0, 0x60, 5], &untagged[12..]].concat();
        let offload = Offload { checksum: Checksum::Partial { start: 38, offset: 6 }, gso: None };
        assert_eq!(put(&mut card, &tagged, offload), Put { accepted: 1, refusal: None });
        card.flush(Nanos(0));
        let mut burst = Burst::new();
        let received = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let batch = wire.offer(&mut burst, ALL, Nanos(0));
            let mut bytes = Vec::new();
            batch.frames().find(|frame| frame.head().get(12) == Some(&0x81))?.read(&mut bytes);
            Some(bytes)
        });
        let received = received.expect("the frame arrived");
        assert_eq!((received.len(), &received[..40]), (tagged.len(), &tagged[..40]));
        assert_eq!(fairlane_core::packet::checksum::verify(&received), Ok(true));
    });
}

/// Bursts in both directions, more frames than any ring has: in order, and none is lost.
#[test]
fn bursts_pass_in_order_and_rings_go_round() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let (mut burst, mut received) = (Burst::new(), 0u32);
        for round in 0..200u32 {
            for number in round * 32..(round + 1) * 32 {
                assert_eq!(put(&mut wire, &to(GUEST, 700, &number.to_be_bytes()), Offload::default()).accepted, 1);
            }
            wire.flush(Nanos(0));
            while received < (round + 1) * 32 {
                let batch = card.offer(&mut burst, ALL, Nanos(0));
                let frames = batch.len();
                for frame in batch.frames().filter(|frame| frame.head()[36..38] == 700u16.to_be_bytes()) {
                    assert_eq!(frame.head()[42..46], received.to_be_bytes());
                    received += 1;
                }
                card.consume(frames);
                card.flush(Nanos(0));
            }
        }
        assert_eq!((received, card.lost().total()), (6400, 0));

        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let (mut sent, mut received) = (0u32, 0u32);
        while received < 6400 {
            let (frames, offloads): (Vec<_>, Vec<_>) =
                (sent..(sent + 32).min(6400)).map(|number| datagram(port, &number.to_be_bytes())).unzip();
            let mut filler = burst.fill();
            frames.iter().zip(offloads).for_each(|(frame, offload)| assert!(filler.push(frame, offload)));
            let Put { accepted, refusal } = card.put(&filler.done(), 0..frames.len(), Nanos(0));
            assert!(matches!(refusal, None | Some(Refusal::Full)), "{refusal:?}");
            sent += accepted as u32;
            card.flush(Nanos(0));
            let mut bytes = [0; 100];
            while socket.recv(&mut bytes).is_ok() {
                assert_eq!(bytes[..4], received.to_be_bytes());
                received += 1;
            }
        }
        assert_eq!(card.lost().total(), 0);
    });
}

/// Frames that nobody tells the kernel to send: the ring fills, and says so.
#[test]
fn a_full_ring_pushes_back_and_loses_nothing() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = receive("eth0", 20, Which::All);
        let (frame, offload) = datagram(700, &[1; 100]);
        let mut accepted = 0;
        while put(&mut card, &frame, offload).accepted == 1 {
            accepted += 1;
        }
        assert_eq!(accepted, TRANSMIT);
        assert_eq!(put(&mut card, &frame, offload).refusal, Some(Refusal::Full));
        assert!(matches!(card.room(Nanos(0)), Room::At(_)));
        card.flush(Nanos(0));
        for _ in 0..500 {
            while wire.fill(1) > 0 {
                accepted -= u32::from(wire.frame(0).0.get(36..38) == Some(&700u16.to_be_bytes()));
                wire.consume(1);
            }
            if accepted == 0 {
                break;
            }
            card.flush(Nanos(0));
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!((accepted, card.room(Nanos(0)), card.lost().total()), (0, Room::Now, 0));
    });
}

/// More frames than the rings hold, and no reader: the rest is counted.
#[test]
fn frames_without_room_are_counted() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        flood(&mut wire, 2400);
        let is_lost = |card: &Xdp| card.lost().get(DropReason::RingFull) >= 352;
        for _ in 0..500 {
            if is_lost(&card) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_lost(&card), "{:?}", card.lost());
        let taken = take(&mut card, 14, 700, 2048);
        assert_eq!(taken.len() as u64 + card.lost().get(DropReason::RingFull), 2400);
        // There is room again.
        send(&mut wire, &to(GUEST, 700, &[1; 10]));
        take(&mut card, 14, 700, 1);
    });
}

/// A card with several queues: each has its frames, which arrive through all of them.
#[test]
fn all_queues_are_served() {
    const FRAMES: usize = 64;
    in_namespace(|| {
        ip("link add fl0 numrxqueues 4 numtxqueues 4 type veth peer name eth0 numrxqueues 4 numtxqueues 4");
        ip("link set fl0 address 02:00:00:00:00:07");
        ip("link set eth0 up");
        ip("link set fl0 up");
        let opened = Xdp::open("fl0").unwrap();
        // Another process knows which socket is of which queue.
        let mut card = successor(&opened);
        assert_eq!(card.queues(), 4);
        // The kernel chooses the queue of the sender by a hash of addresses and ports.
        let mut wire = Card::open("eth0").unwrap();
        for port in 0..FRAMES {
            send(&mut wire, &to(GUEST, 1000 + port as u16, &[1; 40]));
        }
        let mut used = HashMap::new();
        for _ in 0..500 {
            for (number, queue) in card.queues.iter_mut().enumerate() {
                if queue.has_frames() {
                    used.insert(number, ());
                }
            }
            let seen: usize = card.queues.iter_mut().map(|queue| queue.offer(100) as usize).sum();
            if seen >= FRAMES {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut ports: Vec<u16> =
            take_all(&mut card).iter().map(|(bytes, _)| u16::from_be_bytes([bytes[36], bytes[37]])).collect();
        ports.retain(|port| (1000..1000 + FRAMES as u16).contains(port));
        ports.sort();
        assert_eq!(ports, (1000..1000 + FRAMES as u16).collect::<Vec<_>>());
        assert!(used.len() > 1, "only queue {:?} had frames", used.keys());
    });
}

#[test]
fn tcp_passes_between_two_cards() {
    let cards = tcp_passes(card, 1514);
    assert!(cards.is_none_or(|cards| cards.map(|card| card.lost().total()) == [0; 2]));
}

/// A large TCP frame is cut, or refused whole where that cannot be.
#[test]
fn large_frames_are_cut_and_too_large_ones_refused() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let payload: Vec<u8> = (0..20_000u32).map(|at| at as u8).collect();
        let (frame, offload) = large(&payload, 1400);
        assert_eq!(put(&mut card, &frame, offload), Put { accepted: 1, refusal: None });
        card.flush(Nanos(0));
        let (mut burst, mut received) = (Burst::new(), Vec::<u8>::new());
        for _ in 0..500 {
            let batch = wire.offer(&mut burst, ALL, Nanos(0));
            for frame in batch.frames().filter(|frame| frame.head().get(23) == Some(&6)) {
                let mut bytes = Vec::new();
                frame.read(&mut bytes);
                assert!(bytes.len() <= 1454 && fairlane_core::packet::checksum::verify(&bytes) == Ok(true));
                received.extend(&bytes[54..]);
            }
            let frames = batch.len();
            wire.consume(frames);
            if received.len() >= payload.len() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(received == payload, "{} bytes arrived", received.len());

        let too_large = Put { accepted: 0, refusal: Some(Refusal::Never(DropReason::TooLarge)) };
        let (frame, offload) = large(&payload, 1500);
        assert_eq!(put(&mut card, &frame, offload), too_large, "its segments are larger than the MTU");
        let (frame, offload) = large(&payload, 20);
        assert_eq!(put(&mut card, &frame, offload), too_large, "it has more segments than the ring has places");
        let (frame, offload) = datagram(9, &[1; 1474]);
        assert_eq!(put(&mut card, &frame, offload), too_large);
        assert_eq!(card.lost().total(), 0);
    });
}

/// A large TCP frame to be cut into segments of `size` bytes.
fn large(payload: &[u8], size: u16) -> (Vec<u8>, Offload) {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 9, 0, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    frame.extend([0, 80, 2, 188, 0, 0, 1, 0, 0, 0, 2, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend(payload);
    let gso = Some(Gso { kind: GsoKind::Tcp4, ecn: false, size, header: 54 });
    (frame, Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso })
}

/// The interface goes down and comes back, and goes for good.
#[test]
fn an_interface_that_goes_down_is_waited_for() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let poller = Poller::new().unwrap();
        card.register(&poller, Key(1)).unwrap();
        let look = |card: &mut Xdp| settle(card, &poller, Nanos::from_millis(50));
        let (frame, offload) = datagram(9, &[1; 20]);
        refused(&mut card, &frame[..13], offload, DropReason::Malformed);

        ip("link set fl0 down");
        assert_eq!(look(&mut card), Status::Waiting);
        refused(&mut card, &frame, offload, DropReason::ReceiverDown);
        ip("link set fl0 up");
        assert_eq!(look(&mut card), Status::Up);
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        card.flush(Nanos(0));
        send(&mut wire, &to(GUEST, 700, &[1; 40]));
        take(&mut card, 14, 700, 1);

        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        ip("link del fl0");
        card.flush(Nanos(0));
        assert!(matches!(card.status(), Status::Disabled(_)), "sending reports it before any netlink message");
        assert_eq!(card.lost().get(DropReason::Refused), 1);
        refused(&mut card, &frame, offload, DropReason::ReceiverDown);
        assert!(matches!(look(&mut card), Status::Disabled(_)));
    });
}

/// A sleeping worker is woken by a frame.
#[test]
fn a_frame_wakes_the_worker() {
    in_namespace(|| {
        let mut card = pair();
        let mut wire = Card::open("eth0").unwrap();
        let poller = Poller::new().unwrap();
        card.register(&poller, Key(1)).unwrap();
        let wanted = Wanted { frames: true, room: false };
        let mut events = Vec::new();
        for address in [GUEST, [0xff; 6], GUEST] {
            while card.enable_notifications(wanted) {
                take_all(&mut card);
            }
            settle(&mut card, &poller, Nanos(0));
            assert!(!card.enable_notifications(wanted));
            send(&mut wire, &to(address, 700, &[1; 40]));
            poller.wait(Nanos::from_millis(5000), &mut events).unwrap();
            assert_eq!(events.len(), 1);
            take(&mut card, 14, 700, 1);
        }
    });
}

/// The program goes with the port, and the host has all frames again.
#[test]
fn the_program_is_removed_with_the_port() {
    in_namespace(|| {
        let shown =
            || String::from_utf8(Command::new("ip").args(["link", "show", "fl0"]).output().unwrap().stdout).unwrap();
        let card = pair();
        assert!(shown().contains("xdp"), "{}", shown());
        assert!(matches!(Xdp::open("fl0"), Err(Error::Taken { .. })));
        drop(card);
        assert!(!shown().contains("xdp"), "{}", shown());
        let mut again = Xdp::open("fl0").unwrap();
        let mut wire = Card::open("eth0").unwrap();
        send(&mut wire, &to(GUEST, 700, &[1; 40]));
        take(&mut again, 14, 700, 1);
    });
}

/// An interface whose driver runs no program: the stack does.
#[test]
fn a_driver_without_support_is_replaced_by_the_stack() {
    in_namespace(|| {
        wire("10.9.0.1");
        ip("link add link fl0 name mv0 address 02:00:00:00:00:07 type macvlan mode passthru");
        ip("link set mv0 up");
        let mut card = Xdp::open("mv0").unwrap();
        assert_eq!(card.mode(), Mode::Stack);
        assert!(
            card.without_driver().is_some_and(|why| why.contains("BPF_LINK_CREATE")),
            "{:?}",
            card.without_driver()
        );
        let mut wire = Card::open("eth0").unwrap();
        send(&mut wire, &to(GUEST, 700, &[1; 40]));
        take(&mut card, 14, 700, 1);
        let (frame, offload) = datagram(701, &[1; 40]);
        assert_eq!(put(&mut card, &frame, offload).accepted, 1);
        card.flush(Nanos(0));
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            wire.waiting(Nanos(0))
        }));
    });
}

#[test]
fn errors_name_the_cause() {
    let error = |name| Xdp::open(name).err().expect("refused");
    assert!(matches!(error("a/b"), Error::Card(_)));
    in_namespace(move || {
        assert!(error("fl9").to_string().contains("no interface fl9"));
        wire("10.9.0.1");
        ip("link set fl0 mtu 9000");
        let why = error("fl0").to_string();
        assert!(why.contains("MTU of 9000") && why.contains("ip link set fl0 mtu 3822"), "{why}");
        ip("link set fl0 mtu 3822");
        drop(Xdp::open("fl0").unwrap());
        ip("link set fl0 down");
        assert!(error("fl0").to_string().contains("ip link set fl0 up"));
        ip("link set fl0 up");
        // SAFETY: no pointer is passed. The bare system call changes this thread only, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let why = error("fl0").to_string();
        assert!(why.contains("CAP_BPF"), "{why}");
    });
}
