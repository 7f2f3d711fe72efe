//! A frame parsed as a segment of a flow: the flow's key, and the header fields that early ack needs.

use super::sequence::Seq;
use crate::packet::{Ethernet, Ip, Tcp, TcpFlags, TcpOptions, array, get16, protocol};
use crate::table::{Secrets, fold};
use std::net::IpAddr;
use std::ops::Range;

/// Bytes of Ethernet addresses and up to two VLAN tags.
const LINK: usize = 20;

/// The direction of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From outside to the guest.
    In,
    /// From the guest.
    Out,
}

/// A flow's key: VLANs, and addresses and ports of both ends. Every bit pattern is valid, as it is read from memory
/// that outlives the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Key {
    /// Address outside; IPv4 addresses are mapped as in RFC 4291, 2.5.5.2.
    pub outside: [u8; 16],
    /// Address of the guest.
    pub inside: [u8; 16],
    /// Port outside.
    pub outside_port: u16,
    /// Port of the guest.
    pub inside_port: u16,
    /// Bit 31: IPv6. Bits 24 and 25: number of tags. Bits 12 to 23: outer VLAN. Bits 0 to 11: inner VLAN.
    pub link: u32,
}

impl Key {
    /// Whether the flow is IPv6.
    pub(super) fn is_v6(&self) -> bool {
        self.link >> 31 != 0
    }

    /// The outer VLAN; 0 if there is none.
    pub(super) fn vlan(&self) -> u16 {
        (self.link >> 12 & 0xfff) as u16
    }

    /// Address and port outside.
    pub(super) fn outside(&self) -> (IpAddr, u16) {
        (self.address(self.outside), self.outside_port)
    }

    /// Address and port of the guest.
    pub(super) fn inside(&self) -> (IpAddr, u16) {
        (self.address(self.inside), self.inside_port)
    }

    fn address(&self, bytes: [u8; 16]) -> IpAddr {
        let [.., a, b, c, d] = bytes;
        if self.is_v6() { bytes.into() } else { [a, b, c, d].into() }
    }

    /// The hash for the index. Both factors of every product have a secret of their own: a sender who could make a
    /// factor zero could create flows with equal hashes. With known secrets that is possible, but flows are still
    /// compared by key.
    #[inline]
    pub(super) fn hash(&self, secrets: &Secrets<6>) -> u32 {
        let [a, b, c, d, e, f] = secrets.0;
        let half = |bytes: &[u8; 16], at: usize| u64::from_le_bytes(array(bytes, at));
        let ports = u64::from(self.outside_port) << 16 | u64::from(self.inside_port);
        let outside = fold(half(&self.outside, 0) ^ a, half(&self.outside, 8) ^ b);
        let inside = fold(half(&self.inside, 0) ^ c, half(&self.inside, 8) ^ d);
        fold(ports ^ outside ^ e, u64::from(self.link) ^ inside ^ f) as u32
    }

    /// The key of the flow of a TCP frame with these ports.
    #[inline(always)]
    fn of(direction: Direction, head: &[u8], frame: &Ethernet<'_>, ip: &Ip<'_>, (from, to): (u16, u16)) -> Key {
        let (source, destination) = ends(ip);
        let (outside, inside, outside_port, inside_port) = match direction {
            Direction::In => (source, destination, from, to),
            Direction::Out => (destination, source, to, from),
        };
        let tags = if frame.header_len() == 14 { 0 } else { tags(head, frame) };
        let link = tags | u32::from(matches!(ip, Ip::V6(_))) << 31;
        let (outside, inside) = (outside.to_le_bytes(), inside.to_le_bytes());
        Key { outside, inside, outside_port, inside_port, link }
    }
}

/// The Ethernet addresses and tags of one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Link {
    /// Only the first `len` bytes are valid.
    bytes: [u8; LINK],
    len: u32,
}

impl Link {
    /// The bytes before the ethertype of a frame whose Ethernet header has `header` bytes.
    pub(super) fn new(head: &[u8], header: usize) -> Link {
        let len = (header - 2).min(LINK);
        let mut link = Link { bytes: [0; LINK], len: len as u32 };
        link.bytes[..len].copy_from_slice(&head[..len]);
        link
    }

    /// Addresses and tags, without the ethertype.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.len as usize).min(LINK)]
    }
}

/// The offset of the length field in an untagged frame, and the bytes of the frame that it does not count.
const LENGTH_V4: (usize, usize) = (16, 14);
const LENGTH_V6: (usize, usize) = (18, 54);

/// The offset of the TCP header in an untagged frame without IP options.
const TRANSPORT_V4: u16 = 34;
const TRANSPORT_V6: u16 = 54;

