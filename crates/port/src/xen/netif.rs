//! Requests and responses in the rings (xen/include/public/io/netif.h), and the translation of their flags to and from
//! an [`Offload`]. All numbers are little-endian.

use fairlane_core::packet::{Checksum, Ethernet, Gso, GsoKind, Ip, Offload, protocol};

/// The most slots of a packet. Every backend accepts 18 (XEN_NETIF_NR_SLOTS_MIN); for more than 20 Linux netback
/// disables a vif.
pub(super) const MAX_SLOTS: usize = 20;

/// NETTXF_csum_blank
const TX_BLANK: u16 = 1;
/// NETTXF_data_validated
const TX_VALIDATED: u16 = 2;
/// NETTXF_more_data
pub(super) const TX_MORE: u16 = 4;
/// NETTXF_extra_info
pub(super) const TX_EXTRA: u16 = 8;

// The same with the first two swapped.
const RX_VALIDATED: u16 = 1;
const RX_BLANK: u16 = 2;
/// NETRXF_more_data
pub(super) const RX_MORE: u16 = 4;
/// NETRXF_extra_info
pub(super) const RX_EXTRA: u16 = 8;

/// XEN_NETIF_EXTRA_TYPE_GSO
pub(super) const EXTRA_GSO: u8 = 1;
/// XEN_NETIF_EXTRA_TYPE_XDP, the last.
pub(super) const EXTRA_LAST: u8 = 5;
/// XEN_NETIF_EXTRA_FLAG_MORE
pub(super) const EXTRA_MORE: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 2;

/// NETIF_RSP_OKAY
pub(super) const OKAY: i16 = 0;
/// NETIF_RSP_ERROR
pub(super) const ERROR: i16 = -1;
/// NETIF_RSP_NULL: the slot held extra info.
pub(super) const NULL: i16 = 1;

/// `netif_tx_request`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TxRequest {
    /// Grant reference of the page.
    pub reference: u32,
    /// Offset in the page.
    pub offset: u16,
    /// NETTXF_*.
    pub flags: u16,
    /// Echoed in the response.
    pub id: u16,
    /// Bytes: of the whole packet in its first slot, of the slot in others.
    pub size: u16,
}

impl TxRequest {
    /// Decodes a request.
    #[inline]
    pub(super) fn parse(bytes: [u8; 12]) -> TxRequest {
        let [r0, r1, r2, r3, o0, o1, f0, f1, i0, i1, s0, s1] = bytes;
        let half = |low, high| u16::from_le_bytes([low, high]);
        TxRequest {
            reference: u32::from_le_bytes([r0, r1, r2, r3]),
            offset: half(o0, o1),
            flags: half(f0, f1),
            id: half(i0, i1),
            size: half(s0, s1),
        }
    }
}

/// `netif_tx_response`
#[inline]
pub(super) fn tx_response(id: u16, status: i16) -> [u8; 4] {
    let ([i0, i1], [s0, s1]) = (id.to_le_bytes(), status.to_le_bytes());
    [i0, i1, s0, s1]
}

/// `netif_rx_request`: the id and the grant reference.
#[inline]
pub(super) fn rx_request(bytes: [u8; 8]) -> (u16, u32) {
    let [i0, i1, _, _, r0, r1, r2, r3] = bytes;
    (u16::from_le_bytes([i0, i1]), u32::from_le_bytes([r0, r1, r2, r3]))
}

/// `netif_rx_response`: `len` bytes from the page's start.
#[inline]
pub(super) fn rx_response(id: u16, flags: u16, len: u16) -> [u8; 8] {
    let ([i0, i1], [f0, f1], [l0, l1]) = (id.to_le_bytes(), flags.to_le_bytes(), len.to_le_bytes());
    [i0, i1, 0, 0, f0, f1, l0, l1]
}

/// `netif_extra_info` for a frame that the receiver may segment.
pub(super) fn rx_extra(gso: Gso) -> [u8; 8] {
    let [s0, s1] = gso.size.to_le_bytes();
    let kind = match gso.kind {
        GsoKind::Tcp4 => GSO_TCPV4,
        GsoKind::Tcp6 => GSO_TCPV6,
    };
    [EXTRA_GSO, 0, s0, s1, kind, 0, 0, 0]
}

/// Decodes a packet's GSO info: the size and the type, which is none if it is unknown.
pub(super) fn gso(extra: [u8; 12]) -> (u16, u8, Option<GsoKind>) {
    let (size, kind) = (u16::from_le_bytes([extra[2], extra[3]]), extra[4]);
    match kind {
        GSO_TCPV4 => (size, kind, Some(GsoKind::Tcp4)),
        GSO_TCPV6 => (size, kind, Some(GsoKind::Tcp6)),
        _ => (size, kind, None),
    }
}

