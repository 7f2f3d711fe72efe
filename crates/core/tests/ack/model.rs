//! Two ends of TCP with early ack between them, under any network and any guest.
//!
//! What is held after every step: no ACK beyond what the guest acknowledged or early ack was given in order, none back, no
//! window beyond the guest's, a copy of all that is owed. At the end: both streams are equal, and there is an end.
//!
//! What early ack is asked for is [`Work`] of its own, so that another process can do it, and be killed in it.

use crate::ends::{Guest, MSS, Manners, SENDER, Sender, is_answer};
use crate::wire::{Packet, Place};
use fairlane_core::ack::{Config, Direction, EarlyAck, Mode, Ring, State, Verdict};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::iter;

const PLACE: Place = Place { v6: false, vlans: [0; 2], port: 4000 };

/// Frames the guest's ring holds.
const RING: usize = 64;

/// Frames shown at once at most.
const BURST: usize = 32;

/// What happens in a transfer.
#[derive(Clone, Debug)]
pub struct Case {
    pub seed: u64,
    /// Bytes that are sent.
    pub len: usize,
    burst: usize,
    answer: usize,
    manners: Manners,
    /// Of 100 frames each way, how many are lost, come twice, come late.
    faults: [u32; 3],
    /// Milliseconds the guest runs, and does not.
    schedule: (u64, u64),
    always: bool,
    pub blocks: usize,
    flow_bytes: u32,
}

impl Case {
    pub fn config(&self) -> Config {
        Config { flow_bytes: self.flow_bytes, ..Config::default() }
    }

    pub fn mode(&self) -> Mode {
        if self.always { Mode::Always } else { Mode::Auto }
    }
}

