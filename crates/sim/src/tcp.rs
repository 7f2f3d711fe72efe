//! Segments of streams as they are on the wire: TCP over IPv4 with timestamps, as early ack and receive queues see it. The sender's
//! address is in 10.0.0.0/8 and the receiver's in 11.0.0.0/8, each with the flow's number; the sender's port is the connection's
//! number. Checksums are left out, and said to be right.

use crate::frame::{Content, Frame, KEPT, Kind};
use fairlane_core::packet::{Ethernet, Ip, Mac, Tcp, TcpFlags, protocol};
use fairlane_core::time::Nanos;

/// Bytes of all headers of a segment with data.
pub(crate) const HEADERS: u32 = 14 + 20 + 20 + 12;

/// The shortest frame with data: Linux's smallest segment (`TCP_MIN_MSS`).
pub(crate) const SHORTEST: u32 = HEADERS + 88;

/// The longest simulation in which timestamps, in microseconds, are no ambiguous times.
pub(crate) const LONGEST: Nanos = Nanos(u32::MAX as u64 * 1000);

const SENDER: u8 = 10;
const RECEIVER: u8 = 11;
const PORT: u16 = 5001;

/// Window scale of both ends (RFC 7323, 2.2).
const SCALE: u8 = 10;

/// The largest window, in bytes.
pub(crate) const LARGEST_WINDOW: u64 = (u16::MAX as u64) << SCALE;

/// Bytes of the options of a SYN, of other segments, and of a selective acknowledgement of one block.
const IN_SYN: usize = 20;
const STAMPS: usize = 12;
const SELECTIVE: usize = 12;

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub kind: Kind,
    pub flow: u32,
    /// Which one of the flow's connections.
    pub connection: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// Bytes of the window; the first one, in a SYN, is less than 64 KiB.
    pub window: u64,
    /// When it was sent, and, in an answer, when the segment that it answers was: in microseconds.
    pub stamps: (u32, u32),
    /// The sequence number of a segment that arrived ahead of others, and its end.
    pub selective: Option<(u32, u32)>,
    /// Bytes of data.
    pub payload: u32,
}

impl Segment {
    /// The time as it is in a segment.
    pub(crate) fn stamp(time: Nanos) -> u32 {
        (time.0 / 1000) as u32
    }

    /// The time that a segment has, if that is less than [`LONGEST`] ago.
    pub(crate) fn time(stamp: u32, now: Nanos) -> Nanos {
        let ago = Segment::stamp(now).wrapping_sub(stamp);
        Nanos(now.0 / 1000 * 1000) - Nanos(u64::from(ago) * 1000)
    }

    /// The segment as a frame between these addresses, from and to. `largest` is the data of the flow's segments.
    pub(crate) fn frame(&self, (from, to): (Mac, Mac), largest: u32) -> Frame {
        let is_back = self.kind.is_back();
        let (ends, ports) = if is_back {
            ([RECEIVER, SENDER], [PORT, self.connection])
        } else {
            ([SENDER, RECEIVER], [self.connection, PORT])
        };
        let opens = matches!(self.kind, Kind::Open | Kind::Opened);
        let options = if opens { IN_SYN } else { STAMPS + self.selective.map_or(0, |_| SELECTIVE) };
        let headers = 14 + 20 + 20 + options;
        let len = headers as u32 + self.payload;
        let mut kept = [0; KEPT];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            kept[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&to.0);
        put(&from.0);
        // Version, length, "do not fragment" and the time to live (RFC 791, 3.1).
        put(&[8, 0, 0x45, 0]);
        put(&(len.min(u32::from(u16::MAX) + 14) as u16).wrapping_sub(14).to_be_bytes());
        put(&[0, 0, 0x40, 0, 64, protocol::TCP, 0, 0]);
        let [_, a, b, c] = self.flow.to_be_bytes();
        ends.iter().for_each(|net| put(&[*net, a, b, c]));
        ports.iter().for_each(|port| put(&port.to_be_bytes()));
        put(&self.sequence.to_be_bytes());
        put(&self.acknowledgement.to_be_bytes());
        let window = if opens { self.window } else { self.window >> SCALE };
        put(&[((20 + options) << 2) as u8, self.flags().0]);
        put(&(window.min(u16::MAX.into()) as u16).to_be_bytes());
        put(&[0; 4]);
        if opens {
            let mss = (largest + STAMPS as u32).min(u16::MAX.into()) as u16;
            // Maximum segment size, SACK permitted, timestamps, window scale.
            put(&[2, 4]);
            put(&mss.to_be_bytes());
            put(&[4, 2, 8, 10]);
        } else {
            put(&[1, 1, 8, 10]);
        }
        put(&self.stamps.0.to_be_bytes());
        put(&self.stamps.1.to_be_bytes());
        if opens {
            put(&[1, 3, 3, SCALE]);
        }
        if let Some((start, end)) = self.selective {
            put(&[1, 1, 5, 10]);
            put(&start.to_be_bytes());
            put(&end.to_be_bytes());
        }
        Frame::of(kept, len)
    }

