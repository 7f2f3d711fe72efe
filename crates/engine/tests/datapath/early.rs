//! Early ack on a bridge: each frame is judged once, ACKs sent for a guest are its frames, and no ACK number goes back.

use crate::support::{Link, Turns, mac};
use fairlane_core::PortId;
use fairlane_core::ack::{Mode, STALL};
use fairlane_core::packet::checksum::Sum;
use fairlane_core::packet::{Checksum, Compose, Ethernet, Gso, GsoKind, Ip, Offload, Tcp, TcpFlags, checksum};
use fairlane_core::stats::DropReason;
use fairlane_core::time::Nanos;
use fairlane_engine::clock::Clock;
use std::net::{IpAddr, Ipv4Addr};
use tempfile::TempDir;

const OUTSIDE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), 4000);
const INSIDE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);

/// Payload of a segment in bytes.
const LEN: u32 = 1000;

/// First sequence numbers of both ends; the guest's is near the end of the number space.
const THEIRS: u32 = 7_000;
const OURS: u32 = 0xffff_ff00;

/// The fields of a segment that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    sequence: u32,
    ack: u32,
    payload: usize,
}

/// A link with one guest with early ack and an open connection. The uplink has room for `room` frames.
struct Stage {
    link: Link,
    directory: TempDir,
}

impl Stage {
    fn new(room: usize) -> Stage {
        let directory = tempfile::tempdir().unwrap();
        let mut stage = Stage { link: Link::new(Turns::of(32), 1, room), directory };
        stage.accelerate(Mode::Always);
        stage.connect();
        stage
    }

    fn connect(&mut self) {
        self.outside(THEIRS, 0, TcpFlags::SYN, 0);
        self.guest(OURS, THEIRS + 1, TcpFlags::SYN.with(TcpFlags::ACK), 0);
        self.outside(THEIRS + 1, OURS + 1, TcpFlags::ACK, 0);
        self.settle();
        assert_eq!(self.at_uplink().len(), 1);
        while self.link.peers[1].receive().is_some() {}
    }

    fn accelerate(&mut self, mode: Mode) {
        let file = self.directory.path().join("guest1");
        self.link.bridge.accelerate(PortId(1), &file, mode, Nanos(0)).unwrap();
    }

    fn outside(&mut self, sequence: u32, acknowledgment: u32, flags: TcpFlags, payload: u32) {
        self.send(0, sequence, acknowledgment, flags, payload);
    }

    fn guest(&mut self, sequence: u32, acknowledgment: u32, flags: TcpFlags, payload: u32) {
        self.send(1, sequence, acknowledgment, flags, payload);
    }

    fn send(&mut self, from: u32, sequence: u32, acknowledgment: u32, flags: TcpFlags, payload: u32) {
        let (source, destination) = if from == 0 { (OUTSIDE, INSIDE) } else { (INSIDE, OUTSIDE) };
        let link = [mac(1 - from).0, mac(from).0].concat();
        let window = 60_000;
        let segment =
            Compose { link: &link, source, destination, sequence, acknowledgment, flags, window, timestamps: None };
        let mut frame = Vec::new();
        segment.write(&mut frame, |out| out.extend((0..payload).map(|at| (sequence.wrapping_add(at)) as u8)));
        self.link.peers[from as usize].send(&frame, Offload::default());
    }

    /// A data segment from outside, by its index in the stream.
    fn data(&mut self, place: u32) {
        self.outside(THEIRS + 1 + place * LEN, OURS + 1, TcpFlags::ACK, LEN);
    }

    /// An ACK of the guest for this many segments, with a payload of this many bytes.
    fn ack(&mut self, sequence: u32, segments: u32, payload: u32) {
        self.guest(OURS.wrapping_add(1 + sequence), THEIRS + 1 + segments * LEN, TcpFlags::ACK, payload);
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.link.settle();
        }
    }

    /// Frames that reached the uplink since the last call. Makes room for further ones.
    fn at_uplink(&mut self) -> Vec<Seen> {
        seen(std::iter::from_fn(|| self.link.peers[0].receive()).map(|(frame, _)| frame))
    }

    fn at_guest(&mut self) -> Vec<Seen> {
        seen(std::iter::from_fn(|| self.link.peers[1].receive()).map(|(frame, _)| frame))
    }
}

