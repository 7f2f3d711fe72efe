//! Software TCP segmentation: cuts a large TCP frame when neither the receiver nor a card does it.

use super::{
    Error, Ethernet, Gso, GsoKind, Ip, Tcp, TcpFlags, checksum, get16, get32, ipv4, ipv6, protocol, put16, put32, tcp,
};

/// Offsets of the IP header, the TCP header and the payload in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub network: usize,
    pub transport: usize,
    pub payload: usize,
}

impl Headers {
    /// Finds the headers that `gso` needs in the `head` of a frame of `len` bytes.
    ///
    /// # Errors
    /// The headers are not of `gso`'s kind or not complete, or a segment would be larger than an IP packet can be.
    pub(super) fn new_checked(head: &[u8], gso: Gso, len: usize) -> Result<Headers, Error> {
        let frame = Ethernet::new_checked(head)?;
        let ip = match (Ip::of(&frame)?, gso.kind) {
            (Some(ip @ Ip::V4(_)), GsoKind::Tcp4) | (Some(ip @ Ip::V6(_)), GsoKind::Tcp6) => ip,
            _ => {
                let value = frame.ethertype().into();
                return Err(Error::Value { field: "ethertype", value, right: "what gso_type requires, IPv4 or IPv6" });
            }
        };
        let upper = ip.upper()?;
        if upper.protocol != protocol::TCP || upper.fragment {
            let value = upper.protocol.into();
            return Err(Error::Value { field: "protocol", value, right: "TCP, not fragmented, as gso_type requires" });
        }
        let network = frame.header_len();
        let transport = network + upper.offset;
        let payload = transport + Tcp::new_checked(upper.payload)?.header_len();
        if payload > len {
            return Err(Error::Short { header: "GSO frame", has: len, needs: payload });
        }
        if payload - network + usize::from(gso.size).min(len - payload) > usize::from(u16::MAX) {
            return Err(Error::Value {
                field: "gso_size",
                value: gso.size.into(),
                right: "at most 65535 with IP and TCP headers",
            });
        }
        Ok(Headers { network, transport, payload })
    }
}

/// The segments of one frame, written one by one.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    gso: Gso,
    headers: Headers,
    /// Offset in the frame of the next segment's payload.
    next: usize,
    /// Segments written so far.
    written: usize,
}

