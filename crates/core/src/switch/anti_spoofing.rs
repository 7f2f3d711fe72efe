//! Which addresses a port may use.
//!
//! The checked addresses are a frame's source MAC address, its source IP address, the sender in an ARP packet, and the
//! target of an IPv6 neighbour advertisement. Rules for addresses that are not listed:
//! - ARP from 0.0.0.0 is a probe and is allowed (RFC 5227, 2.1.1).
//! - IPv4 from 0.0.0.0 is allowed for DHCP only: UDP, port 68 to port 67 of 255.255.255.255 (RFC 2131, 4.1).
//! - IPv6 from `::` is allowed for ICMPv6 only: duplicate address detection, router solicitation and multicast reports
//!   (RFC 4862, 5.4.2; RFC 4861, 4.1; RFC 3810, 5.2.13).
//! - The link-local address derived from the source MAC address is allowed (RFC 4291, appendix A). Any other, such as a
//!   stable private one (RFC 7217), must be listed: it might be the router's.
//! - Frames that are neither ARP nor IP have no checked address but the source MAC address.

use crate::packet::{
    Arp, Error, Ethernet, Icmp, Ip, Ipv4, Ipv6, Mac, NEIGHBOUR_ADVERTISEMENT, Udp, ethertype, protocol,
};
use crate::stats::DropReason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses a port may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AntiSpoofing {
    /// The only source MAC address; any if absent.
    pub mac: Option<Mac>,
    /// The only source IP addresses, besides those in the module's rules; any if empty.
    pub addresses: Vec<IpAddr>,
}

impl AntiSpoofing {
    /// Refuses a frame with an address that is not the port's.
    ///
    /// # Errors
    /// Which kind of address is spoofed, or [`DropReason::Malformed`] if an address cannot be read.
    #[inline]
    pub(super) fn check(&self, frame: &Ethernet<'_>) -> Result<(), DropReason> {
        if self.mac.is_some_and(|mac| mac != frame.source()) {
            return Err(DropReason::SpoofedMac);
        }
        match frame.ethertype() {
            ethertype::ARP if self.mac.is_some() || !self.addresses.is_empty() => self.check_arp(frame),
            ethertype::IPV4 | ethertype::IPV6 if !self.addresses.is_empty() => self.check_ip(frame),
            _ => Ok(()),
        }
    }

    fn check_arp(&self, frame: &Ethernet<'_>) -> Result<(), DropReason> {
        let arp = Arp::new_checked(frame.payload()).map_err(|_| DropReason::Malformed)?;
        if self.mac.is_some_and(|mac| mac != arp.sender_mac()) {
            return Err(DropReason::SpoofedMac);
        }
        owned(arp.sender().is_unspecified() || self.addresses.is_empty() || self.lists(arp.sender()))
    }

    fn check_ip(&self, frame: &Ethernet<'_>) -> Result<(), DropReason> {
        let ip = Ip::of(frame).map_err(|_| DropReason::Malformed)?;
        let is_own = match ip {
            Some(Ip::V4(ip)) => Ok(self.lists(ip.source()) || ip.source().is_unspecified() && is_dhcp(&ip)),
            Some(Ip::V6(ip)) => self.owns_v6(&ip, frame.source()),
            None => Ok(true),
        };
        owned(is_own.map_err(|_| DropReason::Malformed)?)
    }

    fn owns_v6(&self, ip: &Ipv6<'_>, mac: Mac) -> Result<bool, Error> {
        let owns = |address: Ipv6Addr| address == link_local(mac) || self.lists(address);
        let source = ip.source();
        if !source.is_unspecified() && !owns(source) {
            return Ok(false);
        }
        let upper = ip.upper()?;
        // Neighbour discovery is never fragmented (RFC 6980, 5).
        if upper.protocol != protocol::ICMPV6 || upper.fragment {
            return Ok(!source.is_unspecified());
        }
        let icmp = Icmp::new_checked(upper.payload)?;
        Ok(icmp.kind() != NEIGHBOUR_ADVERTISEMENT || owns(icmp.neighbour_target()?))
    }

    fn lists(&self, address: impl Into<IpAddr>) -> bool {
        self.addresses.contains(&address.into())
    }
}

fn owned(is_own: bool) -> Result<(), DropReason> {
    if is_own { Ok(()) } else { Err(DropReason::SpoofedAddress) }
}

fn is_dhcp(ip: &Ipv4<'_>) -> bool {
    ip.protocol() == protocol::UDP
        && !ip.is_fragment()
        && ip.destination() == Ipv4Addr::BROADCAST
        && Udp::new_checked(ip.payload()).is_ok_and(|udp| (udp.source_port(), udp.destination_port()) == (68, 67))
}

/// The link-local address of a MAC address (RFC 4291, 2.5.6 and appendix A).
fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Ipv6Addr {
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
