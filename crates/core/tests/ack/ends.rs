//! Two simple TCP ends (RFC 9293): a sender outside, and a guest that receives its stream and sends a short answer.

use crate::wire::Packet;
use fairlane_core::packet::TcpFlags;
use fairlane_core::time::Nanos;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

pub(crate) const MSS: usize = 1000;
const SCALE: u8 = 3;
const RTO: Nanos = Nanos::from_millis(200);
const LONGEST: Nanos = Nanos::from_millis(5_000);

/// The stream's byte at an offset.
fn byte(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 9) as u8
}

/// The initial sequence numbers of sender and guest; the sender's wraps soon.
pub(crate) const SENDER: u32 = u32::MAX - 20_000;
pub(crate) const GUEST: u32 = u32::MAX - 100;

fn millis(now: Nanos) -> u32 {
    // Timestamps wrap, too.
    ((now.0 / 1_000_000) as u32).wrapping_add(0xffff_0000)
}

/// The sender.
pub(crate) struct Sender {
    pub random: StdRng,
    pub open: bool,
    pub reset: bool,
    len: usize,
    /// Offsets in the stream; the FIN follows its end.
    una: usize,
    next: usize,
    pub most: usize,
    edge: i64,
    taken: (u32, u32),
    duplicates: u32,
    burst: usize,
    pub deadline: Nanos,
    rto: Nanos,
    /// The guest's answer so far.
    pub answer: Vec<u8>,
    echo: u32,
}

impl Sender {
    pub(crate) fn new(seed: u64, len: usize, burst: usize) -> Sender {
        Sender {
            random: StdRng::seed_from_u64(seed),
            open: false,
            reset: false,
            len,
            una: 0,
            next: 0,
            most: 0,
            edge: 0,
            taken: (0, 0),
            duplicates: 0,
            burst,
            deadline: Nanos(0),
            rto: RTO,
            answer: Vec::new(),
            echo: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.una == self.len + 1
    }

    fn packet(&self, now: Nanos, from: usize, len: usize) -> Packet {
        let is_fin = from + len > self.len;
        let end = (from + len).min(self.len);
        Packet {
            seq: SENDER.wrapping_add(1 + from as u32),
            ack: GUEST.wrapping_add(1 + self.answer.len() as u32),
            flags: if is_fin { TcpFlags::FIN.with(TcpFlags::ACK) } else { TcpFlags::ACK },
            window: 1000,
            stamps: Some((millis(now), self.echo)),
            payload: (from..end).map(byte).collect(),
            ..Packet::default()
        }
    }

    /// Sends what is due now.
    pub(crate) fn turn(&mut self, now: Nanos, out: &mut Vec<Packet>) {
        if now >= self.deadline && !self.is_done() {
            self.deadline = now + self.rto;
            self.rto = LONGEST.min(Nanos(self.rto.0 * 2));
            if !self.open {
                out.push(Packet {
                    flags: TcpFlags::SYN,
                    seq: SENDER,
                    ack: 0,
                    mss: Some(MSS as u16),
                    scale: Some(7),
                    sack_permitted: true,
                    ..self.packet(now, 0, 0)
                });
                return;
            }
            if self.una < self.most || self.edge <= self.una as i64 {
                // Retransmit, or probe a closed window with one byte.
                let len = if self.edge > self.una as i64 { MSS } else { 1 };
                let len = len.min(self.len + 1 - self.una);
                out.push(self.packet(now, self.una, len));
                self.next = self.una + len;
                self.most = self.most.max(self.next);
            }
        }
        if !self.open {
            return;
        }
        let limit = self.edge.min((self.una + self.burst * MSS) as i64).min(self.len as i64 + 1);
        while (self.next as i64) < limit && out.len() < 8 {
            let large = if self.random.random_ratio(1, 4) { 5 * MSS } else { self.random.random_range(1..=MSS) };
            let len = large.min(limit as usize - self.next);
            out.push(self.packet(now, self.next, len));
            self.next += len;
            self.most = self.most.max(self.next);
        }
    }

    /// Receives a segment from the guest, and answers.
    pub(crate) fn take(&mut self, packet: &Packet, now: Nanos, out: &mut Vec<Packet>) {
        if packet.flags.contains(TcpFlags::RST) {
            self.reset = true;
            return;
        }
        if packet.flags.contains(TcpFlags::SYN) {
            if !self.open {
                self.open = true;
                self.edge = packet.window.into();
                self.echo = packet.stamps.unwrap().0;
                self.rto = RTO;
            }
            out.push(self.packet(now, self.next.min(self.len), 0));
            return;
        }
        let acked = i64::from(packet.ack.wrapping_sub(SENDER + 1).cast_signed());
        if !self.open || acked > self.most as i64 {
            return;
        }
        let edge = acked + (i64::from(packet.window) << SCALE);
        if acked > self.una as i64 {
            self.una = acked as usize;
            self.next = self.next.max(self.una);
            self.duplicates = 0;
            self.rto = RTO;
            self.deadline = now + RTO;
        } else if acked == self.una as i64 && packet.payload.is_empty() && self.una < self.most && edge == self.edge {
            self.duplicates += 1;
            if self.duplicates == 3 {
                let len = MSS.min(self.most - self.una);
                out.push(self.packet(now, self.una, len));
            }
        }
        let (seq, ack) = self.taken;
        let newer = (packet.seq.wrapping_sub(seq) as i32) > 0
            || (packet.seq == seq && (packet.ack.wrapping_sub(ack) as i32) >= 0);
        if acked >= self.una as i64 && (newer || seq == 0) {
            self.taken = (packet.seq, packet.ack);
            self.edge = edge;
            if edge > self.una as i64 {
                self.rto = self.rto.min(RTO);
                self.deadline = self.deadline.min(now + RTO);
            }
        }
        let (value, _) = packet.stamps.unwrap();
        if value.wrapping_sub(self.echo) as i32 > 0 {
            self.echo = value;
        }
        if !packet.payload.is_empty() {
            let at = packet.seq.wrapping_sub(GUEST + 1) as usize;
            let skip = self.answer.len().wrapping_sub(at);
            if skip < packet.payload.len() {
                self.answer.extend(&packet.payload[skip..]);
            }
            out.push(self.packet(now, self.next.min(self.len), 0));
        }
    }
}

/// How a guest behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Bytes its receive buffer holds.
    pub room: usize,
    /// How many of 100 acceptable segments are dropped.
    pub refuses: u32,
    /// Shrinks windows that it advertised.
    pub shrinks: bool,
    /// Discards data that it selectively acknowledged.
    pub reneges: bool,
    /// Acknowledges data that was never sent.
    pub lies: bool,
    /// Bytes it reads at a time.
    pub reads: usize,
}

