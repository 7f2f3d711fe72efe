//! Two ends of TCP with early ack between them, under any network and any guest.
//!
//! What is held after every step: no ACK beyond what the guest acknowledged or early ack was given in order, none back, no
//! window beyond the guest's, a copy of all that is owed. At the end: both streams are equal, and there is an end.

use crate::ends::{Guest, MSS, Manners, SENDER, Sender, is_answer};
use crate::fixture::{GUEST as PORT, memory};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, EarlyAck, Memory, Mode, Ring, State, Verdict, Way};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use proptest::prelude::*;
use proptest::test_runner::{Config as ProptestConfig, RngSeed, TestRunner};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::cell::Cell;
use std::iter;

const PLACE: Place = Place { v6: false, vlans: [0; 2], port: 4000 };

/// Frames the guest's ring holds.
const RING: usize = 64;

/// Frames shown at once at most.
const BURST: usize = 32;

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    len: usize,
    burst: usize,
    answer: usize,
    manners: Manners,
    /// Of 100 frames each way, how many are lost, come twice, come late.
    faults: [u32; 3],
    /// Milliseconds the guest runs, and does not.
    schedule: (u64, u64),
    always: bool,
    blocks: usize,
    flow_bytes: u32,
    /// Steps after which the backend is killed (even) or the guest moves (odd).
    breaks: Vec<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let manners = (1usize..40, prop_oneof![Just(0u32), 0u32..20], any::<[bool; 2]>(), any::<u8>(), 500usize..20_000)
        .prop_map(|(room, refuses, [shrinks, reneges], lies, reads)| Manners {
            room: room * MSS,
            refuses,
            shrinks,
            reneges,
            lies: lies < 40,
            reads,
        });
    let faults = prop_oneof![Just([0; 3]), [0u32..20, 0u32..20, 0u32..30]];
    let sizes = (any::<u64>(), 0usize..300_000, 1usize..40, 0usize..2000);
    let limits = (any::<bool>(), prop_oneof![Just(64), 1usize..20], prop_oneof![Just(1u32 << 20), 500u32..20_000]);
    let breaks = proptest::collection::vec(10usize..1500, 0..4);
    (sizes, manners, faults, (1u64..20, 0u64..80), limits, breaks).prop_map(
        |((seed, len, burst, answer), manners, faults, schedule, (always, blocks, flow_bytes), breaks)| Case {
            seed,
            len,
            burst,
            answer,
            manners,
            faults,
            schedule,
            always,
            blocks,
            flow_bytes,
            breaks,
        },
    )
}

/// Frames between the backend and the sender, one way.
#[derive(Default)]
struct Wire(Vec<(Nanos, Packet)>);

impl Wire {
    fn send(&mut self, packet: Packet, now: Nanos, faults: [u32; 3], random: &mut StdRng) {
        let [lost, twice, late] = faults.map(|chance| random.random_range(0..100) < chance);
        let delay = if late { random.random_range(0..3_000_000) } else { 0 };
        let at = Nanos(now.0 + 50_000 + delay);
        if twice {
            self.put(Nanos(at.0 + 700_000), packet.clone());
        }
        if !lost {
            self.put(at, packet);
        }
    }

    fn put(&mut self, at: Nanos, packet: Packet) {
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, packet));
    }

    fn next(&self) -> Nanos {
        self.0.first().map_or(Nanos::NEVER, |(at, _)| *at)
    }

    fn arrived(&mut self, now: Nanos) -> Option<Packet> {
        (self.next() <= now).then(|| self.0.remove(0).1)
    }
}

/// What an onlooker at the backend knows.
#[derive(Default)]
struct Onlooker {
    /// Offsets: what the guest acknowledged, what went into its ring in order, the greatest ACK that went out, the greatest
    /// edge of the guest's and outside.
    guest_ack: i64,
    delivered: i64,
    pieces: Vec<(i64, i64)>,
    out: i64,
    edge: i64,
}

fn offset(number: u32) -> i64 {
    number.wrapping_sub(SENDER + 1).cast_signed().into()
}

impl Onlooker {
    fn delivered(&mut self, packet: &Packet) {
        let from = offset(packet.seq);
        let end = from + packet.payload.len() as i64 + i64::from(packet.flags.contains(TcpFlags::FIN));
        self.pieces.push((from, end));
        self.pieces.sort_unstable();
        for &(from, end) in &self.pieces {
            if from <= self.delivered {
                self.delivered = self.delivered.max(end);
            }
        }
        let done = self.delivered;
        self.pieces.retain(|(_, end)| *end > done);
    }