/// Bytes of an IPv6 header without extensions.
const HEADER_V6: usize = 40;

/// Masks of the bytes that are equal in untagged frames of one flow, up to the TCP ports: all but length,
/// identification and checksum.
const SAME_V4: [[u8; 8]; 5] =
    [[!0; 8], [!0; 8], [0, 0, 0, 0, !0, !0, !0, !0], [0, 0, !0, !0, !0, !0, !0, !0], [!0, !0, !0, !0, !0, !0, 0, 0]];
const SAME_V6: [[u8; 8]; 8] =
    [[!0; 8], [!0; 8], [!0, !0, 0, 0, !0, !0, !0, !0], [!0; 8], [!0; 8], [!0; 8], [!0; 8], [!0, !0, 0, 0, 0, 0, 0, 0]];

/// A TCP segment in a frame. It is small, as a whole burst of them is kept.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub key: Key,
    pub seq: Seq,
    pub ack: Seq,
    /// Bytes of payload by the IP header; checked to be within the frame.
    pub payload: u32,
    /// Timestamp value and echo reply, valid if `has_stamps`.
    value: u32,
    echo: u32,
    has_stamps: bool,
    /// Unscaled.
    pub window: u16,
    pub flags: TcpFlags,
    /// Whether its options are well-formed, without any that early ACKs cannot carry.
    pub is_sound: bool,
    /// Whether it also stands for the plain data segments before it; then it is not a single frame.
    pub is_merged: bool,
    /// Offset of the IP header.
    network: u16,
    /// Offset of the TCP header.
    transport: u16,
    /// Offset of the payload.
    data: u16,
}

/// The fields that differ between consecutive segments of a flow.
pub(super) struct Numbers {
    seq: Seq,
    ack: Seq,
    payload: u32,
    value: u32,
    echo: u32,
    window: u16,
    flags: TcpFlags,
    data: u16,
}

impl Segment {
    /// Parses the `head` of a frame of `len` bytes. `None` if it is not a whole TCP segment, or if the head does not
    /// have all headers.
    ///
    /// The result stays in registers until it is written once, to its final place: reading bytes in another size than
    /// they were just written in stalls the processor (failed store forwarding) for longer than all of this takes.
    #[inline(always)]
    pub(super) fn read(direction: Direction, head: &[u8], len: usize) -> Option<Segment> {
        let frame = Ethernet::new_checked(head).ok()?;
        let ip = Ip::of(&frame).ok()??;
        let upper = ip.upper().ok()?;
        if upper.protocol != protocol::TCP || upper.fragment {
            return None;
        }
        if matches!(ip, Ip::V6(_)) && upper.offset != HEADER_V6 {
            // The extensions may include an authentication header, which an early ACK would lack (RFC 4302).
            return None;
        }
        let tcp = Tcp::new_checked(upper.payload).ok()?;
        let network = frame.header_len();
        let transport = network + upper.offset;
        let data = transport + tcp.header_len();
        let end = network + ip.total_len();
        if end > len || end < data {
            return None;
        }
        let (value, echo, has_stamps, is_sound) = match tcp.timestamps_alone() {
            Some((value, echo)) => (value, echo, true, true),
            None => unusual(&tcp),
        };
        Some(Segment {
            key: Key::of(direction, head, &frame, &ip, (tcp.source_port(), tcp.destination_port())),
            seq: Seq(tcp.sequence()),
            ack: Seq(tcp.acknowledgment()),
            payload: (end - data) as u32,
            value,
            echo,
            has_stamps,
            window: tcp.window(),
            flags: tcp.flags(),
            is_sound,
            is_merged: false,
            network: network as u16,
            transport: transport as u16,
            data: data as u16,
        })
    }

    /// The key of the flow of a guest's fragment, if it is the first fragment, which has the ports.
    #[cold]
    pub(super) fn fragment(head: &[u8]) -> Option<Key> {
        let frame = Ethernet::new_checked(head).ok()?;
        let ip = Ip::of(&frame).ok()??;
        let upper = ip.upper().ok()?;
        // The field with the fragment offset: RFC 791, 3.1, and RFC 8200, 4.5.
        let (offset, bits) = match ip {
            Ip::V4(_) => (6, 0x1fff),
            Ip::V6(_) => (upper.offset.checked_sub(6)?, 0xfff8),
        };
        let is_first = get16(frame.payload().get(offset..offset + 2)?, 0) & bits == 0;
        if !upper.fragment || !is_first || upper.protocol != protocol::TCP || upper.payload.len() < 4 {
            return None;
        }
        let ports = (get16(upper.payload, 0), get16(upper.payload, 2));
        Some(Key::of(Direction::Out, head, &frame, &ip, ports))
    }

