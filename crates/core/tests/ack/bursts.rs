//! Frames that are looked up as a burst are judged as if each had been looked up alone.

use crate::fixture::leaked;
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Direction, EarlyAck, FlowView, LookupBatch, Mode, State, Stats, Verdict};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use proptest::prelude::*;

/// A frame of one of several connections, more than the table has room for.
fn packet() -> impl Strategy<Value = (u16, Packet)> {
    let flags = prop_oneof![
        4 => Just(TcpFlags::ACK),
        3 => Just(TcpFlags::SYN),
        3 => Just(TcpFlags::SYN.with(TcpFlags::ACK)),
        1 => Just(TcpFlags::RST),
        1 => Just(TcpFlags::FIN.with(TcpFlags::ACK)),
        1 => Just(TcpFlags::URG.with(TcpFlags::ACK)),
    ];
    (0u16..4, flags, 0u32..4, 0u32..4, prop_oneof![Just(0usize), 1usize..3]).prop_map(
        |(port, flags, seq, ack, payload)| {
            let payload = if flags.contains(TcpFlags::SYN) { Vec::new() } else { vec![7; payload] };
            let ack = if flags.contains(TcpFlags::ACK) { ack } else { 0 };
            (port, Packet { seq, ack, flags, window: 9, payload, ..Packet::default() })
        },
    )
}

/// A run of frames of one open connection, nearly in order, as in real bursts.
fn run() -> impl Strategy<Value = Vec<(u16, Packet)>> {
    let flags = prop_oneof![
        12 => Just(TcpFlags::ACK),
        4 => Just(TcpFlags::ACK.with(TcpFlags::PSH)),
        1 => Just(TcpFlags::ACK.with(TcpFlags::FIN)),
        1 => Just(TcpFlags::ACK.with(TcpFlags::SYN)),
        1 => Just(TcpFlags::SYN),
        1 => Just(TcpFlags::ACK.with(TcpFlags::URG)),
    ];
    // Sometimes backward.
    let step = || prop_oneof![6 => Just(0u32), 3 => 0u32..3, 1 => Just(!0)];
    let step = (flags, 0usize..4, step(), step(), step());
    (0u16..3, 1u32..12, 1u32..12, 1u32..9, proptest::collection::vec(step, 1..8)).prop_map(
        |(port, mut seq, mut ack, mut stamp, steps)| {
            let packet = |(flags, payload, gap, acks, ticks): (TcpFlags, usize, u32, u32, u32)| {
                (seq, ack, stamp) = (seq.wrapping_add(gap), ack.wrapping_add(acks), stamp.wrapping_add(ticks));
                let payload = vec![7; payload];
                let packet =
                    Packet { seq, ack, flags, window: 9, stamps: Some((stamp, 1)), payload, ..Packet::default() };
                seq = seq.wrapping_add(packet.payload.len() as u32);
                (port, packet)
            };
            steps.into_iter().map(packet).collect()
        },
    )
}

/// Room for all connections, even if all are in the handshake.
const FLOWS: usize = 16;

/// Early ack that is given `burst` frames at a time, and the resulting frames.
struct Runner {
    early: EarlyAck<'static>,
    burst: usize,
    acks: Vec<Vec<u8>>,
    out: Vec<Option<Vec<u8>>>,
}

impl Runner {
    fn new(burst: usize, flows: usize) -> Runner {
        let early = EarlyAck::new(leaked(flows, 4), Config::default(), Mode::Always);
        Runner { early, burst, acks: Vec::new(), out: Vec::new() }
    }

    /// Opens three connections; the first sequence number of both ends is 1.
    fn connect(&mut self) {
        for port in 0..3 {
            let packet = |seq, ack, flags| {
                let stamps = Some((1, u32::from(flags != TcpFlags::SYN)));
                vec![(port, Packet { seq, ack, flags, window: 9, stamps, ..Packet::default() })]
            };
            self.show(Direction::In, &packet(0, 0, TcpFlags::SYN), Nanos(0));
            self.show(Direction::Out, &packet(0, 1, TcpFlags::SYN.with(TcpFlags::ACK)), Nanos(0));
            self.show(Direction::In, &packet(1, 1, TcpFlags::ACK), Nanos(0));
        }
        assert!(self.early.flows().all(|flow| flow.state == State::Idle), "all are open");
        // One more stays half open, so that all segments are noted.
        let half = Packet { seq: 0, flags: TcpFlags::SYN, window: 9, ..Packet::default() };
        self.show(Direction::In, &[(9, half)], Nanos(0));
    }

