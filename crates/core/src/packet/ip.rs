//! An IP header of either version, for code that treats both alike.

use super::checksum::{self, Sum};
use super::{Error, Ethernet, Ipv4, Ipv6, Upper, ethertype};
use std::net::IpAddr;

/// An IP header of either version.
#[derive(Clone, Copy, Debug)]
pub enum Ip<'a> {
    /// Version 4.
    V4(Ipv4<'a>),
    /// Version 6.
    V6(Ipv6<'a>),
}

impl<'a> Ip<'a> {
    /// The IP header of a frame; none if the ethertype is not IP.
    ///
    /// # Errors
    /// As of [`Ipv4::new_checked`] and [`Ipv6::new_checked`].
    #[inline(always)]
    pub fn of(frame: &Ethernet<'a>) -> Result<Option<Ip<'a>>, Error> {
        match frame.ethertype() {
            ethertype::IPV4 => Ipv4::new_checked(frame.payload()).map(|ip| Some(Ip::V4(ip))),
            ethertype::IPV6 => Ipv6::new_checked(frame.payload()).map(|ip| Some(Ip::V6(ip))),
            _ => Ok(None),
        }
    }

    /// The source address.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.source().into(),
            Ip::V6(ip) => ip.source().into(),
        }
    }

    /// The destination address.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.destination().into(),
            Ip::V6(ip) => ip.destination().into(),
        }
    }

    /// Bytes of header and payload, by the length field.
    #[inline]
    pub fn total_len(&self) -> usize {
        match self {
            Ip::V4(ip) => ip.total_len(),
            Ip::V6(ip) => super::ipv6::HEADER + ip.payload_len(),
        }
    }

    /// The upper-layer protocol and payload.
    ///
    /// # Errors
    /// As of [`Ipv6::upper`].
    #[inline]
    pub fn upper(&self) -> Result<Upper<'a>, Error> {
        match self {
            Ip::V4(ip) => {
                let (protocol, offset, fragment) = (ip.protocol(), ip.header_len(), ip.is_fragment());
                Ok(Upper { protocol, offset, fragment, payload: ip.payload() })
            }
            Ip::V6(ip) => ip.upper(),
        }
    }

    /// The pseudo-header's sum for `len` bytes of an upper-layer packet, header included.
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> Sum {
        let addresses = match self {
            Ip::V4(ip) => ip.addresses(),
            Ip::V6(ip) => ip.addresses(),
        };
        checksum::pseudo_header(addresses, protocol, len)
    }
}
