//! Offloads: the work on a frame that its sender left to the receiver or a card. A common form of `virtio_net_hdr` and
//! netif's extra info.

use super::segment::Headers;
use super::{Error, Ethernet, Ip, icmp, protocol, tcp, udp};

/// The state of a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Complete, not yet verified.
    #[default]
    Present,
    /// Complete and known to be right (VIRTIO_NET_HDR_F_DATA_VALID).
    Valid,
    /// To be completed: sum from `start` to the end, store at `start + offset` (VIRTIO_NET_HDR_F_NEEDS_CSUM). The field
    /// already has the pseudo-header's sum. The field was checked to be within the frame.
    Partial {
        /// The first byte to sum, counted from the Ethernet header.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

/// The protocol of a large frame to segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
}

/// The segmentation of a frame that is larger than the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// The protocol.
    pub kind: GsoKind,
    /// Whether only the first segment keeps the CWR flag (VIRTIO_NET_HDR_GSO_ECN).
    pub ecn: bool,
    /// Payload bytes per segment, never 0.
    pub size: u16,
    /// Bytes of the Ethernet, IP and TCP headers together. 0 from a guest means "not given".
    pub header: u16,
}

/// All offloads of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum.
    pub checksum: Checksum,
    /// The segmentation, if any.
    pub gso: Option<Gso>,
}

impl Offload {
    /// Checks the offloads that a sender requests for its frame of `len` bytes against the `head` that decisions see.
    ///
    /// The rules are those of virtio 1.2, section 5.1.6.2, and two more. A partial checksum must be stored after the IP
    /// headers, and for TCP, UDP and ICMPv6 in the protocol's checksum field, so that completing it cannot change what
    /// the switch has checked. And a frame that is already one segment is not segmented, as in Linux.
    ///
    /// # Errors
    /// The violated rule.
    #[inline]
    pub fn new_checked(checksum: Checksum, gso: Option<Gso>, len: usize, head: &[u8]) -> Result<Offload, Error> {
        if let Checksum::Partial { start, offset } = checksum {
            check_partial(start.into(), offset.into(), len, head)?;
        }
        let gso = match gso {
            Some(gso) => check_gso(gso, checksum, len, head)?,
            None => None,
        };
        Ok(Offload { checksum, gso })
    }

    /// Number of frames on a wire that a frame of `len` bytes becomes.
    #[inline]
    pub fn segments(&self, len: u64) -> u64 {
        match self.gso {
            Some(gso) => len.saturating_sub(gso.header.into()).div_ceil(gso.size.max(1).into()).max(1),
            None => 1,
        }
    }
}

fn check_partial(start: usize, offset: usize, len: usize, head: &[u8]) -> Result<(), Error> {
    let field = start + offset;
    if field + 2 > len {
        return Err(Error::Value { field: "csum_start + csum_offset", value: field as u32, right: "within the frame" });
    }
    if field >= head.len() {
        // Beyond all bytes that decisions use.
        return Ok(());
    }
    let frame = Ethernet::new_checked(head)?;
    let Some(ip) = Ip::of(&frame)? else {
        let value = frame.ethertype().into();
        return Err(Error::Value { field: "ethertype of a frame with NEEDS_CSUM", value, right: "IPv4 or IPv6" });
    };
    let upper = ip.upper()?;
    let transport = frame.header_len() + upper.offset;
    if start < transport {
        return Err(Error::Value { field: "csum_start", value: start as u32, right: "after the IP headers" });
    }
    let own = match upper.protocol {
        protocol::TCP => tcp::CHECKSUM,
        protocol::UDP => udp::CHECKSUM,
        protocol::ICMPV6 => icmp::CHECKSUM,
        _ => return Ok(()),
    };
    // For a UDP tunnel the checksum of the inner packet is completed, which is further on.
    let inner = start > transport && upper.protocol == protocol::UDP;
    if inner || (start, offset) == (transport, own) {
        Ok(())
    } else {
        Err(Error::Value {
            field: "csum_start + csum_offset",
            value: field as u32,
            right: "the protocol's checksum field",
        })
    }
}