    /// The numbers of the frame after this one, whose head was `before`, if it has the same flow and header layout.
    /// `None` means nothing: use [`Segment::read`].
    #[inline(always)]
    pub(super) fn read_next(&self, before: &[u8], head: &[u8], len: usize) -> Option<Numbers> {
        let (is_same, (length, before_length)) = match self.transport {
            TRANSPORT_V4 => (is_same(before, head, &SAME_V4), LENGTH_V4),
            TRANSPORT_V6 => (is_same(before, head, &SAME_V6), LENGTH_V6),
            _ => return None,
        };
        if !is_same || self.network != 14 {
            return None;
        }
        let tcp = Tcp::new_checked(&head[self.transport.into()..]).ok()?;
        let (value, echo) = tcp.timestamps_alone()?;
        let data = usize::from(self.transport) + tcp.header_len();
        let end = before_length + usize::from(get16(head, length));
        if end > len || end < data {
            return None;
        }
        Some(Numbers {
            seq: Seq(tcp.sequence()),
            ack: Seq(tcp.acknowledgment()),
            payload: (end - data) as u32,
            value,
            echo,
            window: tcp.window(),
            flags: tcp.flags(),
            data: data as u16,
        })
    }

    /// Replaces the numbers by those of the next segment, alone or merged with this one.
    #[inline(always)]
    pub(super) fn set_numbers(&mut self, next: Numbers, is_merged: bool) {
        let Numbers { seq, ack, payload, value, echo, window, flags, data } = next;
        (self.seq, self.ack, self.payload) = (seq, ack, payload);
        (self.value, self.echo, self.has_stamps, self.is_sound) = (value, echo, true, true);
        (self.window, self.flags, self.data, self.is_merged) = (window, flags, data, is_merged);
    }

    /// Whether the next segment is in order and has all the information of this one except its data.
    #[inline(always)]
    pub(super) fn is_covered_by(&self, next: &Numbers) -> bool {
        let is_plain = |flags: TcpFlags| flags.without(TcpFlags::PSH) == TcpFlags::ACK;
        is_plain(self.flags)
            && is_plain(next.flags)
            && (self.has_stamps, self.is_sound) == (true, true)
            && next.seq == self.end()
            && next.ack == self.ack
            && next.value.wrapping_sub(self.value) as i32 >= 0
    }

    /// The sequence number after its payload, SYN and FIN.
    #[inline]
    pub(super) fn end(&self) -> Seq {
        let controls = u32::from(self.flags.contains(TcpFlags::SYN)) + u32::from(self.flags.contains(TcpFlags::FIN));
        self.seq.plus(self.payload).plus(controls)
    }

    /// Timestamp value and echo reply.
    #[inline]
    pub(super) fn timestamps(&self) -> Option<(u32, u32)> {
        self.has_stamps.then_some((self.value, self.echo))
    }

    /// The options, parsed again from the `head` of its frame; needed only in a handshake. `None` if malformed.
    pub(super) fn options(&self, head: &[u8]) -> Option<TcpOptions> {
        Tcp::new_checked(&head[self.header()]).and_then(|header| header.options()).ok()
    }

    /// The position of the TCP header in its frame.
    #[inline]
    pub(super) fn header(&self) -> Range<usize> {
        self.transport.into()..self.data.into()
    }

    /// The position of the payload in its frame.
    #[inline]
    pub(super) fn body(&self) -> Range<usize> {
        let data = usize::from(self.data);
        data..data + self.payload as usize
    }

    /// Whether it is marked as having met congestion (CE: RFC 3168, 5).
    pub(super) fn is_marked(&self, head: &[u8]) -> bool {
        let ip = usize::from(self.network);
        let class = if self.key.is_v6() { head[ip + 1] >> 4 } else { head[ip + 1] };
        class & 3 == 3
    }

    /// Whether a SYN negotiates what early ACKs cannot carry: such options, or accurate ECN by its flag (RFC 9768,
    /// 3.1).
    pub(super) fn needs_end_to_end(&self, head: &[u8]) -> bool {
        let accurate = head[usize::from(self.transport) + 12] & 1 != 0;
        accurate || self.options(head).is_some_and(|options| options.needs_end_to_end)
    }

