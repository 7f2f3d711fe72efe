//! Frames that are looked at together are judged as if each had been looked at in its turn.

use crate::fixture::{GUEST, leaked};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, EarlyAck, FlowView, Mode, Sight, Stats, Verdict, Way};
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

/// Who looks at so many frames at a time, and what came of them.
struct Looker {
    early: EarlyAck<'static>,
    at_once: usize,
    acks: Vec<Vec<u8>>,
    out: Vec<Option<Vec<u8>>>,
}

impl Looker {
    fn new(at_once: usize) -> Looker {
        let mut early = EarlyAck::new(leaked(3, 4), Config::default());
        early.attach(GUEST, Mode::Always);
        Looker { early, at_once, acks: Vec::new(), out: Vec::new() }
    }

    fn show(&mut self, way: Way, burst: &[(u16, Packet)], now: Nanos) {
        let mut sights: Vec<Sight> = Vec::new();
        for part in burst.chunks(self.at_once) {
            let frames = part.iter().map(|(port, packet)| {
                let place = Place { port: *port, ..Place::default() };
                if way == Way::In { packet.inward(place) } else { packet.outward(place) }
            });
            let mut frames: Vec<Vec<u8>> = frames.collect();
            self.early.look(&mut sights, GUEST, way, frames.iter().map(|frame| (&frame[..], frame.len())), now);
            for (frame, sight) in frames.iter_mut().zip(&sights) {
                if way == Way::In {
                    self.acks
                        .extend(self.early.delivered(sight, &frame[..], Checksum::Present, now).map(<[u8]>::to_vec));
                } else {
                    let verdict = self.early.from_guest(sight, frame, Checksum::Present, now);
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

proptest! {
    #[test]
    fn a_burst_is_as_its_frames(
        bursts in proptest::collection::vec((any::<bool>(), proptest::collection::vec(packet(), 1..12)), 1..20),
    ) {
        let (mut alone, mut together) = (Looker::new(1), Looker::new(12));
        for (number, (inward, burst)) in bursts.iter().enumerate() {
            let way = if *inward { Way::In } else { Way::Out };
            let now = Nanos::from_millis(1000 + number as u64);
            alone.show(way, burst, now);
            together.show(way, burst, now);
            prop_assert_eq!((&alone.acks, &alone.out), (&together.acks, &together.out));
            prop_assert_eq!(alone.known(), together.known());
        }
    }
}
