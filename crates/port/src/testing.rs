//! Helpers for tests of ports on real interfaces. Each test runs in a network namespace of its own that vanishes with
//! the test's thread. This needs root.

use crate::{BURST, Burst, Key, Poller, Port, Put, Refusal, Status, Wanted};
use fairlane_core::packet::{Checksum, Offload};
use fairlane_core::sched::Budget;
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;
use std::thread;

/// As much as a burst holds.
pub(crate) const ALL: Budget = Budget { bytes: u64::MAX, frames: BURST as u32 };

/// Runs a test in a new network namespace; if it cannot, prints that past the test harness.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    thread::spawn(|| match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET) {
        Ok(()) => test(),
        Err(error) => {
            let _ = writeln!(io::stderr(), "SKIPPED: this test needs a network namespace (root): {error}");
        }
    })
    .join()
    .unwrap();
}

/// Runs iproute2 in the namespace of this thread.
pub(crate) fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A datagram from 10.9.0.2 to 10.9.0.1 with a partial checksum.
pub(crate) fn datagram(port: u16, payload: &[u8]) -> (Vec<u8>, Offload) {
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

/// Puts one frame into a port.
pub(crate) fn put(port: &mut impl Port, frame: &[u8], offload: Offload) -> Put {
    let mut burst = Burst::new();
    let mut filler = burst.fill();
    filler.push(frame, offload);
    port.put(&filler.done(), 0..1, Nanos(0))
}

/// Puts one frame into a port that never takes it, for this reason.
#[track_caller]
pub(crate) fn refused(port: &mut impl Port, frame: &[u8], offload: Offload, reason: DropReason) {
    assert_eq!(put(port, frame, offload), Put { accepted: 0, refusal: Some(Refusal::Never(reason)) });
}

/// Handles a port's events until none comes for so long. Returns the port's status.
pub(crate) fn settle(port: &mut impl Port, poller: &Poller, quiet: Nanos) -> Status {
    let mut events = Vec::new();
    while {
        poller.wait(quiet, &mut events).unwrap();
        !events.is_empty()
    } {
        events.iter().for_each(|(_, number)| port.event(*number, poller, Nanos(0)));
    }
    port.status()
}

/// Opens a port in a namespace of its own whose host has this address, and runs `work` on that thread.
fn host<P: Port + 'static>(
    open: fn(&str) -> P,
    address: &'static str,
    work: impl FnOnce() + Send + 'static,
) -> Option<(P, thread::JoinHandle<()>)> {
    let (give, take) = mpsc::channel();
    let work = thread::spawn(move || {
        in_namespace(move || {
            give.send(open(address)).unwrap();
            work();
        })
    });
    Some((take.recv().ok()?, work))
}

/// TCP between two hosts joined by two ports, each opened for the address of its host: frames of `large` bytes pass
/// whole, sleeping workers are woken, and every byte arrives. Returns the ports, unless namespaces are not available.
pub(crate) fn tcp_passes<P: Port + 'static>(open: fn(&str) -> P, large: u64) -> Option<[P; 2]> {
    const BYTES: usize = 20_000_000;
    let (ready, bound) = mpsc::channel();
    let server = host(open, "10.9.0.1", move || {
        let listener = TcpListener::bind("10.9.0.1:700").unwrap();
        ready.send(()).unwrap();
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), BYTES);
        assert!(received.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
    });
    let client = host(open, "10.9.0.2", move || {
        bound.recv().unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        TcpStream::connect("10.9.0.1:700").unwrap().write_all(&bytes).unwrap();
    });
    let ((left, server), (right, client)) = (server?, client?);

    let mut ports = [left, right];
    let clock = std::time::Instant::now();
    let (mut burst, poller, mut events) = (Burst::new(), Poller::new().unwrap(), Vec::new());
    for (number, port) in ports.iter_mut().enumerate() {
        port.register(&poller, Key(number as u32)).unwrap();
    }
    let mut largest = 0;
    while !server.is_finished() {
        let mut moved = 0;
        for from in 0..2 {
            let now = Nanos(clock.elapsed().as_nanos() as u64);
            let [left, right] = &mut ports;
            let (from, to) = if from == 0 { (left, right) } else { (right, left) };
            let batch = from.offer(&mut burst, ALL, now);
            largest = batch.frames().map(|frame| frame.bytes()).max().unwrap_or(0).max(largest);
            let Put { accepted, refusal } = to.put(&batch, 0..batch.len(), now);
            assert!(matches!(refusal, None | Some(Refusal::Full)), "{refusal:?}");
            from.consume(accepted);
            from.flush(now);
            to.flush(now);
            moved += accepted;
        }
        if moved == 0 && !ports.iter_mut().any(|port| port.enable_notifications(Wanted { frames: true, room: false })) {
            poller.wait(Nanos::from_millis(10), &mut events).unwrap();
            let now = Nanos(clock.elapsed().as_nanos() as u64);
            events.iter().for_each(|(key, number)| ports[key.0 as usize].event(*number, &poller, now));
        }
    }
    server.join().unwrap();
    client.join().unwrap();
    assert!(largest >= large, "the largest frame had {largest} bytes");
    Some(ports)
}
