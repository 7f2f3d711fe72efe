//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443), whose first four bytes are the same.

use super::{Error, array, get16, need};
use std::net::Ipv6Addr;

const TYPE: usize = 0;
const CODE: usize = 1;
pub(super) const CHECKSUM: usize = 2;
const HEADER: usize = 8;
const TARGET: usize = 8;

/// The ICMPv6 type with which a station announces its own address (RFC 4861, 4.4).
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// An ICMP header.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a>(&'a [u8]);

impl<'a> Icmp<'a> {
    /// # Errors
    /// Fewer than 8 bytes.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Icmp<'a>, Error> {
        need("ICMP header", bytes, HEADER)?;
        Ok(Icmp(bytes))
    }

    /// The type.
    pub fn kind(&self) -> u8 {
        self.0[TYPE]
    }

    /// The code.
    pub fn code(&self) -> u8 {
        self.0[CODE]
    }

    /// The checksum.
    pub fn checksum(&self) -> u16 {
        get16(self.0, CHECKSUM)
    }

    /// The target address of a neighbour solicitation or advertisement (RFC 4861, 4.3 and 4.4).
    ///
    /// # Errors
    /// The message is too short.
    pub fn neighbour_target(&self) -> Result<Ipv6Addr, Error> {
        need("neighbour discovery message", self.0, TARGET + 16)?;
        Ok(array::<16>(self.0, TARGET).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut bytes = vec![NEIGHBOUR_ADVERTISEMENT, 3, 1, 2, 0, 0, 0, 0];
        assert!(matches!(Icmp::new_checked(&bytes[..7]), Err(Error::Short { .. })));
        assert!(Icmp::new_checked(&bytes).unwrap().neighbour_target().is_err());
        bytes.extend(Ipv6Addr::LOCALHOST.octets());
        let icmp = Icmp::new_checked(&bytes).unwrap();
        assert_eq!((icmp.kind(), icmp.code(), icmp.checksum()), (NEIGHBOUR_ADVERTISEMENT, 3, 0x0102));
        assert_eq!(icmp.neighbour_target(), Ok(Ipv6Addr::LOCALHOST));
    }
}