    fn guest_says(&mut self, packet: &Packet) {
        let scale = if packet.flags.contains(TcpFlags::SYN) { 0 } else { 3 };
        let ack = offset(packet.ack);
        if ack <= self.delivered {
            self.guest_ack = self.guest_ack.max(ack);
            self.edge = self.edge.max(ack + (i64::from(packet.window) << scale));
        }
    }

    fn goes_out(&mut self, packet: &Packet, early: bool) {
        if packet.flags.contains(TcpFlags::SYN) || packet.flags.contains(TcpFlags::RST) {
            return;
        }
        let ack = offset(packet.ack);
        if !early && ack > self.delivered {
            return; // The guest lies, and that is between it and the sender.
        }
        assert!(ack <= self.delivered, "acknowledged {ack}, delivered {}", self.delivered);
        assert!(ack >= self.out, "an ACK goes back from {} to {ack}", self.out);
        if early {
            assert!(ack <= self.edge, "beyond the guest's window");
        }
        let edge = ack + (i64::from(packet.window) << 3);
        assert!(edge <= self.edge || packet.window == 0, "a window to {edge}, the guest's is to {}", self.edge);
        self.out = self.out.max(ack);
    }
}

struct Model {
    case: Case,
    now: Nanos,
    sender: Sender,
    guest: Guest,
    inward: Wire,
    outward: Wire,
    ring: Vec<Packet>,
    taken: u32,
    onlooker: Onlooker,
    random: StdRng,
    steps: usize,
    early_acks: u64,
    retransmissions: u64,
}

impl Model {
    fn new(case: Case) -> Model {
        Model {
            now: Nanos::from_millis(5_000),
            sender: Sender::new(case.seed, case.len, case.burst),
            guest: Guest::new(case.seed ^ 1, case.manners, case.answer),
            inward: Wire::default(),
            outward: Wire::default(),
            ring: Vec::new(),
            taken: 0,
            onlooker: Onlooker::default(),
            random: StdRng::seed_from_u64(case.seed ^ 2),
            steps: 0,
            early_acks: 0,
            retransmissions: 0,
            case,
        }
    }

    fn runs(&self) -> bool {
        let (on, off) = self.case.schedule;
        self.now.0 / 1_000_000 % (on + off) < on
    }

    /// Lets things happen until both ends are done, or so many steps were taken. True when they are done.
    fn run(&mut self, early: &mut EarlyAck<'_>, until: usize) -> bool {
        while self.steps < until {
            if self.sender.is_done() && self.guest.is_done() && self.sender.answer.len() == self.case.answer {
                return true;
            }
            assert!(!self.sender.reset, "the guest takes everything in the end");
            self.step(early);
            self.steps += 1;
        }
        false
    }

    fn step(&mut self, early: &mut EarlyAck<'_>) {
        let faults = self.case.faults;
        let mut out = Vec::new();
        let burst: Vec<Packet> = iter::from_fn(|| self.inward.arrived(self.now)).take(BURST).collect();
        if !burst.is_empty() {
            self.deliver(early, burst);
        } else if let Some(packet) = self.outward.arrived(self.now) {
            self.sender.take(&packet, self.now, &mut out);
        } else if early.poll_timeout() <= self.now {
            while let Some(send) = early.on_timeout(self.now) {
                let packet = Packet::read(send.frame);
                assert!(!packet.flags.contains(TcpFlags::RST), "the guest takes everything in the end");
                self.retransmissions += 1;
                if self.ring.len() < RING {
                    self.ring.push(packet);
                } else {
                    early.refused(self.now);
                }
            }
        } else if self.runs() && !self.ring.is_empty() {
            let packet = self.ring.remove(0);
            self.taken = self.taken.wrapping_add(1);
            let mut answers = Vec::new();
            self.guest.take(&packet, self.now, &mut answers);
            self.guest_sends(early, answers);
        } else {
            let next = [self.inward.next(), self.outward.next(), self.sender.deadline, early.poll_timeout()];
            let next = next
                .into_iter()
                .min()
                .expect("it has four")
                .min(self.now + Nanos(self.random.random_range(0..3_000_000)));
            self.now = (self.now + Nanos(self.random.random_range(10_000..400_000))).max(next);
            self.sender.turn(self.now, &mut out);
            if self.runs() {
                let mut answers = Vec::new();
                self.guest.turn(self.now, &mut answers);
                self.guest_sends(early, answers);
            }
        }
        for packet in out {
            self.inward.send(packet, self.now, faults, &mut self.random);
        }
        early.observe(PORT, Ring { waiting: self.ring.len() as u32, taken: self.taken }, self.now);
        self.check(early);
    }

