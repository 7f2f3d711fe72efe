//! TCP from hosts to guests: acknowledged data reaches its guest, both streams are intact, and each transfer ends.

use crate::card::Frame;
use crate::ends::{self, Guest, Manners, Sender};
use crate::frame::Station;
use crate::wire::{Packet, Place};
use fairlane_core::packet::{Mac, TcpFlags};
use fairlane_core::time::{Nanos, SECOND};
use fairlane_port::random::Random;
use std::collections::BTreeMap;

/// How long a transfer may make no progress while nothing is in its way: early ack gives up a guest after 111 s, and retransmits
/// every 30 s at least.
const STILL: Nanos = Nanos(300 * SECOND);

/// How often an end is checked while it runs, and while it waits.
const TURN: Nanos = Nanos::from_millis(5);
const LAZY: Nanos = Nanos::from_millis(200);

/// A transfer.
pub(crate) struct Transfer {
    /// The guest's port number.
    pub place: usize,
    /// The guest and the host.
    guest: Station,
    host: Station,
    port: u16,
    len: usize,
    answer: usize,
    sender: Sender,
    receiver: Guest,
    /// Its progress, how long it has made none while nothing was in its way, and when this was checked.
    far: usize,
    still: Nanos,
    looked: Nanos,
}

impl Transfer {
    fn new(place: usize, guest: Station, host: Station, port: u16, random: &mut Random, now: Nanos) -> Transfer {
        let manners = Manners {
            room: (2 + random.below(40) as usize) * ends::MSS,
            refuses: if random.chance(0.5) { 0 } else { random.below(20) as u32 },
            shrinks: random.chance(0.3),
            reneges: random.chance(0.3),
            lies: random.chance(0.1),
            reads: 500 + random.below(20_000) as usize,
        };
        let most = if random.chance(0.2) { 200_000 } else { 30_000 };
        let len = random.below(most) as usize;
        let answer = random.below(2_000) as usize;
        let burst = 1 + random.below(40) as usize;
        let (sender, receiver) = (random.below(u64::MAX), random.below(u64::MAX));
        let (sender, receiver) = (Sender::new(sender, len, burst), Guest::new(receiver, manners, answer));
        Transfer { place, guest, host, port, len, answer, sender, receiver, far: 0, still: Nanos(0), looked: now }
    }

    /// A segment of the sender as a frame.
    fn inward(&self, packet: &Packet) -> Frame {
        addressed(packet.inward(self.link()), self.guest.mac(), self.host.mac())
    }

    fn outward(&self, packet: &Packet) -> Frame {
        addressed(packet.outward(self.link()), self.host.mac(), self.guest.mac())
    }

    fn link(&self) -> Place {
        Place { port: self.port, ..Place::default() }
    }

    /// The sender's timers. Returns frames for the guest.
    pub(crate) fn sender_turn(&mut self, now: Nanos) -> Vec<Frame> {
        let mut out = Vec::new();
        self.sender.turn(now, &mut out);
        out.iter().map(|packet| self.inward(packet)).collect()
    }

    /// The guest's timers. Returns frames for the sender.
    pub(crate) fn guest_turn(&mut self, now: Nanos) -> Vec<Frame> {
        let mut out = Vec::new();
        self.receiver.turn(now, &mut out);
        out.iter().map(|packet| self.outward(packet)).collect()
    }

    /// The sender receives a frame.
    pub(crate) fn at_sender(&mut self, frame: &Frame, now: Nanos) -> Vec<Frame> {
        let mut out = Vec::new();
        self.sender.take(&self.arrived(frame), now, &mut out);
        self.sender.turn(now, &mut out);
        out.iter().map(|packet| self.inward(packet)).collect()
    }

    /// The guest receives a frame.
    pub(crate) fn at_guest(&mut self, frame: &Frame, now: Nanos) -> Vec<Frame> {
        let mut out = Vec::new();
        self.receiver.take(&self.arrived(frame), now, &mut out);
        out.iter().map(|packet| self.outward(packet)).collect()
    }