/// The guest.
pub(crate) struct Guest {
    pub random: StdRng,
    manners: Manners,
    pub open: bool,
    /// The data that its application has read, and the data that waits to be read.
    pub read: Vec<u8>,
    unread: Vec<u8>,
    later: BTreeMap<usize, Vec<u8>>,
    pub fin: Option<usize>,
    finished: bool,
    edge: usize,
    stamp: u32,
    last_ack: usize,
    answer: usize,
    answered: usize,
    pub deadline: Nanos,
}

impl Guest {
    pub(crate) fn new(seed: u64, manners: Manners, answer: usize) -> Guest {
        Guest {
            random: StdRng::seed_from_u64(seed),
            manners,
            open: false,
            read: Vec::new(),
            unread: Vec::new(),
            later: BTreeMap::new(),
            fin: None,
            finished: false,
            edge: 0,
            stamp: 0,
            last_ack: 0,
            answer,
            answered: 0,
            deadline: Nanos::NEVER,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.finished && self.unread.is_empty() && self.answered == self.answer
    }

    fn next(&self) -> usize {
        self.read.len() + self.unread.len()
    }

    fn packet(&mut self, now: Nanos) -> Packet {
        let room = self.manners.room.saturating_sub(self.unread.len());
        let room = if self.manners.shrinks && self.random.random_ratio(1, 10) { room / 2 } else { room };
        let offered = (self.next() + room) >> SCALE << SCALE;
        self.edge = if self.manners.shrinks { offered } else { self.edge.max(offered) };
        self.last_ack = self.next();
        let mut ack = (self.next() + usize::from(self.finished)) as u32;
        if self.manners.lies && self.random.random_ratio(1, 50) {
            ack += 1 << 20;
        }
        Packet {
            seq: GUEST.wrapping_add(1 + self.answered as u32),
            ack: SENDER.wrapping_add(1).wrapping_add(ack),
            flags: TcpFlags::ACK,
            window: (self.edge.saturating_sub(self.next()) >> SCALE) as u16,
            stamps: Some((millis(now), self.stamp)),
            blocks: self
                .later
                .iter()
                .take(3)
                .map(|(at, bytes)| {
                    let left = SENDER.wrapping_add(1 + *at as u32);
                    (left, left.wrapping_add(bytes.len() as u32))
                })
                .collect(),
            ..Packet::default()
        }
    }

    /// Lets its application read, and sends what is due.
    pub(crate) fn turn(&mut self, now: Nanos, out: &mut Vec<Packet>) {
        if !self.open {
            return;
        }
        let was_shut = self.edge.saturating_sub(self.next()) < 2 * MSS;
        let take = self.random.random_range(0..=self.manners.reads).min(self.unread.len());
        self.read.extend(self.unread.drain(..take));
        if was_shut && self.manners.room.saturating_sub(self.unread.len()) >= 2 * MSS.min(self.manners.room / 2) {
            out.push(self.packet(now));
        }
        if self.manners.reneges && self.random.random_ratio(1, 20) {
            self.later.clear();
        }
        if now >= self.deadline && self.answered < self.answer {
            let len = (self.answer - self.answered).min(100);
            let from = self.answered;
            out.push(Packet { payload: (from..from + len).map(byte).collect(), ..self.packet(now) });
            self.deadline = now + RTO;
        }
    }

    /// Receives a segment from the ring, and answers.
    pub(crate) fn take(&mut self, packet: &Packet, now: Nanos, out: &mut Vec<Packet>) {
        if packet.flags.contains(TcpFlags::SYN) {
            if self.deadline != Nanos::NEVER {
                out.push(self.packet(now));
                return;
            }
            if !self.open {
                self.stamp = packet.stamps.unwrap().0;
                self.open = true;
            }
            let window = self.manners.room.min(65_535);
            self.edge = self.edge.max(window);
            let ack = SENDER.wrapping_add(1);
            out.push(Packet {
                flags: TcpFlags(0x12),
                seq: GUEST,
                ack,
                window: window as u16,
                mss: Some(MSS as u16 + 12),
                scale: Some(SCALE),
                sack_permitted: true,
                blocks: Vec::new(),
                ..self.packet(now)
            });
            return;
        }
        if !self.open {
            return;
        }
        if self.deadline == Nanos::NEVER {
            self.deadline = now;
        }
        let acked = packet.ack.wrapping_sub(GUEST + 1) as usize;
        if acked > self.answered && acked <= self.answer {
            self.answered = acked;
            self.deadline = now;
        }
        let (value, _) = packet.stamps.unwrap();
        if (value.wrapping_sub(self.stamp) as i32) < 0 {
            out.push(self.packet(now));
            return;
        }
        let from = i64::from(packet.seq.wrapping_sub(SENDER + 1).cast_signed());
        let is_fin = packet.flags.contains(TcpFlags::FIN);
        if packet.payload.is_empty() && !is_fin {
            return;
        }
        if from <= self.last_ack as i64 {
            self.stamp = value;
        }
        if self.random.random_range(0..100) < self.manners.refuses {
            if self.random.random() {
                out.push(self.packet(now));
            }
            return;
        }
        let from = from.max(0) as usize;
        let end = from + packet.payload.len();
        if is_fin {
            self.fin = Some(end);
        }
        if end > self.next() && end <= self.next() + self.manners.room.saturating_sub(self.unread.len()) {
            self.later.insert(from, packet.payload.clone());
        }
        while self.later.first_key_value().is_some_and(|(from, _)| *from <= self.next()) {
            let (from, bytes) = self.later.pop_first().expect("there is a first one");
            let skip = (self.next() - from).min(bytes.len());
            self.unread.extend(&bytes[skip..]);
        }
        self.finished |= self.fin == Some(self.next());
        out.push(self.packet(now));
    }

    /// Whether it has received exactly the stream.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.read.len() == len && self.read.iter().enumerate().all(|(at, got)| *got == byte(at))
    }
}

/// Whether these bytes are what the guest sent.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(at, got)| *got == byte(at))
}
