//! IPv6 and its extension headers (RFC 8200).

use super::upper::{Upper, protocol};
use super::{Error, array, get16, need};
use std::net::Ipv6Addr;
use std::ops::Range;

pub(super) const PAYLOAD_LEN: usize = 4;
const NEXT_HEADER: usize = 6;
const SOURCE: usize = 8;
const DESTINATION: usize = 24;
/// Source and destination.
pub(super) const ADDRESSES: Range<usize> = SOURCE..SOURCE + 32;
/// Bytes of the fixed header.
pub(super) const HEADER: usize = 40;
/// The most extension headers that are parsed: RFC 8200, 4.1 names at most seven.
const EXTENSIONS: usize = 7;

/// An IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a>(&'a [u8]);

impl<'a> Ipv6<'a> {
    /// # Errors
    /// Fewer than 40 bytes, or not version 6.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Ipv6<'a>, Error> {
        need("IPv6 header", bytes, HEADER)?;
        let version = bytes[0] >> 4;
        if version != 6 {
            return Err(Error::Value { field: "IP version", value: version.into(), right: "6, by the ethertype" });
        }
        Ok(Ipv6(bytes))
    }

    /// Bytes after the fixed header, by the length field.
    #[inline]
    pub fn payload_len(&self) -> usize {
        get16(self.0, PAYLOAD_LEN).into()
    }

    /// The type of the header that follows.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0[NEXT_HEADER]
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        array::<16>(self.0, SOURCE).into()
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        array::<16>(self.0, DESTINATION).into()
    }

    /// Source and destination, as in the header.
    #[inline]
    pub(crate) fn addresses(&self) -> &'a [u8] {
        &self.0[ADDRESSES]
    }

    /// The available bytes after the fixed header, without Ethernet padding.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.0[HEADER..(HEADER + self.payload_len()).min(self.0.len())]
    }

    /// Parses the extension headers up to the upper-layer packet.
    ///
    /// # Errors
    /// An extension header is truncated, or there are more than seven.
    pub fn upper(self) -> Result<Upper<'a>, Error> {
        let (mut protocol, mut rest, mut fragment) = (self.next_header(), self.payload(), false);
        for _ in 0..=EXTENSIONS {
            // Lengths count units of 8 bytes without the first 8 bytes (RFC 8200, 4.3 to 4.6), or units of 4 bytes
            // minus 2 (RFC 4302, 2.2).
            let len = match protocol {
                _ if fragment => 0,
                protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => 8 * units(rest)? + 8,
                protocol::AUTHENTICATION => 4 * units(rest)? + 8,
                protocol::FRAGMENT => 8,
                _ => 0,
            };
            if len == 0 {
                let offset = HEADER + self.payload().len() - rest.len();
                return Ok(Upper { protocol, offset, fragment, payload: rest });
            }
            need("IPv6 extension header", rest, len)?;
            fragment = protocol == protocol::FRAGMENT;
            protocol = rest[0];
            rest = &rest[len..];
        }
        Err(Error::Value {
            field: "IPv6 next header",
            value: protocol.into(),
            right: "no extension header after seven",
        })
    }
}

/// The length field of an extension header, in units of that header.
fn units(extension: &[u8]) -> Result<usize, Error> {
    need("IPv6 extension header", extension, 2)?;
    Ok(extension[1].into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing;

    const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn fields() {
        let bytes = testing::ipv6(A, B, protocol::TCP, &[1; 20]);
        let ip = Ipv6::new_checked(&bytes).unwrap();
        assert_eq!((ip.source(), ip.destination(), ip.next_header()), (A, B, protocol::TCP));
        assert_eq!((ip.payload_len(), ip.payload()), (20, &[1; 20][..]));
        assert_eq!(ip.upper(), Ok(Upper { protocol: protocol::TCP, offset: 40, fragment: false, payload: &[1; 20] }));
    }

    #[test]
    fn extensions_are_parsed() {
        let mut chain = vec![protocol::ROUTING, 1];
        chain.extend([0; 14]);
        chain.extend([protocol::AUTHENTICATION, 0, 0, 0, 0, 0, 0, 0]);
        chain.extend([protocol::UDP, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 5]);
        let bytes = testing::ipv6(A, B, protocol::HOP_BY_HOP, &chain);
        let upper = Ipv6::new_checked(&bytes).unwrap().upper();
        assert_eq!(
            upper,
            Ok(Upper { protocol: protocol::UDP, offset: 40 + 16 + 8 + 12, fragment: false, payload: &[5, 5] })
        );
        for cut in 40..bytes.len() - 2 {
            assert!(matches!(Ipv6::new_checked(&bytes[..cut]).unwrap().upper(), Err(Error::Short { .. })), "{cut}");
        }
    }

    #[test]
    fn a_fragment_is_recognized() {
        let bytes = testing::ipv6(A, B, protocol::FRAGMENT, &[protocol::UDP, 0, 0, 1, 0, 0, 0, 1]);
        let upper = Ipv6::new_checked(&bytes).unwrap().upper();
        assert_eq!(upper, Ok(Upper { protocol: protocol::UDP, offset: 48, fragment: true, payload: &[] }));
    }

    #[test]
    fn too_many_extensions_are_refused() {
        let bytes = testing::ipv6(A, B, protocol::HOP_BY_HOP, &[0; 400]);
        assert!(matches!(Ipv6::new_checked(&bytes).unwrap().upper(), Err(Error::Value { .. })));
        let bytes = testing::ipv6(A, B, protocol::HOP_BY_HOP, &[[0; 48].as_slice(), &[6, 0], &[1; 28]].concat());
        let upper = Ipv6::new_checked(&bytes).unwrap().upper().unwrap();
        assert_eq!((upper.protocol, upper.offset), (protocol::TCP, 40 + 7 * 8), "seven are parsed");
    }
}