fn seen(frames: impl Iterator<Item = Vec<u8>>) -> Vec<Seen> {
    let read = |frame: Vec<u8>| {
        assert_eq!(checksum::verify(&frame), Ok(true));
        let ethernet = Ethernet::new_checked(&frame).unwrap();
        let ip = Ip::of(&ethernet).unwrap().unwrap();
        let upper = ip.upper().unwrap();
        let tcp = Tcp::new_checked(upper.payload).unwrap();
        let payload = ip.total_len() - upper.offset - tcp.header_len();
        Seen { sequence: tcp.sequence(), ack: tcp.acknowledgment(), payload }
    };
    frames.map(read).collect()
}

fn ack_of(segments: u32) -> Seen {
    Seen { sequence: OURS.wrapping_add(1), ack: THEIRS + 1 + segments * LEN, payload: 0 }
}

#[test]
fn data_is_acknowledged_early_and_the_guests_own_ack_is_suppressed() {
    let mut stage = Stage::new(100);
    (0..3).for_each(|place| stage.data(place));
    stage.settle();
    assert_eq!(stage.at_guest().len(), 3);
    // They came in one burst.
    assert_eq!(stage.at_uplink(), [ack_of(3)]);
    // It acknowledges nothing new and advertises the same window.
    stage.ack(0, 0, 0);
    stage.settle();
    assert_eq!(stage.at_uplink(), []);
    let counters = stage.link.counters(1);
    assert_eq!(counters.drops.get(DropReason::Suppressed), 1);
    // The SYN-ACK, the early ACK, and the dropped one; the guest sent another frame before.
    assert_eq!(counters.sent_frames, 4);
}

/// A frame waits for a guest that waits for its CPU, and nothing else happens: no frame, no event, until the guest runs.
#[test]
fn the_bridge_checks_an_unwatched_ring_without_an_event() {
    let mut stage = Stage { link: Link::new(Turns::of(32), 1, 100), directory: tempfile::tempdir().unwrap() };
    stage.accelerate(Mode::Auto);
    for _ in 0..2 {
        stage.outside(THEIRS - 1, 0, TcpFlags::SYN, 0);
        assert_eq!(stage.link.round().next, stage.link.clock.now() + STALL);
        stage.link.clock.advance(STALL);
        assert_eq!(stage.link.round().next, Nanos::NEVER, "it has seen that");
        assert_eq!(stage.at_guest().len(), 1);
    }
    stage.connect();
    stage.data(0);
    stage.settle();
    assert_eq!(stage.at_uplink(), [ack_of(1)]);
}

/// Nothing else wakes a worker that sleeps as soon as it can.
#[test]
fn a_timer_set_in_a_round_is_known_after_it() {
    let mut stage = Stage::new(100);
    stage.data(0);
    let first = stage.link.round().next;
    assert_ne!(first, Nanos::NEVER);
    assert_eq!(first, stage.link.round().next);
}

#[test]
fn a_guest_that_waits_for_another_acknowledges_at_once() {
    let mut stage = Stage { link: Link::new(Turns::of(32), 2, 5), directory: tempfile::tempdir().unwrap() };
    stage.accelerate(Mode::Always);
    stage.connect();
    (0..10).for_each(|number| stage.link.send(1, 2, number));
    stage.link.settle();
    assert!(stage.link.counters(1).sent_frames < 10, "it waits");
    stage.data(0);
    stage.link.settle();
    assert_eq!(stage.at_uplink(), [ack_of(1)]);
}

