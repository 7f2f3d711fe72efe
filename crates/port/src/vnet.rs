//! The header that virtio puts before each frame, and what it says as an [`Offload`] (virtio 1.2, section 5.1.6;
//! the names are those of linux/virtio_net.h). The tap device speaks the same header.
//!
//! The sender of a header is not trusted: everything is checked against the frame's length and the copied head, and the
//! length of the frame's own headers is read from the head, never from `hdr_len`.

use fairlane_core::packet::{Checksum, Gso, GsoKind, Offload};

/// Bytes of the header with `num_buffers`, as virtio 1.x always has it. The tap's form is the first ten.
pub(crate) const HEADER: usize = 12;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// A bit beside the type: TCP's CWR flag is set in the first segment only.
const GSO_ECN: u8 = 0x80;

const ETHERNET: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const VLAN_TAGS: [u16; 2] = [0x8100, 0x88a8];
const PROTOCOL_TCP: u8 = 6;
/// The TCP checksum's place in its header (RFC 9293, section 3.1).
const TCP_CHECKSUM: u16 = 16;

/// What a header says of a frame of `frame_len` bytes that begins with `head`. `num_buffers` is not looked at.
///
/// # Errors
/// The rule that the header breaks, in words.
#[inline]
pub(crate) fn decode(header: &[u8], frame_len: u32, head: &[u8]) -> Result<Offload, &'static str> {
    let (flags, gso_type) = (header[0], header[1]);
    if flags | gso_type == 0 {
        return Ok(Offload::default());
    }
    decode_offload(header, frame_len, head)
}

fn decode_offload(header: &[u8], frame_len: u32, head: &[u8]) -> Result<Offload, &'static str> {
    let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (flags, gso_type, gso_size, csum_start, csum_offset) = (header[0], header[1], field(4), field(6), field(8));

    let checksum = if flags & F_NEEDS_CSUM != 0 {
        if u32::from(csum_start) + u32::from(csum_offset) + 2 > frame_len {
            return Err("csum_start + csum_offset + 2 is beyond the frame's end");
        }
        Checksum::Partial { start: csum_start, offset: csum_offset }
    } else if flags & F_DATA_VALID != 0 {
        Checksum::Valid
    } else {
        Checksum::Present
    };

    let kind = match gso_type & !GSO_ECN {
        GSO_NONE => return Ok(Offload { checksum, gso: None }),
        GSO_TCPV4 => GsoKind::Tcp4,
        GSO_TCPV6 => GsoKind::Tcp6,
        _ => return Err("gso_type is neither TCPV4 (1) nor TCPV6 (4), and no other was offered"),
    };
    if gso_size == 0 {
        return Err("gso_size is 0 in a frame to be segmented");
    }
    let Checksum::Partial { start, offset } = checksum else {
        return Err("a frame to be segmented lacks NEEDS_CSUM (virtio 1.2, 5.1.6.2)");
    };
    let Some(Headers { tcp, end }) = tcp_headers(head, kind) else {
        return Err("gso_type names a protocol that the frame's own headers do not have");
    };
    if end as u32 > frame_len {
        return Err("the frame to be segmented ends within its headers");
    }
    if usize::from(start) != tcp || offset != TCP_CHECKSUM {
        return Err("csum_start and csum_offset do not point at the checksum of the segments' TCP header");
    }
    let gso = Gso { kind, ecn: gso_type & GSO_ECN != 0, size: gso_size, header: end as u16 };
    Ok(Offload { checksum, gso: Some(gso) })
}

/// The header for a receiver that negotiated what `offload` needs, with `num_buffers` (virtio 1.x wants it on every frame
/// that a device delivers; a tap does not have it).
#[inline]
pub(crate) fn encode(offload: Offload, num_buffers: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[10..].copy_from_slice(&num_buffers.to_le_bytes());
    match offload.checksum {
        Checksum::Present => {}
        Checksum::Valid => header[0] = F_DATA_VALID,
        Checksum::Partial { start, offset } => {
            header[0] = F_NEEDS_CSUM;
            header[6..8].copy_from_slice(&start.to_le_bytes());
            header[8..10].copy_from_slice(&offset.to_le_bytes());
        }
    }
    if let Some(gso) = offload.gso {
        header[1] = match gso.kind {
            GsoKind::Tcp4 => GSO_TCPV4,
            GsoKind::Tcp6 => GSO_TCPV6,
        } | if gso.ecn { GSO_ECN } else { 0 };
        header[2..4].copy_from_slice(&gso.header.to_le_bytes());
        header[4..6].copy_from_slice(&gso.size.to_le_bytes());
    }
    header
}

/// Where the TCP header starts, and where it ends.
struct Headers {
    tcp: usize,
    end: usize,
}

