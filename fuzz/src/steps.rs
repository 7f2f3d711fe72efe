//! Steps of conversations between a guest and external senders, as early ack sees them.

use fairlane_core::ack::{Direction, EarlyAck, Fallback, LookupBatch, Ring};
use fairlane_core::packet::{Checksum, Compose, Ethernet, Ip, Tcp, TcpFlags, checksum};
use fairlane_core::time::Nanos;
use std::iter::once;
use std::net::IpAddr;

/// Bytes of a step in an input: the kind of event, and numbers near those of a connection.
pub const STEP: usize = 12;

/// The state of a guest's two connections.
pub struct Conversation {
    pub now: Nanos,
    sights: Vec<LookupBatch>,
    /// The highest end of delivered data, for each connection.
    most: [i32; 2],
}

impl Default for Conversation {
    fn default() -> Conversation {
        Conversation { now: Nanos(1_000_000_000), sights: Vec::new(), most: [0; 2] }
    }
}

impl Conversation {
    /// Completes the handshakes of both connections.
    pub fn open(&mut self, early: &mut EarlyAck<'_>) {
        let (syn, ack) = (TcpFlags::SYN.0, TcpFlags::ACK.0);
        for connection in 0..2 {
            for (kind, flags, seq, acked) in [(0, syn, 0, 0), (3, syn | ack, 0, 1), (0, ack, 1, 1)] {
                self.step(early, &[kind, connection, flags, seq, 0, acked, 0, 0, 0, 200, 0, 0], true);
            }
        }
    }

    /// Takes a step: a frame from a sender or from the guest, or time passes. Checks that an ACK sent for the guest is valid, and, if the
    /// conversation is `whole`, that it acknowledges only delivered data.
    pub fn step(&mut self, early: &mut EarlyAck<'_>, step: &[u8; STEP], whole: bool) {
        let [kind, which, _, seq, seq_high, _, _, len, len_high, window, stamp, rest] = *step;
        match kind & 7 {
            0..=2 => {
                let frame = frame(step, true);
                let connection = usize::from(which & 1);
                let end = i32::from(i16::from_le_bytes([seq, seq_high])) + payload(len, len_high) as i32;
                self.most[connection] = self.most[connection].max(end + 2);
                let state = if kind & 8 == 0 { Checksum::Present } else { Checksum::Valid };
                early.look_up(&mut self.sights, Direction::In, once((&frame[..], frame.len())), self.now);
                early.delivered(&self.sights[0], &frame[..], state, self.now);
                if let Some(ack) = early.next_ack() {
                    assert_eq!(checksum::verify(ack), Ok(true));
                    let ethernet = Ethernet::new_checked(ack).unwrap();
                    let ip = Ip::of(&ethernet).unwrap().unwrap();
                    let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
                    assert_eq!((tcp.flags().without(TcpFlags::RST), tcp.payload()), (TcpFlags::ACK, &[][..]));
                    let known = whole && kind & 0x80 == 0 && tcp.flags() == TcpFlags::ACK;
                    let acked = tcp.acknowledgment() as i32;
                    assert!(!known || acked <= self.most[connection], "{acked} was not delivered");
                }
            }
            3..=5 => {
                let mut frame = frame(step, false);
                early.look_up(&mut self.sights, Direction::Out, once((&frame[..], frame.len())), self.now);
                early.from_guest(&self.sights[0], &mut frame, Checksum::Present, self.now);
            }
            _ => {
                self.now += Nanos(u64::from(window) << 24);
                for _ in 0..100 {
                    let Some(sent) = early.on_timeout(self.now) else { break };
                    assert_eq!(checksum::verify(sent), Ok(true));
                    if stamp & 1 != 0 {
                        early.refused(self.now);
                        break;
                    }
                }
                early.observe(Ring { waiting: u32::from(rest), taken: u32::from(stamp) }, self.now);
            }
        }
    }
}

/// Checks the invariants of flows: the sum of their copies is the total, and they cover all data that was acknowledged early, except
/// data known to be lost.
pub fn check(early: &EarlyAck<'_>) {
    let flows = || early.flows();
    let retained: u64 = flows().map(|flow| u64::from(flow.retained)).sum();
    assert_eq!((retained, flows().count()), (early.retained(), early.known() as usize));
    assert!(flows().all(|flow| flow.owed <= flow.retained || flow.fallback == Some(Fallback::Damaged)));
}

fn payload(len: u8, len_high: u8) -> usize {
    usize::from(u16::from_le_bytes([len, len_high]) % 3_000)
}

/// The frame of a step: from outside to the guest, or back.
fn frame(step: &[u8; STEP], inward: bool) -> Vec<u8> {
    let [kind, which, flags, seq, seq_high, ack, ack_high, len, len_high, window, stamp, rest] = *step;
    let six = which & 4 != 0;
    let outside = (if six { IpAddr::from([1; 16]) } else { [10, 0, 0, 1].into() }, u16::from(which & 1));
    let inside = (if six { IpAddr::from([2; 16]) } else { [10, 0, 0, 2].into() }, 80);
    let (source, destination) = if inward { (outside, inside) } else { (inside, outside) };
    let tagged = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 5];
    let mut out = Vec::new();
    Compose {
        link: if which & 8 == 0 { &tagged[..12] } else { &tagged },
        source,
        destination,
        sequence: i32::from(i16::from_le_bytes([seq, seq_high])) as u32,
        acknowledgment: i32::from(i16::from_le_bytes([ack, ack_high])) as u32,
        flags: TcpFlags(flags),
        window: u16::from(window) << 6,
        timestamps: (which & 2 != 0).then_some((stamp.into(), u32::from(rest))),
    }
    .write(&mut out, |out| out.resize(out.len() + payload(len, len_high), rest));
    if kind & 0x80 != 0 {
        // Change a byte of the headers.
        out[usize::from(rest) % 54] ^= stamp;
    }
    out
}
