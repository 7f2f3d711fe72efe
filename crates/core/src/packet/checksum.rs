//! The Internet checksum (RFC 1071): compute, complete, update, verify.

use super::{Error, Ethernet, Ip, get16, icmp, need, protocol, put16, tcp, udp};

/// A running ones' complement sum of up to 4 GiB.
///
/// It adds 32 bits at a time in native byte order, which RFC 1071, section 2 (B) and (C) allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. Their number must be even, except in the last call.
    #[inline]
    pub fn with(self, bytes: &[u8]) -> Sum {
        let (words, tail) = bytes.as_chunks::<4>();
        let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..tail.len()].copy_from_slice(tail);
        Sum(self.0 + sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// The sum folded to 16 bits, as in the field of a partial checksum.
    #[inline]
    pub fn folded(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(((sum >> 16) + (sum & 0xffff)) as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// The pseudo-header's sum: addresses, protocol, and the length of its header and payload (RFC 9293, 3.1; RFC 8200,
/// 8.1).
pub(super) fn pseudo_header(addresses: &[u8], protocol: u8, len: usize) -> Sum {
    Sum::default().with(addresses).with(&(len as u32).to_be_bytes()).with(&[0, protocol])
}

/// The checksum after a 16-bit word that it covers has changed (RFC 1624, equation 3).
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum >> 16) + (sum & 0xffff);
    !(((sum >> 16) + sum) as u16)
}

/// Completes a partial checksum: sums from `start` to the end and stores the checksum at `start + offset`.
///
/// A checksum of 0 is stored as the equivalent 0xffff, as 0 means "no checksum" in UDP (RFC 768).
///
/// # Errors
/// The field is not within the frame.
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> Result<(), Error> {
    let field = usize::from(start) + usize::from(offset);
    need("partial checksum", frame, field + 2)?;
    let checksum = Sum::default().with(&frame[start.into()..]).checksum();
    put16(frame, field, if checksum == 0 { 0xffff } else { checksum });
    Ok(())
}

/// Verifies the checksums in a whole frame: IPv4 header, TCP, UDP, ICMP. True if there is none.
///
/// # Errors
/// A header is truncated or invalid, or the IP packet is longer than the frame.
pub fn verify(frame: &[u8]) -> Result<bool, Error> {
    let frame = Ethernet::new_checked(frame)?;
    let Some(ip) = Ip::of(&frame)? else { return Ok(true) };
    need("IP packet", frame.payload(), ip.total_len())?;
    if let Ip::V4(v4) = ip
        && Sum::default().with(v4.header()).checksum() != 0
    {
        return Ok(false);
    }
    let upper = ip.upper()?;
    if upper.fragment {
        return Ok(true);
    }
    let segment = upper.payload;
    let is_v4 = matches!(ip, Ip::V4(_));
    let (pseudo, field) = match upper.protocol {
        protocol::TCP => (ip.pseudo_header(upper.protocol, segment.len()), tcp::CHECKSUM),
        protocol::UDP => (ip.pseudo_header(upper.protocol, segment.len()), udp::CHECKSUM),
        protocol::ICMPV6 => (ip.pseudo_header(upper.protocol, segment.len()), icmp::CHECKSUM),
        protocol::ICMP if is_v4 => (Sum::default(), icmp::CHECKSUM),
        _ => return Ok(true),
    };
    need("transport header", segment, field + 2)?;
    if upper.protocol == protocol::UDP && get16(segment, field) == 0 {
        return Ok(is_v4); // Over IPv6 the checksum is mandatory (RFC 8200, 8.1).
    }
    Ok(pseudo.with(segment).checksum() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Mac, TcpFlags, ethertype, testing};
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// The algorithm of RFC 1071, section 4.1.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    proptest! {
        #[test]
        fn sums_match_the_reference(bytes: Vec<u8>, cut: proptest::sample::Index) {
            prop_assert_eq!(Sum::default().with(&bytes).checksum(), reference(&bytes));
            let (a, b) = bytes.split_at(cut.index(bytes.len() / 2 + 1) * 2);
            prop_assert_eq!(Sum::default().with(a).with(b).checksum(), reference(&bytes));
        }

        #[test]
        fn an_update_matches_a_new_sum(mut bytes in proptest::collection::vec(any::<u8>(), 4..64), at: proptest::sample::Index, new: u16) {
            bytes.push(1); // RFC 1624 requires that not all bytes are zero.
            let at = at.index((bytes.len() - 1) / 2) * 2;
            let before = Sum::default().with(&bytes).checksum();
            let old = get16(&bytes, at);
            put16(&mut bytes, at, new);
            prop_assert_eq!(update(before, old, new), Sum::default().with(&bytes).checksum());
        }

        #[test]
        fn completed_frames_verify(v6: bool, payload: Vec<u8>, flip: proptest::sample::Index) {
            let mut frame = testing::tcp_frame(v6, &[5], &testing::tcp(TcpFlags::ACK, 1, &[], &payload));
            let transport = if v6 { 58 } else { 38 };
            let view = Ethernet::new_checked(&frame).unwrap();
            let pseudo = Ip::of(&view).unwrap().unwrap().pseudo_header(protocol::TCP, frame.len() - transport).folded();
            put16(&mut frame, transport + 16, pseudo);
            complete(&mut frame, transport as u16, 16).unwrap();
            prop_assert_eq!(verify(&frame), Ok(true));
            frame.extend([9; 3]);
            prop_assert_eq!(verify(&frame), Ok(true), "padding is not summed");
            let flip = transport + flip.index(frame.len() - 3 - transport);
            if flip != transport + 12 {
                frame[flip] ^= 4;
                prop_assert_eq!(verify(&frame), Ok(false));
            }
        }

        #[test]
        fn no_bytes_panic(mut bytes: Vec<u8>, start: u16, offset: u16, kind in 0..3) {
            if bytes.len() > 14 {
                let ethertype = [ethertype::IPV4, ethertype::IPV6, ethertype::VLAN][kind as usize];
                put16(&mut bytes, 12, ethertype);
                bytes[14] = if kind == 0 { 0x45 } else { 0x60 };
            }
            let _ = verify(&bytes);
            let _ = complete(&mut bytes, start, offset);
        }
    }

    #[test]
    fn udp_without_a_checksum_is_valid_only_over_ipv4() {
        let datagram = testing::udp(1, 2, b"x");
        let ip = testing::ipv4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, protocol::UDP, &datagram);
        assert_eq!(verify(&testing::ethernet(Mac::BROADCAST, Mac::default(), &[], ethertype::IPV4, &ip)), Ok(true));
        let ip = testing::ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, protocol::UDP, &datagram);
        assert_eq!(verify(&testing::ethernet(Mac::BROADCAST, Mac::default(), &[], ethertype::IPV6, &ip)), Ok(false));
    }

    #[test]
    fn icmp_is_verified() {
        let mut echo = vec![8, 0, 0, 0, 1, 2, 3, 4];
        complete(&mut echo, 0, 2).unwrap();
        let mut ip = testing::ipv4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, protocol::ICMP, &echo);
        let frame = |ip: &[u8]| testing::ethernet(Mac::BROADCAST, Mac::default(), &[], ethertype::IPV4, ip);
        assert_eq!(verify(&frame(&ip)), Ok(true));
        ip[27] ^= 1;
        assert_eq!(verify(&frame(&ip)), Ok(false));
        ip[27] ^= 1;
        ip[8] ^= 1;
        assert_eq!(verify(&frame(&ip)), Ok(false), "the IPv4 header is wrong");
    }

    #[test]
    fn zero_is_stored_as_0xffff() {
        let mut frame = [0xff, 0xff, 0, 0];
        complete(&mut frame, 0, 2).unwrap();
        assert_eq!(frame, [0xff; 4]);
        assert!(complete(&mut frame, 1, 2).is_err());
        assert!(complete(&mut frame, u16::MAX, u16::MAX).is_err());
    }
}