    /// Handles what an end received.
    ///
    /// # Panics
    /// It was a reset: no guest stalls long enough to be given up.
    fn arrived(&self, frame: &Frame) -> Packet {
        let packet = Packet::read(frame);
        let (guest, port, most) = (self.guest, self.port, self.sender.most);
        assert!(
            !packet.flags.contains(TcpFlags::RST),
            "the transfer to {guest:?} at port {port} was reset behind {most}"
        );
        packet
    }

    /// When to check it next; none if it is complete. `is_free` says that nothing is in its way.
    ///
    /// # Panics
    /// The received data differ from those sent, or it makes no progress.
    pub(crate) fn standing(&mut self, runs: bool, is_free: bool, now: Nanos) -> Option<Nanos> {
        let (sender, receiver) = (&self.sender, &self.receiver);
        let (guest, port) = (self.guest, self.port);
        if sender.is_done() && receiver.is_done() && sender.answer.len() == self.answer {
            assert!(receiver.has(self.len), "what {guest:?} got at port {port} is not what was sent");
            assert!(ends::is_answer(&sender.answer), "what {guest:?} answered at port {port} is not what arrived");
            return None;
        }
        let far = receiver.read.len() + sender.answer.len() + sender.most + usize::from(sender.is_done());
        let since = now.since(std::mem::replace(&mut self.looked, now));
        if std::mem::replace(&mut self.far, far) != far {
            self.still = Nanos(0);
        } else if is_free {
            self.still += since;
        }
        assert!(
            self.still < STILL,
            "the transfer of {} bytes to {:?} at port {} stands still: sent {}, done {}, read {}, answered {} of {}",
            self.len,
            self.guest,
            self.port,
            sender.most,
            sender.is_done(),
            receiver.read.len(),
            sender.answer.len(),
            self.answer
        );
        let next = if runs { now + TURN } else { self.sender.deadline.max(now + TURN).min(now + LAZY) };
        Some(next)
    }
}

/// A frame with other addresses.
fn addressed(mut frame: Vec<u8>, to: Mac, from: Mac) -> Frame {
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    frame.into()
}

/// The host's port of a TCP frame; none for other frames.
pub(crate) fn port(frame: &[u8], from_outside: bool) -> Option<u16> {
    let at = if from_outside { 34 } else { 36 };
    let is_tcp = frame.len() >= 54 && frame[12..14] == [8, 0];
    is_tcp.then(|| u16::from_be_bytes([frame[at], frame[at + 1]]))
}

/// All transfers, by the host's port.
#[derive(Default)]
pub(crate) struct Transfers {
    pub under_way: BTreeMap<u16, Transfer>,
    last: u16,
    pub begun: u64,
    pub done: u64,
    pub given_up: u64,
}

impl Transfers {
    /// Starts one. Returns its port.
    pub(crate) fn begin(
        &mut self,
        place: usize,
        guest: Station,
        host: Station,
        random: &mut Random,
        now: Nanos,
    ) -> u16 {
        loop {
            self.last = if self.last < 1024 { 1024 } else { self.last.wrapping_add(1) };
            if self.last >= 1024 && !self.under_way.contains_key(&self.last) {
                break;
            }
        }
        self.under_way.insert(self.last, Transfer::new(place, guest, host, self.last, random, now));
        self.begun += 1;
        self.last
    }

    /// Ends those of a guest that is gone.
    pub(crate) fn give_up(&mut self, place: usize) {
        let before = self.under_way.len();
        self.under_way.retain(|_, transfer| transfer.place != place);
        self.given_up += (before - self.under_way.len()) as u64;
    }

    /// Ends a complete one.
    pub(crate) fn end(&mut self, port: u16) {
        self.under_way.remove(&port);
        self.done += 1;
    }
}
