//! TCP (RFC 9293) and the options that a handshake negotiates (RFC 9293, 3.7.1; RFC 7323; RFC 2018).

use super::{Error, fixed, get16, get32, need};

const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 2;
pub(super) const SEQUENCE: usize = 4;
pub(super) const ACKNOWLEDGMENT: usize = 8;
const DATA_OFFSET: usize = 12;
pub(super) const FLAGS: usize = 13;
pub(super) const WINDOW: usize = 14;
pub(super) const CHECKSUM: usize = 16;
pub(super) const HEADER: usize = 20;

/// The control bits, from FIN (lowest) to CWR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset the connection.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgment number is valid.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is valid.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo: the receiver reports congestion (RFC 3168).
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Whether all of `flags` are set.
    pub fn contains(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether any of `flags` is set.
    pub fn intersects(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 != 0
    }

    /// The union with `flags`.
    pub const fn with(self, flags: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | flags.0)
    }

    /// The set without `flags`.
    pub fn without(self, flags: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !flags.0)
    }
}

/// The options of a segment. An absent option is `None` or false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size, bytes.
    pub mss: Option<u16>,
    /// Window scale, a shift; receivers treat more than 14 as 14 (RFC 7323, 2.3).
    pub window_scale: Option<u8>,
    /// Whether SACK is permitted.
    pub sack_permitted: bool,
    /// Timestamp value and echo reply.
    pub timestamps: Option<(u32, u32)>,
    /// Whether there is an option that only the two ends can write: MD5 (RFC 2385), TCP-AO (RFC 5925), MPTCP (RFC
    /// 8684), accurate ECN (RFC 9768).
    pub needs_end_to_end: bool,
}

/// A TCP header.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    bytes: &'a [u8],
    /// The part without options.
    fixed: &'a [u8; HEADER],
    header: usize,
}

impl<'a> Tcp<'a> {
    /// # Errors
    /// The header with its options is truncated, or its length is below 20.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Tcp<'a>, Error> {
        let fixed = fixed("TCP header", bytes)?;
        let header = usize::from(fixed[DATA_OFFSET] >> 4) * 4;
        if header < HEADER {
            return Err(Error::Value { field: "TCP header length", value: header as u32, right: "20 bytes or more" });
        }
        need("TCP options", bytes, header)?;
        Ok(Tcp { bytes, fixed, header })
    }

    /// The source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        get16(self.fixed, SOURCE_PORT)
    }

    /// The destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        get16(self.fixed, DESTINATION_PORT)
    }

    /// The sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        get32(self.fixed, SEQUENCE)
    }

    /// The acknowledgment number.
    #[inline]
    pub fn acknowledgment(&self) -> u32 {
        get32(self.fixed, ACKNOWLEDGMENT)
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// The control bits.
    #[inline]
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.fixed[FLAGS])
    }

    /// The window, unscaled.
    #[inline]
    pub fn window(&self) -> u16 {
        get16(self.fixed, WINDOW)
    }

    /// The checksum.
    pub fn checksum(&self) -> u16 {
        get16(self.fixed, CHECKSUM)
    }

    /// The available bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header..]
    }

    /// The timestamps, if they are the only option and have the layout of RFC 7323, appendix A, as in nearly all
    /// segments.
    #[inline]
    pub fn timestamps_alone(&self) -> Option<(u32, u32)> {
        let options: &[u8; 12] = self.bytes.get(HEADER..self.header)?.try_into().ok()?;
        match options {
            [1, 1, 8, 10, stamps @ ..] => Some((get32(stamps, 0), get32(stamps, 4))),
            _ => None,
        }
    }

    /// Parses the options. Unknown ones are skipped.
    ///
    /// # Errors
    /// An option's length is below 2, wrong for that option, or past the header.
    pub fn options(&self) -> Result<TcpOptions, Error> {
        let mut options = TcpOptions::default();
        let mut rest = &self.bytes[HEADER..self.header];
        while let [kind, tail @ ..] = rest {
            match kind {
                0 => break,
                1 => {
                    rest = tail;
                    continue;
                }
                _ => {}
            }
            need("TCP option", rest, 2)?;
            let len = usize::from(rest[1]);
            need("TCP option", rest, len)?;
            match (kind, len) {
                (2, 4) => options.mss = Some(get16(rest, 2)),
                (3, 3) => options.window_scale = Some(rest[2]),
                (4, 2) => options.sack_permitted = true,
                (8, 10) => options.timestamps = Some((get32(rest, 2), get32(rest, 6))),
                (2 | 3 | 4 | 8, _) | (_, 0 | 1) => {
                    return Err(Error::Value {
                        field: "TCP option length",
                        value: len as u32,
                        right: "the length of that option",
                    });
                }
                (19 | 29 | 30 | 172 | 174, _) => options.needs_end_to_end = true,
                _ => {}
            }
            rest = &rest[len..];
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing;

    #[test]
    fn fields() {
        let bytes = testing::tcp(TcpFlags(0x12), 0xdead_beef, &[], b"abc");
        let tcp = Tcp::new_checked(&bytes).unwrap();
        assert_eq!((tcp.source_port(), tcp.destination_port()), (1000, 2000));
        assert_eq!((tcp.sequence(), tcp.acknowledgment(), tcp.window()), (0xdead_beef, 7, 512));
        assert!(tcp.flags().contains(TcpFlags::SYN) && !tcp.flags().contains(TcpFlags::FIN));
        assert_eq!((tcp.header_len(), tcp.payload(), tcp.options()), (20, &b"abc"[..], Ok(TcpOptions::default())));
        assert!(matches!(Tcp::new_checked(&bytes[..19]), Err(Error::Short { .. })));
    }

    #[test]
    fn options() {
        let list = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 1, 3, 3, 7, 254, 3, 1, 0];
        let bytes = testing::tcp(TcpFlags::SYN, 0, &list, b"");
        let all = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((9, 8)),
            needs_end_to_end: false,
        };
        assert_eq!(Tcp::new_checked(&bytes).unwrap().options(), Ok(all));
        assert_eq!(Tcp::new_checked(&bytes).unwrap().timestamps_alone(), None);
        for (list, stamps) in
            [([1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8], Some((9, 8))), ([8, 10, 0, 0, 0, 9, 0, 0, 0, 8, 1, 1], None)]
        {
            let bytes = testing::tcp(TcpFlags::ACK, 0, &list, b"data");
            let tcp = Tcp::new_checked(&bytes).unwrap();
            assert_eq!((tcp.timestamps_alone(), tcp.options().unwrap().timestamps), (stamps, Some((9, 8))));
        }
        assert!(matches!(Tcp::new_checked(&bytes[..43]), Err(Error::Short { needs: 44, .. })));
    }

    #[test]
    fn malformed_options_are_refused() {
        for list in [[2, 3, 0, 0], [254, 0, 0, 0], [254, 1, 0, 0], [254, 5, 0, 0], [1, 1, 1, 8]] {
            let bytes = testing::tcp(TcpFlags::SYN, 0, &list, b"payload");
            assert!(Tcp::new_checked(&bytes).unwrap().options().is_err(), "{list:?}");
        }
    }
}
