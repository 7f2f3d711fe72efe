//! IPv4 (RFC 791).

use super::{Error, array, fixed, get16, need};
use std::net::Ipv4Addr;
use std::ops::Range;

pub(super) const TOTAL_LEN: usize = 2;
pub(super) const ID: usize = 4;
const FRAGMENT: usize = 6;
const PROTOCOL: usize = 9;
pub(super) const CHECKSUM: usize = 10;
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
/// Source and destination.
pub(super) const ADDRESSES: Range<usize> = SOURCE..SOURCE + 8;
const HEADER: usize = 20;

/// An IPv4 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    bytes: &'a [u8],
    /// The part without options.
    fixed: &'a [u8; HEADER],
    header: usize,
}

impl<'a> Ipv4<'a> {
    /// # Errors
    /// Not version 4, a truncated header, or a total length below the header's length.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Ipv4<'a>, Error> {
        let fixed = fixed("IPv4 header", bytes)?;
        let (version, header) = (fixed[0] >> 4, usize::from(fixed[0] & 0xf) * 4);
        if version != 4 {
            return Err(Error::Value { field: "IP version", value: version.into(), right: "4, by the ethertype" });
        }
        if header < HEADER {
            return Err(Error::Value { field: "IPv4 header length", value: header as u32, right: "20 bytes or more" });
        }
        need("IPv4 options", bytes, header)?;
        let total = get16(fixed, TOTAL_LEN);
        if usize::from(total) < header {
            return Err(Error::Value {
                field: "IPv4 total length",
                value: total.into(),
                right: "the header's length or more",
            });
        }
        Ok(Ipv4 { bytes, fixed, header })
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// Bytes of header and payload, by the length field.
    #[inline]
    pub fn total_len(&self) -> usize {
        get16(self.fixed, TOTAL_LEN).into()
    }

    /// The identification.
    pub fn id(&self) -> u16 {
        get16(self.fixed, ID)
    }

    /// Whether it is a fragment: its offset is not 0, or more fragments follow.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        get16(self.fixed, FRAGMENT) & 0x3fff != 0
    }

    /// The protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[PROTOCOL]
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        array(self.fixed, SOURCE).into()
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        array(self.fixed, DESTINATION).into()
    }

    /// Source and destination, as in the header.
    #[inline]
    pub(crate) fn addresses(&self) -> &'a [u8] {
        &self.fixed[ADDRESSES]
    }

    /// The header's bytes.
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..self.header]
    }

    /// The available bytes of the payload, without Ethernet padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header..self.total_len().min(self.bytes.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{protocol, testing};

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn fields_and_padding() {
        let mut bytes = testing::ipv4(A, B, protocol::UDP, &[7; 9]);
        bytes.extend([0; 17]);
        let ip = Ipv4::new_checked(&bytes).unwrap();
        assert_eq!((ip.source(), ip.destination(), ip.protocol()), (A, B, protocol::UDP));
        assert_eq!((ip.header_len(), ip.total_len(), ip.payload(), ip.id()), (20, 29, &[7; 9][..], 0));
        assert!(!ip.is_fragment());
    }

    #[test]
    fn a_truncated_payload_is_no_error() {
        let bytes = testing::ipv4(A, B, protocol::UDP, &[7; 900]);
        assert_eq!(Ipv4::new_checked(&bytes[..100]).unwrap().payload(), &[7; 80]);
    }

    #[test]
    fn invalid_headers_are_refused() {
        let good = testing::ipv4(A, B, protocol::UDP, &[]);
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Ipv4::new_checked(&bytes).err()
        };
        assert!(matches!(Ipv4::new_checked(&good[..19]), Err(Error::Short { .. })));
        assert!(matches!(with(0, 0x65), Some(Error::Value { field: "IP version", .. })));
        assert!(matches!(with(0, 0x44), Some(Error::Value { value: 16, .. })));
        assert!(matches!(with(0, 0x46), Some(Error::Short { needs: 24, .. })));
        assert!(matches!(with(3, 19), Some(Error::Value { field: "IPv4 total length", .. })));
    }
}