fn check_gso(gso: Gso, checksum: Checksum, len: usize, head: &[u8]) -> Result<Option<Gso>, Error> {
    if gso.size == 0 {
        return Err(Error::Value { field: "gso_size", value: 0, right: "1 or more (virtio 1.2, 5.1.6.2)" });
    }
    let headers = Headers::new_checked(head, gso, len)?;
    if !matches!(checksum, Checksum::Partial { start, .. } if usize::from(start) == headers.transport) {
        let right = "NEEDS_CSUM at the TCP header (virtio 1.2, 5.1.6.2)";
        return Err(Error::Value { field: "flags of a GSO frame", value: 0, right });
    }
    if gso.header != 0 && usize::from(gso.header) < headers.payload {
        let right = "the Ethernet, IP and TCP headers' length or more (virtio 1.2, 5.1.6.2)";
        return Err(Error::Value { field: "hdr_len", value: gso.header.into(), right });
    }
    let large = len - headers.payload > usize::from(gso.size);
    Ok(large.then_some(Gso { header: headers.payload as u16, ..gso }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{TcpFlags, ethertype, put16, testing};
    use proptest::prelude::*;

    const PARTIAL: Checksum = Checksum::Partial { start: 34, offset: 16 };
    const GSO: Gso = Gso { kind: GsoKind::Tcp4, ecn: false, size: 1000, header: 54 };

    fn large() -> Vec<u8> {
        testing::tcp_frame(false, &[], &testing::tcp(TcpFlags::ACK, 1, &[], &[0; 5000]))
    }

    fn check(checksum: Checksum, gso: Option<Gso>) -> Result<Offload, Error> {
        Offload::new_checked(checksum, gso, large().len(), &large()[..128])
    }

    #[test]
    fn valid_offloads_are_accepted() {
        assert_eq!(check(PARTIAL, Some(GSO)), Ok(Offload { checksum: PARTIAL, gso: Some(GSO) }));
        for header in [0, 128, u16::MAX] {
            assert_eq!(check(PARTIAL, Some(Gso { header, ..GSO })).unwrap().gso, Some(GSO), "hdr_len {header}");
        }
        assert_eq!(check(PARTIAL, Some(Gso { size: 5000, ..GSO })).unwrap().gso, None, "one segment needs no cutting");
        assert_eq!(Offload::new_checked(Checksum::Valid, None, 3, &[0; 3]).unwrap().checksum, Checksum::Valid);
    }

    #[test]
    fn a_large_frame_counts_as_its_segments() {
        let offload = check(PARTIAL, Some(GSO)).unwrap();
        assert_eq!([5_054, 5_055, 54, 0].map(|len| offload.segments(len)), [5, 6, 1, 1]);
        assert_eq!(Offload::default().segments(9_000), 1);
    }

    #[test]
    fn invalid_offloads_are_refused_with_the_rule() {
        let refused = |checksum, gso, rule: &str| {
            let error = check(checksum, gso).unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        };
        refused(PARTIAL, Some(Gso { size: 0, ..GSO }), "gso_size is 0");
        refused(PARTIAL, Some(Gso { header: 53, ..GSO }), "hdr_len is 53");
        refused(PARTIAL, Some(Gso { kind: GsoKind::Tcp6, ..GSO }), "gso_type");
        refused(Checksum::Present, Some(GSO), "NEEDS_CSUM");
        refused(Checksum::Partial { start: 5050, offset: 3 }, None, "within the frame");
        refused(Checksum::Partial { start: u16::MAX, offset: u16::MAX }, None, "within the frame");
        refused(Checksum::Partial { start: 14, offset: 12 }, None, "after the IP headers");
        refused(Checksum::Partial { start: 34, offset: 4 }, None, "the protocol's checksum field");
        refused(Checksum::Partial { start: 40, offset: 16 }, None, "the protocol's checksum field");
    }

    #[test]
    fn only_ip_has_a_partial_checksum() {
        let mut arp = large();
        put16(&mut arp, 12, ethertype::ARP);
        let error = Offload::new_checked(PARTIAL, None, arp.len(), &arp).unwrap_err().to_string();
        assert!(error.contains("IPv4 or IPv6"), "{error}");
    }

    #[test]
    fn a_udp_tunnel_may_complete_the_inner_checksum() {
        let mut frame = large();
        frame[23] = protocol::UDP;
        let inner = Checksum::Partial { start: 92, offset: 16 };
        assert!(Offload::new_checked(inner, None, frame.len(), &frame[..128]).is_ok());
    }

    proptest! {
        #[test]
        fn no_request_panics(
            head in proptest::collection::vec(any::<u8>(), 0..128),
            (start, offset, size, header) in any::<(u16, u16, u16, u16)>(),
            (v6, ip) in any::<(bool, bool)>(),
            len in 0usize..70_000,
        ) {
            let mut head = head;
            if ip && head.len() > 23 {
                put16(&mut head, 12, if v6 { ethertype::IPV6 } else { ethertype::IPV4 });
                head[14] = if v6 { 0x60 } else { 0x45 };
                head[if v6 { 20 } else { 23 }] = protocol::TCP;
            }
            let kind = if v6 { GsoKind::Tcp6 } else { GsoKind::Tcp4 };
            let len = len.max(head.len());
            let gso = Some(Gso { kind, ecn: false, size, header });
            let _ = Offload::new_checked(Checksum::Partial { start, offset }, gso, len, &head);
            let transport = if v6 { 54 } else { 34 };
            let _ = Offload::new_checked(Checksum::Partial { start: transport, offset: 16 }, gso, len, &head);
        }
    }
}