/// Any case.
pub fn case() -> impl Strategy<Value = Case> {
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
    (sizes, manners, faults, (1u64..20, 0u64..80), limits).prop_map(
        |((seed, len, burst, answer), manners, faults, schedule, (always, blocks, flow_bytes))| Case {
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

/// What a backend does in a step.
pub enum Work {
    /// Frames were put into the guest's ring.
    Deliver(Vec<Vec<u8>>),
    /// The guest sends frames.
    Send(Vec<Vec<u8>>),
    /// A timer ran out; the guest's ring has room for so many frames.
    Repeat(usize),
}

/// What comes of it, one after the other.
pub enum Outcome {
    /// This is sent for the guest.
    Ack(Vec<u8>),
    /// The guest's next frame goes out like this.
    Passed(Vec<u8>),
    /// The guest's next frame is dropped.
    Dropped,
    /// This is put into the guest's ring.
    Again(Vec<u8>),
}

impl Work {
    /// Has it done, and told what comes of it as soon as it does.
    pub fn perform(&self, early: &mut EarlyAck<'_>, now: Nanos, told: &mut dyn FnMut(Outcome)) {
        let mut lookups = Vec::new();
        match self {
            Work::Deliver(frames) => {
                early.look_up(&mut lookups, Direction::In, frames.iter().map(|frame| (&frame[..], frame.len())), now);
                for (frame, lookup) in frames.iter().zip(&lookups) {
                    early.delivered(lookup, &frame[..], Checksum::Present, now);
                    if let Some(ack) = early.next_ack() {
                        told(Outcome::Ack(ack.to_vec()));
                    }
                }
            }
            Work::Send(frames) => {
                early.look_up(&mut lookups, Direction::Out, frames.iter().map(|frame| (&frame[..], frame.len())), now);
                for (frame, lookup) in frames.iter().zip(&lookups) {
                    let mut frame = frame.clone();
                    match early.from_guest(lookup, &mut frame, Checksum::Present, now) {
                        Verdict::Pass => told(Outcome::Passed(frame)),
                        Verdict::Drop => told(Outcome::Dropped),
                    }
                }
            }
            Work::Repeat(room) => {
                let mut room = *room;
                while let Some(frame) = early.on_timeout(now) {
                    if room > 0 {
                        room -= 1;
                        told(Outcome::Again(frame.to_vec()));
                    } else {
                        early.refused(now);
                    }
                }
            }
        }
    }
}

pub struct Model {
    case: Case,
    pub now: Nanos,
    sender: Sender,
    guest: Guest,
    inward: Wire,
    outward: Wire,
    /// What the guest has not taken, and how many of it were put there by what is done now.
    ring: Vec<Packet>,
    fresh: usize,
    taken: u32,
    /// What the guest sends and was not taken from it.
    unsent: Vec<Packet>,
    onlooker: Onlooker,
    pub random: StdRng,
    pub steps: usize,
    pub early_acks: u64,
    pub retransmissions: u64,
}

impl Model {
    pub fn new(case: Case) -> Model {
        Model {
            now: Nanos::from_millis(5_000),
            sender: Sender::new(case.seed, case.len, case.burst),
            guest: Guest::new(case.seed ^ 1, case.manners, case.answer),
            inward: Wire::default(),
            outward: Wire::default(),
            ring: Vec::new(),
            fresh: 0,
            taken: 0,
            unsent: Vec::new(),
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

    /// Whether both ends are done; then each has just what the other sent.
    pub fn is_done(&self) -> bool {
        let done = self.sender.is_done() && self.guest.is_done() && self.sender.answer.len() == self.case.answer;
        if done {
            assert!(self.guest.has(self.case.len), "the stream is not what was sent");
            assert!(is_answer(&self.sender.answer), "the answer is not what was sent");
        }
        done
    }

    /// Lets things happen until both ends are done, or so many steps were taken. True when they are done.
    pub fn run(&mut self, early: &mut EarlyAck<'_>, until: usize) -> bool {
        while self.steps < until {
            if self.is_done() {
                return true;
            }
            if let Some(work) = self.step(early) {
                let mut outcomes = Vec::new();
                work.perform(early, self.now, &mut |outcome| outcomes.push(outcome));
                self.done(&work, outcomes);
            }
            self.observe(early);
        }
        false
    }

    /// Lets the next thing happen. Returns what is to be done about it.
    pub fn step(&mut self, early: &EarlyAck<'_>) -> Option<Work> {
        assert!(!self.sender.reset, "the guest takes everything in the end");
        self.steps += 1;
        self.fresh = 0;
        let faults = self.case.faults;
        let mut out = Vec::new();
        let mut work = None;
        if self.unsent.is_empty() {
            let burst: Vec<Packet> = iter::from_fn(|| self.inward.arrived(self.now)).take(BURST).collect();
            if !burst.is_empty() {
                work = Some(Work::Deliver(self.put(burst)));
            } else if let Some(packet) = self.outward.arrived(self.now) {
                self.sender.take(&packet, self.now, &mut out);
            } else if early.poll_timeout() <= self.now {
                work = Some(Work::Repeat(RING - self.ring.len()));
            } else if self.runs() && !self.ring.is_empty() {
                let packet = self.ring.remove(0);
                self.taken = self.taken.wrapping_add(1);
                self.guest.take(&packet, self.now, &mut self.unsent);
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
                    self.guest.turn(self.now, &mut self.unsent);
                }
            }
            for packet in out {
                self.inward.send(packet, self.now, faults, &mut self.random);
            }
            self.unsent.iter().for_each(|packet| self.onlooker.guest_says(packet));
        }
        if work.is_none() && !self.unsent.is_empty() {
            work = Some(Work::Send(self.unsent.iter().take(BURST).map(|packet| packet.outward(PLACE)).collect()));
        }
        work
    }

    /// Puts what came into the guest's ring, as far as there is room.
    fn put(&mut self, packets: Vec<Packet>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packet in packets.into_iter().take(RING - self.ring.len()) {
            let mut frame = packet.inward(PLACE);
            let corrupt = !packet.payload.is_empty() && self.case.faults[0] > 0 && self.random.random_ratio(1, 100);
            if corrupt {
                *frame.last_mut().expect("it has a payload") ^= 0x10;
            } else {
                self.onlooker.delivered(&packet);
                self.ring.push(packet);
                self.fresh += 1;
            }
            frames.push(frame);
        }
        frames
    }

    /// Notes what came of work, all of it or as much as was done.
    pub fn done(&mut self, work: &Work, outcomes: Vec<Outcome>) {
        let taken = if matches!(work, Work::Send(_)) { outcomes.len() } else { 0 };
        self.unsent.drain(..taken);
        for outcome in outcomes {
            match outcome {
                Outcome::Ack(frame) => {
                    self.early_acks += 1;
                    self.goes_out(&frame, true);
                }
                Outcome::Passed(frame) => self.goes_out(&frame, false),
                Outcome::Dropped => {}
                Outcome::Again(frame) => {
                    let packet = Packet::read(&frame);
                    assert!(!packet.flags.contains(TcpFlags::RST), "the guest takes everything in the end");
                    self.retransmissions += 1;
                    self.ring.push(packet);
                    self.fresh += 1;
                }
            }
        }
    }

    fn goes_out(&mut self, frame: &[u8], early: bool) {
        let packet = Packet::read(frame);
        self.onlooker.goes_out(&packet, early);
        self.outward.send(packet, self.now, self.case.faults, &mut self.random);
    }

    /// What was put into the guest's ring last is not there after all: a process ended before it said so.
    pub fn unpublish(&mut self) {
        self.ring.truncate(self.ring.len() - self.fresh);
    }

    /// Has early ack note how the ring stands, and checks that there is a copy of all that the sender was told of and the guest has
    /// not acknowledged.
    pub fn observe(&self, early: &mut EarlyAck<'_>) {
        early.observe(Ring { waiting: self.ring.len() as u32, taken: self.taken }, self.now);
        self.check(early);
    }

    pub fn check(&self, early: &EarlyAck<'_>) {
        let owed = self.onlooker.out - self.onlooker.guest_ack;
        let Some(flow) = early.flows().next() else {
            assert!(owed <= 0, "{owed} bytes are owed and the flow is gone");
            return;
        };
        assert!(i64::from(flow.owed) >= owed && flow.retained >= flow.owed, "{owed} bytes are owed: {flow:?}");
        assert_eq!(u64::from(flow.retained), early.retained());
        assert!(flow.retained <= self.case.flow_bytes);
        assert!(flow.state != State::EndToEnd || flow.retained == 0);
    }
}
