//! The payload of an IP packet of either version.

/// Protocol numbers (IANA) that decisions use.
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

/// The upper-layer packet after IP options and extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// The protocol.
    pub protocol: u8,
    /// Offset of its header from the start of the IP header.
    pub offset: usize,
    /// Whether the packet is a fragment. Only the first fragment has the upper-layer header; which one it is, is not
    /// known here.
    pub fragment: bool,
    /// The available bytes from there on, without Ethernet padding.
    pub payload: &'a [u8],
}
