//! Frames that are looked at together are judged as if each had been looked at in its turn.

use crate::fixture::leaked;
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Direction, EarlyAck, FlowView, LookupBatch, Mode, State, Stats, Verdict};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use proptest::prelude::*;

/// A frame of one of some connections, more than there is room for.
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

/// The frames of connections that are open, in runs of one connection: in order, nearly, as bursts are.
fn run() -> impl Strategy<Value = Vec<(u16, Packet)>> {
    let flags = prop_oneof![
        12 => Just(TcpFlags::ACK),
        4 => Just(TcpFlags::ACK.with(TcpFlags::PSH)),
        1 => Just(TcpFlags::ACK.with(TcpFlags::FIN)),
        1 => Just(TcpFlags::ACK.with(TcpFlags::SYN)),
        1 => Just(TcpFlags::SYN),
        1 => Just(TcpFlags::ACK.with(TcpFlags::URG)),
    ];
    // Backward at times.
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

/// Room for all connections, also where each is in its handshake.
const FLOWS: usize = 16;

/// Who looks at so many frames at a time, and what came of them.
struct Looker {
    early: EarlyAck<'static>,
    at_once: usize,
    acks: Vec<Vec<u8>>,
    out: Vec<Option<Vec<u8>>>,
}

impl Looker {
    fn new(at_once: usize, flows: usize) -> Looker {
        let early = EarlyAck::new(leaked(flows, 4), Config::default(), Mode::Always);
        Looker { early, at_once, acks: Vec::new(), out: Vec::new() }
    }

    /// Opens three connections, both ends of which begin at 1.
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
        // One more that stays half open: so long all segments are noted.
        let half = Packet { seq: 0, flags: TcpFlags::SYN, window: 9, ..Packet::default() };
        self.show(Direction::In, &[(9, half)], Nanos(0));
    }

    fn show(&mut self, way: Direction, burst: &[(u16, Packet)], now: Nanos) {
        let mut lookups: Vec<LookupBatch> = Vec::new();
        for part in burst.chunks(self.at_once) {
            let frames = part.iter().map(|(port, packet)| {
                let place = Place { port: *port, ..Place::default() };
                if way == Direction::In { packet.inward(place) } else { packet.outward(place) }
            });
            let mut frames: Vec<Vec<u8>> = frames.collect();
            self.early.look_up(&mut lookups, way, frames.iter().map(|frame| (&frame[..], frame.len())), now);
            for (frame, lookup) in frames.iter_mut().zip(&lookups) {
                if way == Direction::In {
                    self.early.delivered(lookup, &frame[..], Checksum::Present, now);
                    self.acks.extend(self.early.next_ack().map(<[u8]>::to_vec));
                } else {
                    let verdict = self.early.from_guest(lookup, frame, Checksum::Present, now);
                    self.out.push((verdict == Verdict::Pass).then(|| frame.clone()));
                }
            }
        }
    }

    /// What came of it inside: the flows and what was counted.
    fn known(&self) -> (Vec<FlowView>, Stats) {
        (self.early.flows().collect(), self.early.stats())
    }
}

/// Two segments that were noted as one are no frame, and not acknowledged, should the guest stall before they are shown.
#[test]
fn what_was_looked_at_as_one_is_not_acknowledged() {
    let mut looker = Looker::new(1, FLOWS);
    looker.connect();
    looker.early.set_mode(Mode::Auto);
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
    looker.early.look_up(&mut lookups, Direction::In, frames.iter().map(|frame| (&frame[..], frame.len())), Nanos(1));
    looker.early.set_mode(Mode::Always);
    for (frame, lookup) in frames.iter().zip(&lookups) {
        looker.early.delivered(lookup, &frame[..], Checksum::Present, Nanos(1));
        assert_eq!(looker.early.next_ack(), None);
    }
}

proptest! {
    #[test]
    fn a_burst_is_as_its_frames(
        bursts in proptest::collection::vec((any::<bool>(), proptest::collection::vec(packet(), 1..12)), 1..20),
    ) {
        let (mut alone, mut together) = (Looker::new(1, 4), Looker::new(12, 4));
        for (number, (inward, burst)) in bursts.iter().enumerate() {
            let way = if *inward { Direction::In } else { Direction::Out };
            let now = Nanos::from_millis(1000 + number as u64);
            alone.show(way, burst, now);
            together.show(way, burst, now);
            prop_assert_eq!((&alone.acks, &alone.out), (&together.acks, &together.out));
            prop_assert_eq!(alone.known(), together.known());
        }
    }

    /// What is noted of several frames as of one while nothing is acknowledged early shows when something is.
    #[test]
    fn a_run_is_as_its_frames(
        bursts in proptest::collection::vec((any::<bool>(), any::<bool>(), proptest::collection::vec(run(), 1..4)), 1..12),
    ) {
        let (mut alone, mut together) = (Looker::new(1, FLOWS), Looker::new(32, FLOWS));
        alone.connect();
        together.connect();
        for (number, (inward, always, runs)) in bursts.iter().enumerate() {
            let way = if *inward { Direction::In } else { Direction::Out };
            let now = Nanos::from_millis(1000 + number as u64);
            let burst = runs.concat();
            for looker in [&mut alone, &mut together] {
                looker.early.set_mode(if *always { Mode::Always } else { Mode::Auto });
                looker.show(way, &burst, now);
            }
            prop_assert_eq!((&alone.acks, &alone.out), (&together.acks, &together.out));
            prop_assert_eq!(alone.known(), together.known());
            prop_assert_eq!(alone.early.export(), together.early.export());
        }
    }
}