    fn show(&mut self, direction: Direction, burst: &[(u16, Packet)], now: Nanos) {
        let mut lookups: Vec<LookupBatch> = Vec::new();
        for chunk in burst.chunks(self.burst) {
            let frames = chunk.iter().map(|(port, packet)| {
                let place = Place { port: *port, ..Place::default() };
                if direction == Direction::In { packet.inward(place) } else { packet.outward(place) }
            });
            let mut frames: Vec<Vec<u8>> = frames.collect();
            self.early.look_up(&mut lookups, direction, frames.iter().map(|frame| (&frame[..], frame.len())), now);
            for (frame, lookup) in frames.iter_mut().zip(&lookups) {
                if direction == Direction::In {
                    self.early.delivered(lookup, &frame[..], Checksum::Present, now);
                    self.acks.extend(self.early.next_ack().map(<[u8]>::to_vec));
                } else {
                    let verdict = self.early.from_guest(lookup, frame, Checksum::Present, now);
                    self.out.push((verdict == Verdict::Pass).then(|| frame.clone()));
                }
            }
        }
    }

    /// The flows and the counters.
    fn state(&self) -> (Vec<FlowView>, Stats) {
        (self.early.flows().collect(), self.early.stats())
    }
}

/// Two segments that were merged are not a frame, and are not acknowledged if the guest stalls before they are
/// reported.
#[test]
fn merged_segments_are_not_acknowledged() {
    let mut runner = Runner::new(1, FLOWS);
    runner.connect();
    runner.early.set_mode(Mode::Auto);
    let frame = |seq| {
        let packet = Packet {
            seq,
            ack: 1,
            flags: TcpFlags::ACK,
            window: 9,
            stamps: Some((1, 1)),
            payload: vec![7],
            ..Packet::default()
        };
        packet.inward(Place::default())
    };
    let frames = [frame(1), frame(2)];
    let mut lookups = Vec::new();
    runner.early.look_up(&mut lookups, Direction::In, frames.iter().map(|frame| (&frame[..], frame.len())), Nanos(1));
    runner.early.set_mode(Mode::Always);
    for (frame, lookup) in frames.iter().zip(&lookups) {
        runner.early.delivered(lookup, &frame[..], Checksum::Present, Nanos(1));
        assert_eq!(runner.early.next_ack(), None);
    }
}

proptest! {
    #[test]
    fn a_burst_gives_the_same_as_single_frames(
        bursts in proptest::collection::vec((any::<bool>(), proptest::collection::vec(packet(), 1..12)), 1..20),
    ) {
        let (mut alone, mut together) = (Runner::new(1, 4), Runner::new(12, 4));
        for (number, (inward, burst)) in bursts.iter().enumerate() {
            let direction = if *inward { Direction::In } else { Direction::Out };
            let now = Nanos::from_millis(1000 + number as u64);
            alone.show(direction, burst, now);
            together.show(direction, burst, now);
            prop_assert_eq!((&alone.acks, &alone.out), (&together.acks, &together.out));
            prop_assert_eq!(alone.state(), together.state());
        }
    }

    /// What was noted of merged segments, while nothing is acknowledged early, shows in later early ACKs.
    #[test]
    fn a_run_gives_the_same_as_single_frames(
        bursts in proptest::collection::vec((any::<bool>(), any::<bool>(), proptest::collection::vec(run(), 1..4)), 1..12),
    ) {
        let (mut alone, mut together) = (Runner::new(1, FLOWS), Runner::new(32, FLOWS));
        alone.connect();
        together.connect();
        for (number, (inward, always, runs)) in bursts.iter().enumerate() {
            let direction = if *inward { Direction::In } else { Direction::Out };
            let now = Nanos::from_millis(1000 + number as u64);
            let burst = runs.concat();
            for runner in [&mut alone, &mut together] {
                runner.early.set_mode(if *always { Mode::Always } else { Mode::Auto });
                runner.show(direction, &burst, now);
            }
            prop_assert_eq!((&alone.acks, &alone.out), (&together.acks, &together.out));
            prop_assert_eq!(alone.state(), together.state());
            prop_assert_eq!(alone.early.export(), together.early.export());
        }
    }
}
