//! A connection from outside to a guest with early ack, stepped by hand.

use crate::wire::{Packet, Place};
use fairlane_core::ack::{Block, Config, Direction, EarlyAck, Fallback, Flow, FlowView, Memory, Mode, Ring, Verdict};
use fairlane_core::packet::{Checksum, TcpFlags};
use fairlane_core::time::Nanos;
use std::iter;

/// The sequence number of the first payload byte in each direction.
pub(crate) const FROM_OUTSIDE: u32 = 0xffff_ff00;
pub(crate) const FROM_GUEST: u32 = 5000;

/// The guest's window scale.
pub(crate) const SCALE: u8 = 2;

/// The window in the guest's SYN, which is not scaled.
pub(crate) const WINDOW: u32 = 20_000;

pub(crate) fn memory(flows: usize, blocks: usize) -> (Vec<Flow>, Vec<Block>) {
    (vec![Flow::default(); flows], vec![Block::FREE; blocks])
}

/// Memory that is never freed.
pub(crate) fn leaked(flows: usize, blocks: usize) -> Memory<'static> {
    let (flows, blocks) = memory(flows, blocks);
    Memory { flows: flows.leak(), blocks: blocks.leak() }
}

/// Reports a single frame that was put into the guest's ring. Returns the ACK for outside.
pub(crate) fn delivered<'e>(
    early: &'e mut EarlyAck<'_>,
    frame: &[u8],
    checksum: Checksum,
    now: Nanos,
) -> Option<&'e [u8]> {
    let mut lookups = Vec::new();
    early.look_up(&mut lookups, Direction::In, iter::once((frame, frame.len())), now);
    early.delivered(&lookups[0], frame, checksum, now);
    early.next_ack()
}

/// Reports a single frame that the guest sends.
pub(crate) fn from_guest(early: &mut EarlyAck<'_>, frame: &mut [u8], now: Nanos) -> Verdict {
    let mut lookups = Vec::new();
    early.look_up(&mut lookups, Direction::Out, iter::once((&*frame, frame.len())), now);
    early.from_guest(&lookups[0], frame, Checksum::Present, now)
}

pub(crate) struct Fixture {
    pub early: EarlyAck<'static>,
    pub place: Place,
    pub now: Nanos,
}

impl Fixture {
    /// A guest with early ack always engaged and an open connection.
    pub(crate) fn open() -> Fixture {
        let mut fixture = Fixture::new(Place { port: 4000, ..Place::default() });
        fixture.connect();
        fixture
    }

    pub(crate) fn new(place: Place) -> Fixture {
        Fixture::with(place, Mode::Always, Config::default(), leaked(8, 64))
    }

    pub(crate) fn with(place: Place, mode: Mode, config: Config, memory: Memory<'static>) -> Fixture {
        let early = EarlyAck::new(memory, config, mode);
        Fixture { early, place, now: Nanos::from_millis(1000) }
    }

    /// Reports the state of the guest's ring.
    pub(crate) fn observe(&mut self, waiting: u32, taken: u32) -> Nanos {
        self.early.observe(Ring { waiting, taken }, self.now)
    }

    /// Runs the handshake of a connection that the guest accepts.
    pub(crate) fn connect(&mut self) {
        let syn = Packet {
            seq: FROM_OUTSIDE - 1,
            flags: TcpFlags::SYN,
            window: 1000,
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            stamps: Some((100, 0)),
            ..Packet::default()
        };
        assert_eq!(self.deliver(&syn), None);
        let both = Packet {
            seq: FROM_GUEST - 1,
            ack: FROM_OUTSIDE,
            flags: TcpFlags::SYN.with(TcpFlags::ACK),
            window: WINDOW as u16,
            scale: Some(SCALE),
            stamps: Some((700, 100)),
            ..syn
        };
        assert_eq!(self.guest(&both), Some(both.clone()));
        assert_eq!(self.deliver(&self.data(0, 0)), None);
    }

    /// A segment from outside with the data at `offset`.
    pub(crate) fn data(&self, offset: u32, len: usize) -> Packet {
        Packet {
            seq: FROM_OUTSIDE.wrapping_add(offset),
            ack: FROM_GUEST,
            flags: TcpFlags::ACK,
            window: 500,
            stamps: Some((101, 700)),
            payload: (0..len).map(|at| byte(offset as usize + at)).collect(),
            ..Packet::default()
        }
    }

    /// The guest's ACK of `bytes` bytes with a window of `room` bytes.
    pub(crate) fn ack(&self, bytes: u32, room: u32) -> Packet {
        Packet {
            seq: FROM_GUEST,
            ack: FROM_OUTSIDE.wrapping_add(bytes),
            flags: TcpFlags::ACK,
            window: (room >> SCALE) as u16,
            stamps: Some((701, 101)),
            ..Packet::default()
        }
    }

    /// Puts a segment into the guest's ring. Returns the ACK for outside.
    pub(crate) fn deliver(&mut self, packet: &Packet) -> Option<Packet> {
        self.deliver_frame(&packet.inward(self.place), Checksum::Present)
    }

    pub(crate) fn deliver_frame(&mut self, frame: &[u8], checksum: Checksum) -> Option<Packet> {
        delivered(&mut self.early, frame, checksum, self.now).map(Packet::read)
    }

    /// Lets the guest send a segment. Returns the segment that is forwarded, if any.
    pub(crate) fn guest(&mut self, packet: &Packet) -> Option<Packet> {
        let mut frame = packet.outward(self.place);
        match from_guest(&mut self.early, &mut frame, self.now) {
            Verdict::Pass => Some(Packet::read(&frame)),
            Verdict::Drop => None,
        }
    }

    /// Advances the time to the next timer. Returns the segments sent then, and whether each is for the guest.
    pub(crate) fn timeout(&mut self) -> Vec<(bool, Packet)> {
        self.now = self.now.max(self.early.poll_timeout());
        let mut sent = Vec::new();
        while let Some(frame) = self.early.on_timeout(self.now) {
            sent.push((true, Packet::read(frame)));
        }
        while let Some(frame) = self.early.next_ack() {
            sent.push((false, Packet::read(frame)));
        }
        sent
    }

    /// The one flow.
    pub(crate) fn flow(&self) -> FlowView {
        self.early.flows().next().expect("the table has a flow")
    }

    pub(crate) fn fallbacks(&self, reason: Fallback) -> u64 {
        self.early.stats().fallbacks(reason)
    }
}

/// The byte at an offset of the stream from outside.
pub(crate) fn byte(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 9) as u8
}

/// The acknowledgment number for this many bytes.
pub(crate) fn acks(bytes: u32) -> u32 {
    FROM_OUTSIDE.wrapping_add(bytes)
}