#[test]
fn frames_that_wait_for_the_uplink_are_judged_once_and_no_ack_goes_back() {
    for room in 1..5 {
        let mut stage = Stage::new(room);
        let mut got = Vec::new();
        stage.data(0);
        // The guest responds to the first one with data before the rest arrives.
        (0..6).for_each(|number| stage.ack(number * 10, 0, 10));
        stage.link.settle();
        (1..5).for_each(|place| stage.data(place));
        stage.ack(60, 5, 0);
        stage.ack(60, 5, 10);
        for _ in 0..40 {
            stage.link.settle();
            got.extend(stage.at_uplink());
        }
        assert!(got.is_sorted_by_key(|seen| seen.ack), "{got:?}");
        let sent: Vec<u32> = got.iter().filter(|seen| seen.payload > 0).map(|seen| seen.sequence).collect();
        assert_eq!(sent, (0..7).map(|number| OURS.wrapping_add(1 + number * 10)).collect::<Vec<_>>());
        assert!(got.iter().filter(|seen| seen.payload == 0).all(|seen| seen.ack > THEIRS + 1), "{got:?}");
        assert_eq!(got.last().unwrap().ack, THEIRS + 1 + 5 * LEN);
        // Every frame is forwarded, or dropped and counted; two were before.
        let counters = stage.link.counters(1);
        assert_eq!(counters.sent_frames, 2 + got.len() as u64 + counters.drops.total());
    }
}

/// A frame as a host's kernel passes it: many segments in one, with a checksum to be completed.
#[test]
fn a_large_frame_with_a_partial_checksum_is_acknowledged_once_and_retransmitted_complete() {
    let mut stage = Stage::new(100);
    let link = [mac(1).0, mac(0).0].concat();
    let mut frame = Vec::new();
    Compose {
        link: &link,
        source: OUTSIDE,
        destination: INSIDE,
        sequence: THEIRS + 1,
        acknowledgment: OURS + 1,
        flags: TcpFlags::ACK,
        window: 60_000,
        timestamps: None,
    }
    .write(&mut frame, |out| out.extend((0..5 * LEN).map(|at| (THEIRS + 1 + at) as u8)));
    let complete = frame.clone();
    let len = (frame.len() - 34) as u16;
    let pseudo = Sum::default().with(&frame[26..34]).with(&[0, 6]).with(&len.to_be_bytes()).folded();
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: LEN as u16, header: 54 };
    let offload = Offload { checksum: Checksum::Partial { start: 34, offset: 16 }, gso: Some(gso) };
    stage.link.peers[0].send(&frame, offload);
    stage.settle();
    assert_eq!(stage.link.peers[1].receive(), Some((frame, offload)), "it is delivered as it came");
    assert_eq!(stage.at_uplink(), [ack_of(5)]);
    stage.link.clock.advance(Nanos::from_millis(250));
    stage.settle();
    let again = stage.link.peers[1].receive().unwrap();
    assert_eq!((again.1, checksum::verify(&again.0)), (Offload::default(), Ok(true)));
    assert_eq!(again.0[54..], complete[54..54 + 536]);
}

#[test]
fn data_that_a_guest_does_not_take_is_retransmitted_also_by_another_bridge() {
    let mut stage = Stage::new(100);
    (0..2).for_each(|place| stage.data(place));
    stage.settle();
    let first = stage.at_guest();
    assert_eq!(first.len(), 2);
    stage.link.clock.advance(Nanos::from_millis(250));
    stage.settle();
    // Its SYN had no MSS option, so segments have 536 bytes.
    let again = stage.at_guest();
    assert_eq!((again[0].sequence, again[0].payload), (first[0].sequence, 536));

    // Another bridge resumes from the file.
    let mut next = Stage { link: Link::new(Turns::of(32), 1, 100), directory: stage.directory };
    drop(stage.link);
    next.accelerate(Mode::Always);
    next.settle();
    let again = next.at_guest();
    assert_eq!((again[0].sequence, again[0].payload), (first[0].sequence, 536));
    next.ack(0, 2, 0);
    next.settle();
    assert!(next.link.bridge.set_early(PortId(1), Mode::Off));
    next.settle();
    assert!(!next.directory.path().join("guest1").exists(), "nothing is owed, so nothing is kept");
    assert!(!next.link.bridge.set_early(PortId(1), Mode::Always), "it is over");
}