    fn deliver(&mut self, early: &mut EarlyAck<'_>, packets: Vec<Packet>) {
        let mut frames = Vec::new();
        for packet in packets.into_iter().take(RING - self.ring.len()) {
            let mut frame = packet.inward(PLACE);
            let corrupt = !packet.payload.is_empty() && self.case.faults[0] > 0 && self.random.random_ratio(1, 100);
            if corrupt {
                *frame.last_mut().expect("it has a payload") ^= 0x10;
            } else {
                self.ring.push(packet.clone());
                self.onlooker.delivered(&packet);
            }
            frames.push(frame);
        }
        let mut sights = Vec::new();
        early.look(&mut sights, PORT, Way::In, frames.iter().map(|frame| (&frame[..], frame.len())), self.now);
        for (frame, sight) in frames.iter().zip(&sights) {
            early.delivered(sight, &frame[..], Checksum::Present, self.now);
            if let Some(ack) = early.next_ack() {
                let ack = Packet::read(ack);
                self.early_acks += 1;
                self.onlooker.goes_out(&ack, true);
                self.outward.send(ack, self.now, self.case.faults, &mut self.random);
            }
        }
    }

    fn guest_sends(&mut self, early: &mut EarlyAck<'_>, packets: Vec<Packet>) {
        let mut frames: Vec<Vec<u8>> = packets.iter().map(|packet| packet.outward(PLACE)).collect();
        let mut sights = Vec::new();
        early.look(&mut sights, PORT, Way::Out, frames.iter().map(|frame| (&frame[..], frame.len())), self.now);
        for ((packet, frame), sight) in packets.iter().zip(&mut frames).zip(&sights) {
            self.onlooker.guest_says(packet);
            if early.from_guest(sight, frame, Checksum::Present, self.now) == Verdict::Pass {
                let out = Packet::read(frame);
                self.onlooker.goes_out(&out, false);
                self.outward.send(out, self.now, self.case.faults, &mut self.random);
            }
        }
    }

    /// There is a copy of all that the sender was told of and the guest has not acknowledged.
    fn check(&self, early: &EarlyAck<'_>) {
        let owed = self.onlooker.out - self.onlooker.guest_ack;
        let Some(flow) = early.flows().next() else {
            assert!(owed <= 0, "{owed} bytes are owed and the flow is gone");
            return;
        };
        assert!(i64::from(flow.owed) >= owed && flow.retained >= flow.owed, "{owed} bytes are owed: {flow:?}");
        assert_eq!(u64::from(flow.retained), early.retained(PORT));
        assert!(flow.retained <= self.case.flow_bytes);
        assert!(flow.state != State::EndToEnd || flow.retained == 0);
    }
}

/// Runs a case to its end; returns its steps, early ACKs and retransmissions.
fn play(case: Case) -> [u64; 3] {
    let config = Config { flow_bytes: case.flow_bytes, ..Config::default() };
    let mode = if case.always { Mode::Always } else { Mode::Auto };
    let (mut flows, mut blocks) = memory(2, case.blocks);
    let mut breaks: Vec<usize> = case.breaks.clone();
    breaks.sort_unstable();
    breaks.push(400_000);
    let mut moved = None;
    let mut model = Model::new(case);
    for until in breaks {
        let memory = Memory { flows: &mut flows, blocks: &mut blocks };
        let mut early = match moved.take() {
            Some(export) => {
                let mut early = EarlyAck::new(memory, config);
                early.attach(PORT, mode);
                let export: Vec<u8> = export;
                early.import(PORT, &export, model.now).expect("an export is read");
                early
            }
            None => EarlyAck::resume(memory, config, &[(PORT, mode)], model.now),
        };
        model.check(&early);
        if model.run(&mut early, until) {
            assert!(model.guest.has(model.case.len), "the stream is not what was sent");
            assert!(is_answer(&model.sender.answer), "the answer is not what was sent");
            return [model.steps as u64, model.early_acks, model.retransmissions];
        }
        moved = (until % 2 == 1).then(|| early.export(PORT));
    }
    panic!("no end after {} steps, at {:?}", model.steps, model.now);
}

#[test]
fn a_million_steps() {
    let total = Cell::new([0; 3]);
    let config = ProptestConfig {
        cases: 700,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(5),
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&case(), |case| {
        let (so_far, more) = (total.get(), play(case));
        total.set(std::array::from_fn(|at| so_far[at] + more[at]));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let [steps, early, again] = total.get();
    assert!(steps >= 1_000_000, "{steps} steps");
    assert!(early >= 30_000, "{early} early ACKs");
    assert!(again >= 3_000, "{again} retransmissions");
    println!("{steps} steps, {early} early ACKs, {again} retransmissions");
}