/// The offload that a transmitted packet's flags and GSO info describe, for a frame of `len` bytes that begins with
/// `head`.
///
/// netif does not state where the checksum is: it is TCP's or UDP's, and holds the pseudo-header's sum. None if it
/// cannot be found.
#[inline]
pub(super) fn offload(flags: u16, gso: Option<(u16, GsoKind)>, len: u32, head: &[u8]) -> Option<Offload> {
    if flags & (TX_BLANK | TX_VALIDATED) == 0 && gso.is_none() {
        return Some(Offload::default());
    }
    let checksum = if flags & TX_BLANK != 0 {
        let (start, offset) = checksum_place(head)?;
        Checksum::Partial { start, offset }
    } else {
        Checksum::Valid
    };
    match (checksum, gso) {
        // The place just found satisfies the rules of a partial checksum, except that it must also lie in the frame.
        (Checksum::Partial { start, offset }, None) => {
            (u32::from(start + offset) + 2 <= len).then_some(Offload { checksum, gso: None })
        }
        _ => {
            let gso = gso.map(|(size, kind)| Gso { kind, ecn: false, size, header: 0 });
            Offload::new_checked(checksum, gso, len as usize, head).ok()
        }
    }
}

/// Where the TCP or UDP header begins, and the offset of its checksum.
fn checksum_place(head: &[u8]) -> Option<(u16, u16)> {
    let frame = Ethernet::new_checked(head).ok()?;
    let upper = Ip::of(&frame).ok()??.upper().ok().filter(|upper| !upper.fragment)?;
    let offset = match upper.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    Some(((frame.header_len() + upper.offset) as u16, offset))
}

/// The flags of a received packet's first slot, if netif can express the state of its checksum and the guest can complete
/// it: Linux's netfront looks for a blank checksum behind an Ethernet header without tags only (`skb_checksum_setup`), and
/// drops a packet where it finds none.
#[inline]
pub(super) fn rx_flags(offload: Offload, head: &[u8]) -> Option<u16> {
    match offload.checksum {
        Checksum::Present => Some(0),
        Checksum::Valid => Some(RX_VALIDATED),
        Checksum::Partial { start, offset } => {
            let tagged = matches!(head.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]));
            (!tagged && checksum_place(head) == Some((start, offset))).then_some(RX_BLANK | RX_VALIDATED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_and_responses_have_netifs_layout() {
        let request = TxRequest::parse([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(
            request,
            TxRequest { reference: 0x0403_0201, offset: 0x0605, flags: 0x0807, id: 0x0a09, size: 0x0c0b }
        );
        assert_eq!(tx_response(0x0201, ERROR), [1, 2, 0xff, 0xff]);
        assert_eq!(rx_request([1, 2, 9, 9, 3, 4, 5, 6]), (0x0201, 0x0605_0403));
        assert_eq!(rx_response(0x0201, RX_MORE, 0x0403), [1, 2, 0, 0, 4, 0, 3, 4]);
        assert_eq!(
            rx_extra(Gso { kind: GsoKind::Tcp6, ecn: false, size: 0x0102, header: 54 }),
            [1, 0, 2, 1, 2, 0, 0, 0]
        );
    }

    proptest! {
        /// The computed place of a blank checksum follows the same rules as one that is stated.
        #[test]
        fn the_place_of_a_blank_checksum_follows_the_rules(
            kind in prop::sample::select(vec![6u8, 17, 58, 1]), six: bool, change in prop::option::of((12..60usize, any::<u8>())),
            len in 0..200u32,
        ) {
            let mut head = vec![2; 12];
            match six {
                false => head.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, kind, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]),
                true => head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, kind, 64].into_iter().chain([1; 32])),
            }
            head.resize(128, 0x50);
            if let Some((at, byte)) = change {
                head[at] = byte;
            }
            head.truncate(len as usize);
            let expected = checksum_place(&head).and_then(|(start, offset)| {
                Offload::new_checked(Checksum::Partial { start, offset }, None, len as usize, &head).ok()
            });
            prop_assert_eq!(offload(TX_BLANK, None, len, &head), expected);
        }
    }

    #[test]
    fn the_first_two_flags_are_swapped_between_the_rings() {
        let mut udp = vec![2; 12];
        udp.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
        let blank = offload(1, None, 42, &udp).unwrap();
        assert_eq!(blank.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(rx_flags(blank, &udp), Some(3));
        let valid = offload(2, None, 42, &udp).unwrap();
        assert_eq!(valid.checksum, Checksum::Valid);
        assert_eq!(rx_flags(valid, &udp), Some(1));
        udp[23] = 1;
        assert_eq!(offload(1, None, 42, &udp), None, "ICMP has no checksum that netif could mean");
        assert_eq!(rx_flags(blank, &udp), None);
    }
}
