//! The header that virtio puts before each frame, and its translation from and to an [`Offload`] (virtio 1.2, section
//! 5.1.6; names as in linux/virtio_net.h). The tap device uses the same header.
//!
//! The sender of a header is not trusted: everything is checked against the frame's length and the copied head, and the
//! length of the frame's own headers is taken from the head, never from `hdr_len`.

use fairlane_core::packet::{Checksum, Error, Gso, GsoKind, Offload};

/// Bytes of the header with `num_buffers`, which virtio 1.x always includes. A tap uses the first ten.
pub(crate) const HEADER: usize = 12;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// A flag in the type field: TCP's CWR flag is set in the first segment only.
const GSO_ECN: u8 = 0x80;

/// Translates the header of a frame of `frame_len` bytes that begins with `head`. `num_buffers` is ignored.
///
/// # Errors
/// The rule that the header breaks.
#[inline]
pub(crate) fn decode(header: &[u8], frame_len: u32, head: &[u8]) -> Result<Offload, Error> {
    let (flags, gso_type) = (header[0], header[1]);
    if flags | gso_type == 0 {
        return Ok(Offload::default());
    }
    decode_offload(header, frame_len, head)
}

fn decode_offload(header: &[u8], frame_len: u32, head: &[u8]) -> Result<Offload, Error> {
    let field = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let (flags, gso_type, gso_size, csum_start, csum_offset) = (header[0], header[1], field(4), field(6), field(8));

    let checksum = if flags & F_NEEDS_CSUM != 0 {
        Checksum::Partial { start: csum_start, offset: csum_offset }
    } else if flags & F_DATA_VALID != 0 {
        Checksum::Valid
    } else {
        Checksum::Present
    };
    let kind = match gso_type & !GSO_ECN {
        GSO_NONE => None,
        GSO_TCPV4 => Some(GsoKind::Tcp4),
        GSO_TCPV6 => Some(GsoKind::Tcp6),
        other => {
            let right = "0, TCPV4 (1) or TCPV6 (4); no other was offered";
            return Err(Error::Value { field: "gso_type", value: other.into(), right });
        }
    };
    // A header length of 0 means "unknown": the check computes it.
    let gso = kind.map(|kind| Gso { kind, ecn: gso_type & GSO_ECN != 0, size: gso_size, header: 0 });
    Offload::new_checked(checksum, gso, frame_len as usize, head)
}

/// The header for a receiver that negotiated what `offload` needs, with `num_buffers` (virtio 1.x requires it on every
/// frame that a device delivers; a tap has none).
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
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend(((40 + options * 4 + payload) as u16).to_be_bytes());
                frame.extend([0; 5]);
                frame.push(6);
                frame.extend([0; 10]);
            }
            GsoKind::Tcp6 => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(((20 + options * 4 + payload) as u16).to_be_bytes());
                frame.extend([6, 64]);
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
        fn decoding_reverses_encoding(
            kind in kinds(), vlans in 0..3usize, options in 0..11usize, payload in 2..3000usize,
            part in 1..1000u16, ecn: bool, buffers: u16,
        ) {
            let (frame, tcp) = frame(kind, vlans, options, payload);
            let header = (tcp + 20 + options * 4) as u16;
            let size = 1 + part % (payload as u16 - 1);
            let offload = Offload {
                checksum: Checksum::Partial { start: tcp as u16, offset: 16 },
                gso: Some(Gso { kind, ecn, size, header }),
            };
            let bytes = encode(offload, buffers);
            prop_assert_eq!(&bytes[10..], &buffers.to_le_bytes());
            prop_assert_eq!(decode(&bytes, frame.len() as u32, head(&frame)), Ok(offload));
            prop_assert_eq!(decode(&bytes[..10], frame.len() as u32, head(&frame)), Ok(offload));
        }

        /// The sender's `hdr_len` has no effect.
        #[test]
        fn header_length_comes_from_the_frame(kind in kinds(), hint: [u8; 2]) {
            let (frame, tcp) = frame(kind, 0, 0, 100);
            let mut bytes = encode(Offload {
                checksum: Checksum::Partial { start: tcp as u16, offset: 16 },
                gso: Some(Gso { kind, ecn: false, size: 50, header: 0 }),
            }, 1);
            bytes[2..4].copy_from_slice(&hint);
            let offload = decode(&bytes, frame.len() as u32, head(&frame)).unwrap();
            prop_assert_eq!(usize::from(offload.gso.unwrap().header), tcp + 20);
        }

        /// Offsets of an accepted offload lie within the frame, whatever a hostile header and head contain.
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
        let spoilt = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            decode(&bytes, frame.len() as u32, head(&frame)).expect_err("refused").to_string()
        };
        assert!(decode(&good, frame.len() as u32, head(&frame)).is_ok());
        assert!(spoilt(7, 0xff).contains("csum_start"));
        assert!(spoilt(1, 3).contains("gso_type is 3"), "UDP fragmentation was not offered");
        assert!(spoilt(1, 5).contains("gso_type is 5"), "UDP segmentation was not offered");
        assert!(spoilt(1, 4).contains("what gso_type requires"), "the frame is IPv4");
        assert!(spoilt(4, 0).contains("gso_size"));
        assert!(spoilt(0, 0).contains("NEEDS_CSUM"));
        assert!(spoilt(8, 6).contains("csum_offset"));
    }
}