    /// Whether it has only data and an ACK. Anything else is rare, and trusted only if verified.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let congestion = TcpFlags::ECE.with(TcpFlags::CWR);
        self.is_sound && self.flags.without(congestion.with(TcpFlags::PSH)) == TcpFlags::ACK
    }

    /// The Ethernet addresses and tags of its frame.
    #[inline]
    pub(super) fn link(&self, head: &[u8]) -> Link {
        Link::new(head, self.network.into())
    }

    /// Stores them in `noted` if they changed, which is rare: a process that ends during the store leaves a mix of
    /// both.
    #[inline]
    pub(super) fn note_link(&self, head: &[u8], noted: &mut Link) {
        let link = self.link(head);
        if *noted != link {
            *noted = link;
        }
    }
}

/// A quick check for a segment with only data and an ACK: untagged, without IP options, no fragment, and of the TCP
/// flags only ACK and perhaps PSH. False means nothing.
#[inline(always)]
pub(super) fn is_plain_data(head: &[u8]) -> bool {
    let is_plain = |flags: u8| TcpFlags(flags).without(TcpFlags::PSH) == TcpFlags::ACK;
    match head {
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x08, 0x00, 0x45, ip @ ..] if ip.len() > 32 => {
            ip[5] & 0x3f == 0 && ip[6] == 0 && ip[8] == protocol::TCP && is_plain(ip[32])
        }
        [_, _, _, _, _, _, _, _, _, _, _, _, 0x86, 0xdd, ip @ ..] if ip.len() > 53 => {
            ip[6] == protocol::TCP && is_plain(ip[53])
        }
        _ => false,
    }
}

/// Whether two heads are equal under the mask `same`.
#[inline(always)]
fn is_same<const WORDS: usize>(one: &[u8], other: &[u8], same: &[[u8; 8]; WORDS]) -> bool {
    let (one, other) = (one.as_chunks::<8>().0, other.as_chunks::<8>().0);
    let (Some(one), Some(other)) = (one.first_chunk::<WORDS>(), other.first_chunk::<WORDS>()) else { return false };
    let word = |bytes: [u8; 8]| u64::from_ne_bytes(bytes);
    let differs = |at: usize| (word(one[at]) ^ word(other[at])) & word(same[at]);
    (0..WORDS).map(differs).fold(0, |all, one| all | one) == 0
}

/// The tags of a frame in the form of [`Key::link`].
#[cold]
fn tags(head: &[u8], frame: &Ethernet<'_>) -> u32 {
    let count = (frame.header_len() - 14) / 4;
    let inner = if count > 1 { u32::from(head[18] & 0xf) << 8 | u32::from(head[19]) } else { 0 };
    (count as u32) << 24 | u32::from(frame.vlan()) << 12 | inner
}

/// Timestamp value and echo reply among other options, whether there are any, and whether the options are sound.
#[inline(never)]
fn unusual(tcp: &Tcp<'_>) -> (u32, u32, bool, bool) {
    let options = tcp.options();
    let stamps = options.ok().and_then(|options| options.timestamps);
    let (value, echo) = stamps.unwrap_or_default();
    (value, echo, stamps.is_some(), options.is_ok_and(|options| !options.needs_end_to_end))
}

/// Source and destination addresses in the form of [`Key`], as little-endian numbers.
#[inline(always)]
fn ends(ip: &Ip<'_>) -> (u128, u128) {
    match ip {
        Ip::V4(ip) => {
            let (source, destination) = ip.addresses().split_at(4);
            (mapped(source), mapped(destination))
        }
        Ip::V6(ip) => {
            let (source, destination) = ip.addresses().split_at(16);
            (u128::from_le_bytes(array(source, 0)), u128::from_le_bytes(array(destination, 0)))
        }
    }
}

/// An IPv4 address mapped to IPv6.
#[inline(always)]
fn mapped(address: &[u8]) -> u128 {
    0xffff << 80 | u128::from(u32::from_le_bytes(array(address, 0))) << 96
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// A sender can choose half of its address: no choice may cancel the rest of the key in the hash.
    #[test]
    fn no_interface_identifier_makes_prefixes_collide() {
        // Constants of known hashes with public factors.
        let constants = [0u64, !0, 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3];
        for (chosen, inside) in constants.into_iter().flat_map(|chosen| [(chosen, false), (chosen, true)]) {
            let hashes: HashSet<u32> = (0..1000u64)
                .map(|prefix| {
                    let mut key = Key { link: 1 << 31, ..Key::default() };
                    let end = if inside { &mut key.inside } else { &mut key.outside };
                    end[..8].copy_from_slice(&prefix.to_le_bytes());
                    end[8..].copy_from_slice(&chosen.to_le_bytes());
                    key.hash(&Secrets::new(7))
                })
                .collect();
            assert!(hashes.len() > 990, "{chosen:x}, inside: {inside}: {} hashes of 1000", hashes.len());
        }
    }
}
