//! Two TCP ends with early ack between them, with arbitrary networks and guests.
//!
//! Checked after every step: no ACK beyond the data that was delivered in order, no ACK goes back, no window beyond the
//! guest's, a copy of everything owed. At the end: both streams are complete.
//!
//! Calls to early ack are [`Work`], so that another process can perform them and be killed meanwhile.

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

/// Size of the guest's ring, in frames.
const RING: usize = 64;

/// The most frames per burst.
const BURST: usize = 32;

/// The parameters of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub seed: u64,
    /// Bytes to send.
    pub len: usize,
    burst: usize,
    answer: usize,
    manners: Manners,
    /// How many of 100 frames in each direction are lost, duplicated and delayed.
    faults: [u32; 3],
    /// Milliseconds for which the guest runs, and does not run.
    schedule: (u64, u64),
    always: bool,
    pub blocks: usize,
    flow_bytes: u32,
}

impl Case {
    pub(crate) fn config(&self) -> Config {
        Config { flow_bytes: self.flow_bytes, ..Config::default() }
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.always { Mode::Always } else { Mode::Auto }
    }
}

/// Any case.
pub(crate) fn case() -> impl Strategy<Value = Case> {
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

/// Frames between the backend and the sender, in one direction.
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

/// The state of the connection as seen at the backend, in stream offsets.
#[derive(Default)]
struct Observer {
    /// The guest's greatest ACK.
    guest_ack: i64,
    /// The end of the data delivered in order.
    delivered: i64,
    /// Ranges delivered out of order.
    ranges: Vec<(i64, i64)>,
    /// The greatest ACK forwarded or sent to the sender.
    out: i64,
    /// The greatest window edge of the guest.
    edge: i64,
}

fn offset(number: u32) -> i64 {
    number.wrapping_sub(SENDER + 1).cast_signed().into()
}

impl Observer {
    fn delivered(&mut self, packet: &Packet) {
        let from = offset(packet.seq);
        let end = from + packet.payload.len() as i64 + i64::from(packet.flags.contains(TcpFlags::FIN));
        self.ranges.push((from, end));
        self.ranges.sort_unstable();
        for &(from, end) in &self.ranges {
            if from <= self.delivered {
                self.delivered = self.delivered.max(end);
            }
        }
        let done = self.delivered;
        self.ranges.retain(|(_, end)| *end > done);
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
            return; // The guest acknowledges unsent data, which early ack does not have to correct.
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

/// A backend's work in one step.
pub(crate) enum Work {
    /// Frames were put into the guest's ring.
    Deliver(Vec<Vec<u8>>),
    /// The guest sends frames.
    Send(Vec<Vec<u8>>),
    /// A timer expired; the guest's ring has room for this many frames.
    Repeat(usize),
}

/// A result of the work.
pub(crate) enum Outcome {
    /// An ACK sent for the guest.
    Ack(Vec<u8>),
    /// The guest's next frame as forwarded.
    Passed(Vec<u8>),
    /// The guest's next frame was dropped.
    Dropped,
    /// A retransmission put into the guest's ring.
    Again(Vec<u8>),
}

impl Work {
    /// Performs the work, and reports each outcome at once.
    pub(crate) fn perform(&self, early: &mut EarlyAck<'_>, now: Nanos, report: &mut dyn FnMut(Outcome)) {
        let mut lookups = Vec::new();
        match self {
            Work::Deliver(frames) => {
                early.look_up(&mut lookups, Direction::In, frames.iter().map(|frame| (&frame[..], frame.len())), now);
                for (frame, lookup) in frames.iter().zip(&lookups) {
                    early.delivered(lookup, &frame[..], Checksum::Present, now);
                    if let Some(ack) = early.next_ack() {
                        report(Outcome::Ack(ack.to_vec()));
                    }
                }
            }
            Work::Send(frames) => {
                early.look_up(&mut lookups, Direction::Out, frames.iter().map(|frame| (&frame[..], frame.len())), now);
                for (frame, lookup) in frames.iter().zip(&lookups) {
                    let mut frame = frame.clone();
                    match early.from_guest(lookup, &mut frame, Checksum::Present, now) {
                        Verdict::Pass => report(Outcome::Passed(frame)),
                        Verdict::Drop => report(Outcome::Dropped),
                    }
                }
            }
            Work::Repeat(room) => {
                let mut room = *room;
                while let Some(frame) = early.on_timeout(now) {
                    if room > 0 {
                        room -= 1;
                        report(Outcome::Again(frame.to_vec()));
                    } else {
                        early.refused(now);
                    }
                }
            }
        }
    }
}

pub(crate) struct Model {
    case: Case,
    pub now: Nanos,
    sender: Sender,
    guest: Guest,
    inward: Wire,
    outward: Wire,
    /// Frames that the guest has not consumed, and how many of them the current work has added.
    ring: Vec<Packet>,
    fresh: usize,
    taken: u32,
    /// Frames that the guest sends and the backend has not taken.
    unsent: Vec<Packet>,
    observer: Observer,
    pub random: StdRng,
    pub steps: usize,
    pub early_acks: u64,
    pub retransmissions: u64,
}

impl Model {
    pub(crate) fn new(case: Case) -> Model {
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
            observer: Observer::default(),
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

    /// Whether both ends are done; then checks that each has received exactly what the other sent.
    pub(crate) fn is_done(&self) -> bool {
        let done = self.sender.is_done() && self.guest.is_done() && self.sender.answer.len() == self.case.answer;
        if done {
            assert!(self.guest.has(self.case.len), "the stream is not what was sent");
            assert!(is_answer(&self.sender.answer), "the answer is not what was sent");
        }
        done
    }

    /// Runs until both ends are done or `until` steps were made. Returns whether they are done.
    pub(crate) fn run(&mut self, early: &mut EarlyAck<'_>, until: usize) -> bool {
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

    /// Makes the next step. Returns the work it causes, if any.
    pub(crate) fn step(&mut self, early: &EarlyAck<'_>) -> Option<Work> {
        assert!(!self.sender.reset, "the guest accepts everything in the end");
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
                    .expect("the array has four times")
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
            self.unsent.iter().for_each(|packet| self.observer.guest_says(packet));
        }
        if work.is_none() && !self.unsent.is_empty() {
            work = Some(Work::Send(self.unsent.iter().take(BURST).map(|packet| packet.outward(PLACE)).collect()));
        }
        work
    }

    /// Puts arrived frames into the guest's ring, as far as there is room.
    fn put(&mut self, packets: Vec<Packet>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for packet in packets.into_iter().take(RING - self.ring.len()) {
            let mut frame = packet.inward(PLACE);
            let corrupt = !packet.payload.is_empty() && self.case.faults[0] > 0 && self.random.random_ratio(1, 100);
            if corrupt {
                *frame.last_mut().expect("the frame has a payload") ^= 0x10;
            } else {
                self.observer.delivered(&packet);
                self.ring.push(packet);
                self.fresh += 1;
            }
            frames.push(frame);
        }
        frames
    }

    /// Notes the outcomes of work that was performed in full or in part.
    pub(crate) fn done(&mut self, work: &Work, outcomes: Vec<Outcome>) {
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
                    assert!(!packet.flags.contains(TcpFlags::RST), "the guest accepts everything in the end");
                    self.retransmissions += 1;
                    self.ring.push(packet);
                    self.fresh += 1;
                }
            }
        }
    }

    fn goes_out(&mut self, frame: &[u8], early: bool) {
        let packet = Packet::read(frame);
        self.observer.goes_out(&packet, early);
        self.outward.send(packet, self.now, self.case.faults, &mut self.random);
    }

    /// Removes the frames added last from the guest's ring: a process ended before it published them.
    pub(crate) fn unpublish(&mut self) {
        self.ring.truncate(self.ring.len() - self.fresh);
    }

    /// Reports the state of the ring to early ack, and checks that there is a copy of everything owed to the guest.
    pub(crate) fn observe(&self, early: &mut EarlyAck<'_>) {
        early.observe(Ring { waiting: self.ring.len() as u32, taken: self.taken }, self.now);
        self.check(early);
    }

    pub(crate) fn check(&self, early: &EarlyAck<'_>) {
        let owed = self.observer.out - self.observer.guest_ack;
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
