//! With a real tap, each in a network namespace of its own that vanishes with the test's thread. This takes root.

use super::*;
use fairlane_core::packet::Checksum;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

const ALL: Grant = Grant { bytes: u64::MAX, frames: BURST as u32 };

/// Runs a test in a new network namespace; says aloud, past the test harness, if it cannot.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    thread::spawn(|| match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(error) => {
            let _ = writeln!(io::stderr(), "SKIPPED: a tap test needs a network namespace (root): {error}");
        }
    })
    .join()
    .unwrap();
}

/// iproute2 in the namespace of this thread.
fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A tap whose interface has an address, and knows 10.9.0.2 behind it.
fn tap() -> Tap {
    let tap = Tap::open("fl0").unwrap();
    ip("link set fl0 address 02:00:00:00:00:01");
    ip("addr add 10.9.0.1/24 dev fl0");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev fl0");
    tap
}

/// A datagram from 10.9.0.2, its checksum left to be completed.
fn datagram(port: u16, payload: &[u8]) -> (Vec<u8>, Offload) {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let length = (8 + payload.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend((20 + length).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let checksum = !sum(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(&header);
    frame.extend([0, 9]);
    frame.extend(port.to_be_bytes());
    frame.extend(length.to_be_bytes());
    let pseudo = [&header[12..20], &[0, 17], &length.to_be_bytes()].concat();
    frame.extend(sum(&pseudo).to_be_bytes());
    frame.extend(payload);
    (frame, Offload { checksum: Checksum::Partial { start: 34, offset: 6 }, gso: None })
}

/// The sum of RFC 1071 over an even number of bytes.
fn sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    (sum % 0xffff) as u16
}

fn put(tap: &mut Tap, frame: &[u8], offload: Offload) -> Put {
    let mut burst = Burst::new();
    let mut filler = burst.fill();
    filler.push(frame, offload);
    tap.put(&filler.done(), 0..1, Nanos(0))
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
        while tap.arm(Wanted { frames: true, room: false }) {
            let batch = tap.offer(&mut burst, Grant { frames: 1, ..ALL }, Nanos(0));
            let frame = batch.frame(0);
            let mut bytes = Vec::new();
            frame.read(&mut bytes);
            if bytes.len() == 342 && bytes[12..14] == [8, 0] && bytes[42..] == [7; 300] {
                assert_eq!(frame.offload().checksum, Checksum::Partial { start: 34, offset: 6 });
                found = true;
            }
            tap.consume(1);
        }
        assert!(found, "the datagram came through the tap, its checksum left to be completed");
    });
}

#[test]
fn a_body_of_many_pieces_is_one_frame() {
    in_namespace(|| {
        let mut tap = tap();
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        let payload: Vec<u8> = (0..1400).map(|at| at as u8).collect();
        let (frame, offload) = datagram(socket.local_addr().unwrap().port(), &payload);
        for size in [600, 10] {
            let mut burst = Burst::new();
            let mut filler = burst.fill();
            filler.head_mut().copy_from_slice(&frame[..crate::HEAD]);
            let pieces: Vec<&[u8]> = frame[crate::HEAD..].chunks(size).collect();
            // SAFETY: `frame` outlives the batch.
            pieces.iter().for_each(|piece| unsafe { filler.piece(piece.as_ptr(), piece.len() as u32) });
            filler.commit(frame.len() as u32, pieces.len(), offload);
            assert_eq!(tap.put(&filler.done(), 0..1, Nanos(0)).accepted, 1);
            let mut received = [0; 2000];
            assert_eq!(socket.recv(&mut received).unwrap(), payload.len());
            assert_eq!(received[..payload.len()], payload);
        }
    });
}

/// A tap in a namespace of its own with this address, and the thread's further work there.
fn host(address: &'static str, work: impl FnOnce() + Send + 'static) -> Option<(Tap, thread::JoinHandle<()>)> {
    let (give, take) = mpsc::channel();
    let work = thread::spawn(move || {
        in_namespace(move || {
            let tap = Tap::open("fl0").unwrap();
            ip(&format!("addr add {address}/24 dev fl0"));
            give.send(tap).unwrap();
            work();
        })
    });
    Some((take.recv().ok()?, work))
}

/// TCP between two hosts joined by two taps: large frames pass whole, sleepers are woken, every byte arrives.
#[test]
fn tcp_passes_between_two_taps_in_large_frames() {
    const BYTES: usize = 20_000_000;
    let (ready, bound) = mpsc::channel();
    let server = host("10.9.0.1", move || {
        let listener = TcpListener::bind("10.9.0.1:700").unwrap();
        ready.send(()).unwrap();
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), BYTES);
        assert!(received.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    });
    let client = host("10.9.0.2", move || {
        bound.recv().unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        TcpStream::connect("10.9.0.1:700").unwrap().write_all(&bytes).unwrap();
    });
    let (Some((left, server)), Some((right, client))) = (server, client) else { return };

    let mut taps = [left, right];
    let (mut burst, poller, mut events) = (Burst::new(), Poller::new().unwrap(), Vec::new());
    for (number, tap) in taps.iter_mut().enumerate() {
        tap.register(&poller, Key(number as u32)).unwrap();
    }
    let mut largest = 0;
    while !server.is_finished() {
        let mut moved = 0;
        for from in 0..2 {
            let [left, right] = &mut taps;
            let (from, to) = if from == 0 { (left, right) } else { (right, left) };
            let batch = from.offer(&mut burst, ALL, Nanos(0));
            let count = batch.len();
            largest = batch.frames().map(|frame| frame.bytes()).max().unwrap_or(0).max(largest);
            assert_eq!(to.put(&batch, 0..count, Nanos(0)), Put { accepted: count, refusal: None });
            from.consume(count);
            moved += count;
        }
        if moved == 0 && !taps.iter_mut().any(|tap| tap.arm(Wanted { frames: true, room: false })) {
            poller.wait(Nanos::from_millis(10), &mut events).unwrap();
            events.iter().for_each(|(key, number)| taps[key.0 as usize].event(*number, &poller, Nanos(0)));
        }
    }
    server.join().unwrap();
    client.join().unwrap();
    assert!(largest > 10_000, "the largest frame had {largest} bytes");
    assert_eq!(taps.map(|tap| tap.refused()), [0, 0]);
}

#[test]
fn what_goes_wrong_is_named() {
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
fn without_the_right_it_says_what_to_do() {
    in_namespace(|| {
        // SAFETY: no pointer is passed. The bare system call changes this thread only, which ends with the test.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let error = Tap::open("fl0").err().expect("refused").to_string();
        assert!(error.contains("ip tuntap add fl0 mode tap") && error.contains("CAP_NET_ADMIN"), "{error}");
    });
}