impl<'a> Segments<'a> {
    /// Prepares to segment a whole frame.
    ///
    /// # Errors
    /// The frame does not match `gso`, or `gso.size` is 0.
    pub fn new(frame: &'a [u8], gso: Gso) -> Result<Segments<'a>, Error> {
        if gso.size == 0 {
            return Err(Error::Value { field: "gso_size", value: 0, right: "1 or more" });
        }
        let headers = Headers::new_checked(frame, gso, frame.len())?;
        Ok(Segments { frame, gso, headers, next: headers.payload, written: 0 })
    }

    /// Segments not yet written. A frame without payload has one.
    pub fn left(&self) -> usize {
        let bytes = self.frame.len() - self.next;
        if self.written == 0 {
            bytes.div_ceil(self.gso.size.into()).max(1)
        } else {
            bytes.div_ceil(self.gso.size.into())
        }
    }

    /// Replaces the contents of `out` by the next segment, with complete checksums. False if there is none.
    ///
    /// IPv4 identifications count up from the frame's. Only the last segment keeps FIN and PSH, and with [`Gso::ecn`]
    /// only the first keeps CWR (RFC 3168, 6.1.2: one CWR per reduction).
    pub fn write_next(&mut self, out: &mut Vec<u8>) -> bool {
        if self.left() == 0 {
            return false;
        }
        let Headers { network, transport, payload } = self.headers;
        let end = (self.next + usize::from(self.gso.size)).min(self.frame.len());
        out.clear();
        out.extend_from_slice(&self.frame[..payload]);
        out.extend_from_slice(&self.frame[self.next..end]);

        let (ip, segment) = out[network..].split_at_mut(transport - network);
        let ip_len = ip.len() + segment.len();
        let pseudo = match self.gso.kind {
            GsoKind::Tcp4 => {
                put16(ip, ipv4::TOTAL_LEN, ip_len as u16);
                put16(ip, ipv4::ID, get16(ip, ipv4::ID).wrapping_add(self.written as u16));
                put16(ip, ipv4::CHECKSUM, 0);
                let checksum = checksum::Sum::default().with(ip).checksum();
                put16(ip, ipv4::CHECKSUM, checksum);
                &ip[ipv4::ADDRESSES]
            }
            GsoKind::Tcp6 => {
                put16(ip, ipv6::PAYLOAD_LEN, (ip_len - ipv6::HEADER) as u16);
                &ip[ipv6::ADDRESSES]
            }
        };
        let pseudo = checksum::pseudo_header(pseudo, protocol::TCP, segment.len());

        let sequence = get32(segment, tcp::SEQUENCE).wrapping_add((self.next - payload) as u32);
        put32(segment, tcp::SEQUENCE, sequence);
        let mut flags = TcpFlags(segment[tcp::FLAGS]);
        if end < self.frame.len() {
            flags = flags.without(TcpFlags::FIN).without(TcpFlags::PSH);
        }
        if self.gso.ecn && self.written > 0 {
            flags = flags.without(TcpFlags::CWR);
        }
        segment[tcp::FLAGS] = flags.0;
        put16(segment, tcp::CHECKSUM, 0);
        let checksum = pseudo.with(segment).checksum();
        put16(segment, tcp::CHECKSUM, checksum);

        self.next = end;
        self.written += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{ethertype, testing};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_together_are_the_frame(
            v6: bool,
            ecn: bool,
            flags: u8,
            sequence: u32,
            tags in proptest::collection::vec(0u16..4096, 0..3),
            words in 0usize..11,
            payload in proptest::collection::vec(any::<u8>(), 0..5000),
            size in 1u16..2000,
        ) {
            let flags = TcpFlags(flags);
            let frame = testing::tcp_frame(v6, &tags, &testing::tcp(flags, sequence, &vec![1; words * 4], &payload));
            let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            let mut segments = Segments::new(&frame, Gso { kind, ecn, size, header: 0 }).unwrap();
            let count = segments.left();
            prop_assert_eq!(count, payload.len().div_ceil(size.into()).max(1));

            let mut out = Vec::new();
            let mut joined: Vec<u8> = Vec::new();
            for index in 0..count {
                prop_assert_eq!(segments.left(), count - index);
                prop_assert!(segments.write_next(&mut out));
                prop_assert_eq!(checksum::verify(&out), Ok(true));
                let view = Ethernet::new_checked(&out).unwrap();
                let whole = Ethernet::new_checked(&frame).unwrap();
                prop_assert_eq!(&out[..view.header_len()], &frame[..whole.header_len()]);
                let ip = Ip::of(&view).unwrap().unwrap();
                prop_assert_eq!(ip.total_len(), view.payload().len());
                if let Ip::V4(v4) = ip {
                    prop_assert_eq!(v4.id(), index as u16);
                }
                let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
                prop_assert_eq!(tcp.sequence(), sequence.wrapping_add(joined.len() as u32));
                prop_assert_eq!(tcp.header_len(), 20 + words * 4);
                let last = index == count - 1;
                let mut expected = if last { flags } else { flags.without(TcpFlags(0x09)) };
                if ecn && index > 0 {
                    expected = expected.without(TcpFlags::CWR);
                }
                prop_assert_eq!(tcp.flags(), expected);
                prop_assert!(last || tcp.payload().len() == usize::from(size));
                joined.extend(tcp.payload());
            }
            prop_assert!(!segments.write_next(&mut out));
            prop_assert_eq!(joined, payload);
        }

        #[test]
        fn no_bytes_panic(mut bytes: Vec<u8>, v6: bool, size: u16, shape: bool) {
            if shape && bytes.len() > 23 {
                put16(&mut bytes, 12, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
                bytes[14] = if v6 { 0x60 } else { 0x45 };
                bytes[if v6 { 20 } else { 23 }] = protocol::TCP;
            }
            let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            if let Ok(mut segments) = Segments::new(&bytes, Gso { kind, ecn: false, size, header: 0 }) {
                let mut out = Vec::new();
                while segments.write_next(&mut out) {}
            }
        }
    }

    #[test]
    fn anything_but_large_tcp_is_refused() {
        let good = testing::tcp_frame(false, &[], &testing::tcp(TcpFlags::ACK, 1, &[], &[0; 100]));
        let gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 10, header: 0 };
        let with = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            Segments::new(&frame, gso).map(|_| ()).unwrap_err().to_string()
        };
        assert!(with(23, protocol::UDP).contains("protocol is 17"));
        assert!(with(20, 0x20).contains("not fragmented"));
        assert!(with(46, 0x40).contains("TCP header length is 16"));
        assert!(Segments::new(&good, Gso { size: 0, ..gso }).is_err());
        assert!(Segments::new(&good, Gso { kind: GsoKind::Tcp6, ..gso }).is_err());
        assert!(Segments::new(&good[..50], gso).is_err());
        let huge = testing::tcp_frame(false, &[], &testing::tcp(TcpFlags::ACK, 1, &[], &[0; 65_000]));
        let huge = [huge, vec![0; 1000]].concat();
        assert!(Segments::new(&huge, Gso { size: 65_535, ..gso }).is_err(), "a segment of 65575 bytes");
    }
}