    fn flags(&self) -> TcpFlags {
        match self.kind {
            Kind::Open => TcpFlags::SYN,
            Kind::Opened => TcpFlags::SYN.with(TcpFlags::ACK),
            Kind::Last => TcpFlags::PSH.with(TcpFlags::ACK),
            Kind::Close => TcpFlags::FIN.with(TcpFlags::ACK),
            Kind::Refused => TcpFlags::RST,
            Kind::Hello | Kind::Data | Kind::Answer => TcpFlags::ACK,
        }
    }

    /// The segment that a frame is, if it is one. `kept` are its first bytes, `len` all of them.
    pub(crate) fn read(kept: &[u8], len: u32) -> Option<Segment> {
        let frame = Ethernet::new_checked(kept).ok()?;
        let Ip::V4(ip) = Ip::of(&frame).ok()?? else { return None };
        let [net, a, b, c] = ip.source().octets();
        let tcp = Tcp::new_checked(kept.get(34..)?).ok()?;
        let flags = tcp.flags();
        let is_back = net == RECEIVER;
        let payload = len.saturating_sub(34 + tcp.header_len() as u32);
        let opens = flags.contains(TcpFlags::SYN);
        let kind = match is_back {
            true if flags.contains(TcpFlags::RST) => Kind::Refused,
            true if opens => Kind::Opened,
            true => Kind::Answer,
            false if opens => Kind::Open,
            false if flags.intersects(TcpFlags::FIN.with(TcpFlags::RST)) => Kind::Close,
            false if flags.contains(TcpFlags::PSH) => Kind::Last,
            false => Kind::Data,
        };
        let window = u64::from(tcp.window()) << if opens { 0 } else { SCALE };
        let options = tcp.options().ok()?;
        let word = |at: usize| Some(u32::from_be_bytes(*kept.get(at..at + 4)?.first_chunk()?));
        let start = HEADERS as usize + SELECTIVE - 8;
        Some(Segment {
            kind,
            flow: u32::from_be_bytes([0, a, b, c]),
            connection: if is_back { tcp.destination_port() } else { tcp.source_port() },
            sequence: tcp.sequence(),
            acknowledgement: tcp.acknowledgment(),
            window,
            stamps: options.timestamps.unwrap_or_default(),
            selective: (!opens && tcp.header_len() == 20 + STAMPS + SELECTIVE)
                .then(|| word(start).zip(word(start + 4)))
                .flatten(),
            payload,
        })
    }

    /// What it carries to its flow.
    pub(crate) fn content(&self) -> Content {
        let Segment { kind, flow, sequence, acknowledgement, stamps, .. } = *self;
        Content { kind, flow, number: sequence, answers: acknowledgement, sent: Nanos(u64::from(stamps.0) * 1000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MACS: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));

    proptest! {
        #[test]
        fn a_segment_is_read_as_it_was_written(flow in 0u32..1 << 24, connection: u16, numbers: (u32, u32), stamps: (u32, u32),
                                               window in 0..u64::from(u16::MAX), selective: Option<(u32, u32)>,
                                               payload in 1u32..9000) {
            for kind in [Kind::Open, Kind::Opened, Kind::Data, Kind::Last, Kind::Answer, Kind::Close] {
                let opens = matches!(kind, Kind::Open | Kind::Opened);
                let segment = Segment {
                    kind, flow, connection, sequence: numbers.0, acknowledgement: numbers.1, stamps,
                    window: if opens { window } else { window << SCALE },
                    selective: selective.filter(|_| kind == Kind::Answer),
                    payload: if matches!(kind, Kind::Data | Kind::Last) { payload } else { 0 },
                };
                let frame = segment.frame(MACS, 1448);
                prop_assert_eq!(frame.segment(), Some(segment));
                prop_assert_eq!(frame.content(), segment.content());
            }
        }
    }
}
