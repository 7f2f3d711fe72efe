//! IPv4 or IPv6: what those above need not tell apart.

use super::checksum::{self, Sum};
use super::{Error, Ethernet, Ipv4, Ipv6, ethertype};
use std::net::IpAddr;

/// Protocol numbers (IANA) that decisions rest on.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// IPsec authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
}

/// What an IP packet carries, behind options and extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// The protocol.
    pub protocol: u8,
    /// Where its header begins, from the IP header's start.
    pub offset: usize,
    /// Whether the packet is a fragment: then only the first piece has that header, and the others are not told from it.
    pub fragment: bool,
    /// The bytes at hand from there on, without Ethernet's padding.
    pub payload: &'a [u8],
}

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

    /// From whom.
    #[inline]
    pub fn source(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.source().into(),
            Ip::V6(ip) => ip.source().into(),
        }
    }

    /// To whom.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => ip.destination().into(),
            Ip::V6(ip) => ip.destination().into(),
        }
    }

    /// Bytes of header and payload, as the header says.
    #[inline]
    pub fn total_len(&self) -> usize {
        match self {
            Ip::V4(ip) => ip.total_len(),
            Ip::V6(ip) => super::ipv6::HEADER + ip.payload_len(),
        }
    }

    /// What it carries.
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

    /// The pseudo-header's sum for `len` bytes of a protocol, its header included.
    pub fn pseudo_header(&self, protocol: u8, len: usize) -> Sum {
        let addresses = match self {
            Ip::V4(ip) => ip.addresses(),
            Ip::V6(ip) => ip.addresses(),
        };
        checksum::pseudo_header(addresses, protocol, len)
    }
}