/// Walks Ethernet, VLAN tags, IP and TCP. `None` if the head is too short or has other protocols. IPv6 extension headers
/// are not walked: no card segments behind them unasked.
fn tcp_headers(head: &[u8], kind: GsoKind) -> Option<Headers> {
    let pair = |at: usize| Some(u16::from_be_bytes([*head.get(at)?, *head.get(at + 1)?]));
    let mut network = ETHERNET;
    let mut ethertype = pair(network - 2)?;
    while VLAN_TAGS.contains(&ethertype) {
        network += 4;
        ethertype = pair(network - 2)?;
    }
    let first = *head.get(network)?;
    let (tcp, protocol) = match (kind, ethertype, first >> 4) {
        (GsoKind::Tcp4, ETHERTYPE_IPV4, 4) if first & 15 >= 5 => {
            (network + usize::from(first & 15) * 4, *head.get(network + 9)?)
        }
        (GsoKind::Tcp6, ETHERTYPE_IPV6, 6) => (network + 40, *head.get(network + 6)?),
        _ => return None,
    };
    let length = usize::from(*head.get(tcp + 12)? >> 4) * 4;
    (protocol == PROTOCOL_TCP && length >= 20 && tcp + length <= head.len())
        .then_some(Headers { tcp, end: tcp + length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A TCP segment's headers and some payload, as the bytes of a frame.
    fn frame(kind: GsoKind, vlans: usize, options: usize, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = vec![2; 12];
        for _ in 0..vlans {
            frame.extend([0x81, 0, 0, 5]);
        }
        match kind {
            GsoKind::Tcp4 => {
                frame.extend([0x08, 0x00, 0x45]);
                frame.extend([0; 8]);
                frame.push(PROTOCOL_TCP);
                frame.extend([0; 10]);
            }
            GsoKind::Tcp6 => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, 64]);
                frame.extend([0; 32]);
            }
        }
        let tcp = frame.len();
        frame.extend([0; 12]);
        frame.push(((5 + options) << 4) as u8);
        frame.extend(vec![0; 7 + options * 4 + payload]);
        (frame, tcp)
    }

    fn head(frame: &[u8]) -> &[u8] {
        &frame[..frame.len().min(crate::HEAD)]
    }

    fn kinds() -> impl Strategy<Value = GsoKind> {
        prop_oneof![Just(GsoKind::Tcp4), Just(GsoKind::Tcp6)]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            kind in kinds(), vlans in 0..3usize, options in 0..11usize, payload in 0..3000usize,
            size in 1..=u16::MAX, ecn: bool, buffers: u16,
        ) {
            let (frame, tcp) = frame(kind, vlans, options, payload);
            let header = (tcp + 20 + options * 4) as u16;
            let offload = Offload {
                checksum: Checksum::Partial { start: tcp as u16, offset: 16 },
                gso: Some(Gso { kind, ecn, size, header }),
            };
            let bytes = encode(offload, buffers);
            prop_assert_eq!(&bytes[10..], &buffers.to_le_bytes());
            prop_assert_eq!(decode(&bytes, frame.len() as u32, head(&frame)), Ok(offload));
            prop_assert_eq!(decode(&bytes[..10], frame.len() as u32, head(&frame)), Ok(offload));
        }

        /// The sender's `hdr_len` decides nothing.
        #[test]
        fn header_length_is_the_frames_own(kind in kinds(), hint: [u8; 2]) {
            let (frame, tcp) = frame(kind, 0, 0, 100);
            let mut bytes = encode(Offload {
                checksum: Checksum::Partial { start: tcp as u16, offset: 16 },
                gso: Some(Gso { kind, ecn: false, size: 50, header: 0 }),
            }, 1);
            bytes[2..4].copy_from_slice(&hint);
            let offload = decode(&bytes, frame.len() as u32, head(&frame)).unwrap();
            prop_assert_eq!(usize::from(offload.gso.unwrap().header), tcp + 20);
        }

        /// Whatever a hostile header and head say, what is accepted lies within the frame.
        #[test]
        fn accepted_offloads_lie_within_the_frame(
            bytes: [u8; HEADER], kind in kinds(), vlans in 0..3usize, noise in prop::collection::vec((0..128usize, any::<u8>()), 0..4),
            cut in 0..200usize, csum in 0..100u16, tidy: bool,
        ) {
            let (mut frame, tcp) = frame(kind, vlans, 2, 60);
            for (at, value) in noise {
                if let Some(byte) = frame.get_mut(at) { *byte = value }
            }
            frame.truncate(cut);
            let mut bytes = bytes;
            if tidy {
                bytes = encode(Offload {
                    checksum: Checksum::Partial { start: tcp as u16, offset: csum },
                    gso: Some(Gso { kind, ecn: false, size: 9, header: 0 }),
                }, 0);
            }
            if let Ok(offload) = decode(&bytes, frame.len() as u32, head(&frame)) {
                if let Checksum::Partial { start, offset } = offload.checksum {
                    prop_assert!(usize::from(start) + usize::from(offset) + 2 <= frame.len());
                }
                if let Some(gso) = offload.gso {
                    prop_assert!(gso.size > 0);
                    prop_assert!(usize::from(gso.header) <= frame.len());
                }
            }
        }
    }

    #[test]
    fn bad_headers_are_named() {
        let (frame, tcp) = frame(GsoKind::Tcp4, 0, 0, 100);
        let good = encode(
            Offload {
                checksum: Checksum::Partial { start: tcp as u16, offset: 16 },
                gso: Some(Gso { kind: GsoKind::Tcp4, ecn: false, size: 50, header: 54 }),
            },
            1,
        );
        let len = frame.len() as u32;
        let spoilt = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            decode(&bytes, len, head(&frame)).expect_err("refused")
        };
        assert!(decode(&good, len, head(&frame)).is_ok());
        assert!(spoilt(7, 0xff).contains("csum_start"));
        assert!(spoilt(1, 3).contains("gso_type is neither"), "UDP fragmentation was not offered");
        assert!(spoilt(1, 5).contains("gso_type is neither"), "UDP segmentation was not offered");
        assert!(spoilt(1, 4).contains("own headers"), "the frame is IPv4");
        assert!(spoilt(4, 0).contains("gso_size"));
        assert!(spoilt(0, 0).contains("NEEDS_CSUM"));
        assert!(spoilt(8, 6).contains("csum_offset"));
    }
}
