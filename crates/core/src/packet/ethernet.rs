//! Ethernet II, with up to two VLAN tags (IEEE 802.1Q, 802.1ad).

use super::{Error, Mac, array, get16, need};

/// Ethertypes that decisions use.
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// A customer's VLAN tag (802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A service VLAN tag (802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
}

const DESTINATION: usize = 0;
const SOURCE: usize = 6;
const TYPE: usize = 12;
const HEADER: usize = 14;
const TAG: usize = 4;
const TAGS: usize = 2;

/// A frame's Ethernet header and tags.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a> {
    bytes: &'a [u8],
    header: usize,
    vlan: u16,
    ethertype: u16,
}

impl<'a> Ethernet<'a> {
    /// Parses addresses and tags.
    ///
    /// # Errors
    /// The header or a tag is truncated, or there are more than two tags.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Result<Ethernet<'a>, Error> {
        need("Ethernet header", bytes, HEADER)?;
        let ethertype = get16(bytes, TYPE);
        if is_tag(ethertype) {
            Ethernet::tagged(bytes)
        } else {
            Ok(Ethernet { bytes, header: HEADER, vlan: 0, ethertype })
        }
    }

    /// The rare case of [`Ethernet::new_checked`]: a tagged frame.
    fn tagged(bytes: &'a [u8]) -> Result<Ethernet<'a>, Error> {
        let mut header = HEADER;
        let mut ethertype = get16(bytes, TYPE);
        while is_tag(ethertype) {
            if header == HEADER + TAGS * TAG {
                return Err(Error::Value {
                    field: "ethertype",
                    value: ethertype.into(),
                    right: "no VLAN tag after two tags",
                });
            }
            header += TAG;
            need("VLAN tag", bytes, header)?;
            ethertype = get16(bytes, header - 2);
        }
        Ok(Ethernet { bytes, header, vlan: get16(bytes, HEADER) & 0xfff, ethertype })
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> Mac {
        Mac(array(self.bytes, DESTINATION))
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> Mac {
        Mac(array(self.bytes, SOURCE))
    }

    /// The outermost tag's VLAN; 0 if there is no tag or only a priority tag (802.1Q, 9.6).
    #[inline]
    pub fn vlan(&self) -> u16 {
        self.vlan
    }

    /// The ethertype after all tags. Below 1536 it is a length (IEEE 802.3).
    #[inline]
    pub fn ethertype(&self) -> u16 {
        self.ethertype
    }

    /// Bytes of the header with its tags.
    #[inline]
    pub fn header_len(&self) -> usize {
        self.header
    }

    /// The available bytes after the header, padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header..]
    }
}

#[inline]
fn is_tag(ethertype: u16) -> bool {
    ethertype == ethertype::VLAN || ethertype == ethertype::SERVICE_VLAN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(rest: &[u8]) -> Vec<u8> {
        [&[1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15], rest].concat()
    }

    #[test]
    fn plain() {
        let bytes = frame(&[8, 0, 99]);
        let view = Ethernet::new_checked(&bytes).unwrap();
        assert_eq!(view.destination(), Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(view.source(), Mac([10, 11, 12, 13, 14, 15]));
        assert_eq!((view.vlan(), view.ethertype(), view.payload()), (0, ethertype::IPV4, &[99][..]));
    }

    #[test]
    fn one_and_two_tags() {
        let bytes = frame(&[0x81, 0, 0xe0, 7, 0x86, 0xdd, 99]);
        let view = Ethernet::new_checked(&bytes).unwrap();
        assert_eq!((view.vlan(), view.ethertype(), view.payload()), (7, ethertype::IPV6, &[99][..]));
        let bytes = frame(&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7, 8, 6]);
        let view = Ethernet::new_checked(&bytes).unwrap();
        assert_eq!((view.vlan(), view.ethertype(), view.header_len()), (9, ethertype::ARP, 22));
    }

    #[test]
    fn three_tags_and_short_tags_are_refused() {
        let tags = [0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0];
        assert!(matches!(Ethernet::new_checked(&frame(&tags)), Err(Error::Value { .. })));
        for len in 2..10 {
            assert!(matches!(Ethernet::new_checked(&frame(&tags[..len])), Err(Error::Short { .. })), "{len}");
        }
    }
}
