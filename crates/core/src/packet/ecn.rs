//! Explicit congestion notification (RFC 3168): a mark in the IP header in the place of a loss.

use super::{Ethernet, Ip, checksum, get16, ipv4, put16};

/// The ECN field within the first 16 bits of an IPv4 header: the last two of what was the type of service (RFC 3168, 5).
/// All ones is "congestion experienced", all zeros "not capable".
const V4: u16 = 0x0003;
/// The same of an IPv6 header, whose traffic class begins behind the version (RFC 8200, 3 and 7).
const V6: u16 = 0x0030;

/// Sets "congestion experienced" in the IP header of a frame, behind up to two VLAN tags. False if it cannot be marked.
///
/// That is so where its ends do not know such marks, it is not IP, or its IP header is not all in `head`: nothing is changed
/// then, and to drop it is the only way to tell its sender. A frame that is marked already stays as it is. IPv4's header
/// checksum is updated and not summed anew (RFC 1624), so that a header that was damaged before is found damaged by its
/// receiver. No checksum behind it covers the field.
pub fn mark(head: &mut [u8]) -> bool {
    let Ok(frame) = Ethernet::new_checked(head) else { return false };
    let network = frame.header_len();
    let (field, summed) = match Ip::of(&frame) {
        Ok(Some(Ip::V4(_))) => (V4, true),
        Ok(Some(Ip::V6(_))) => (V6, false),
        _ => return false,
    };
    let header = &mut head[network..];
    let old = get16(header, 0);
    let new = old | field;
    if old & field == 0 {
        return false;
    }
    if new != old {
        put16(header, 0, new);
        if summed {
            let checksum = checksum::update(get16(header, ipv4::CHECKSUM), old, new);
            put16(header, ipv4::CHECKSUM, checksum);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Mac, ethertype, testing};
    use checksum::Sum;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// What the two bits say (RFC 3168, 5).
    const NOT_ECT: u8 = 0b00;
    const CE: u8 = 0b11;

    /// The ones' complement sum of two words.
    fn plus(a: u16, b: u16) -> u16 {
        let (sum, carry) = a.overflowing_add(b);
        sum + u16::from(carry)
    }

    /// An IPv4 packet with `options` in whole words; its checksum is `wrong` more than the right one.
    fn v4(class: u8, protocol: u8, options: &[u8], wrong: u16, payload: &[u8]) -> Vec<u8> {
        let behind = [options, payload].concat();
        let mut packet = testing::ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 9, 8, 7), protocol, &behind);
        packet[0] += (options.len() / 4) as u8;
        packet[1] = class;
        put16(&mut packet, ipv4::CHECKSUM, 0);
        let sum = Sum::default().with(&packet[..20 + options.len()]).checksum();
        put16(&mut packet, ipv4::CHECKSUM, plus(sum, wrong));
        packet
    }

    /// An IPv6 packet with a flow label.
    fn v6(class: u8, protocol: u8, flow: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = testing::ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::from(0xfd00 << 112), protocol, payload);
        packet[0] |= class >> 4;
        packet[1] = class << 4 | flow & 0xf;
        packet[2] = flow;
        packet
    }

    fn framed(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
        testing::ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), tags, ethertype, packet)
    }

    /// At every length a head is marked if its IP header is all there, and else left alone.
    fn check(frame: &[u8], header: usize, expected: &[u8], capable: bool) -> Result<(), TestCaseError> {
        for len in 0..=frame.len() {
            let mut head = frame[..len].to_vec();
            let whole = len >= header;
            prop_assert_eq!(mark(&mut head), whole && capable, "{} of {} bytes", len, frame.len());
            prop_assert_eq!(head, &(if whole { expected } else { frame })[..len], "{} of {} bytes", len, frame.len());
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn as_summed_anew(
            (class, protocol, flow) in any::<(u8, u8, u8)>(),
            wrong in prop_oneof![Just(0), any::<u16>()],
            tags in prop::collection::vec(0u16..4096, 0..3),
            options in prop::collection::vec(any::<[u8; 4]>(), 0..11),
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let capable = class & CE != NOT_ECT;
            let marked = if capable { class | CE } else { class };
            let ethernet = 14 + 4 * tags.len();

            let of = |class| framed(&tags, ethertype::IPV6, &v6(class, protocol, flow, &payload));
            let [frame, expected] = [class, marked].map(of);
            check(&frame, ethernet + 40, &expected, capable)?;

            let options = options.concat();
            let of = |class| framed(&tags, ethertype::IPV4, &v4(class, protocol, &options, wrong, &payload));
            let [frame, mut expected] = [class, marked].map(of);
            // A checksum has two zeros: which of them a wrong one comes to is not said.
            let mut head = frame.clone();
            mark(&mut head);
            let field = ethernet + ipv4::CHECKSUM;
            if wrong != 0 && get16(&head, field) % 0xffff == get16(&expected, field) % 0xffff {
                expected[field..field + 2].copy_from_slice(&head[field..field + 2]);
            }
            check(&frame, ethernet + 20 + options.len(), &expected, capable)?;
        }

        #[test]
        fn any_bytes_are_answered(mut head in prop::collection::vec(any::<u8>(), 0..128), kind in 0usize..4) {
            if head.len() > 14 {
                let ethertype = [ethertype::IPV4, ethertype::IPV6, ethertype::VLAN, ethertype::ARP][kind];
                put16(&mut head, 12, ethertype);
                head[14] = [0x45, 0x60, 0, 0][kind];
            }
            let before = head.clone();
            let marked = mark(&mut head);
            let once = head.clone();
            prop_assert!(marked || once == before, "who is not marked is not touched");
            prop_assert_eq!(mark(&mut head), marked);
            prop_assert_eq!(head, once, "a mark is set once");
        }
    }

    #[test]
    fn what_is_not_ip_is_left_alone() {
        // Each of them would be marked in the place of the other as well.
        let packet = v4(0b10_0010, 6, &[], 0, &[0; 20]);
        let other = v6(0b10, 6, 0xff, &[0; 20]);
        for frame in [
            framed(&[], ethertype::ARP, &packet),
            framed(&[], 0x0026, &packet),
            framed(&[], ethertype::IPV4, &other),
            framed(&[], ethertype::IPV6, &packet),
            framed(&[1, 2, 3], ethertype::IPV4, &packet),
        ] {
            let mut head = frame.clone();
            assert!(!mark(&mut head));
            assert_eq!(head, frame);
        }
        assert!(mark(&mut framed(&[1, 2], ethertype::IPV4, &packet)));
        assert!(mark(&mut framed(&[1, 2], ethertype::IPV6, &other)));
    }

    #[test]
    fn a_marked_header_keeps_every_byte() {
        // No right header's checksum is 0xffff, so a sum would make it 0.
        let mut packet = v4(CE, 17, &[], 0, &[]);
        put16(&mut packet, ipv4::CHECKSUM, 0xffff);
        let frame = framed(&[], ethertype::IPV4, &packet);
        let mut head = frame.clone();
        assert!(mark(&mut head));
        assert_eq!(head, frame);
    }
}
