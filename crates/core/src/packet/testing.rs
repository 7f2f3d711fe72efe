//! Builders of packets for tests.

use super::checksum::Sum;
use super::{Mac, TcpFlags, ethertype, protocol, put16, put32};
use std::net::{Ipv4Addr, Ipv6Addr};

/// A frame; `tags` are VLANs, outermost first.
pub(crate) fn ethernet(destination: Mac, source: Mac, tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [destination.0, source.0].concat();
    for tag in tags {
        frame.extend(ethertype::VLAN.to_be_bytes());
        frame.extend(tag.to_be_bytes());
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An ARP request.
pub(crate) fn arp(mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(mac.0);
    packet.extend(sender.octets());
    packet.extend([0; 6]);
    packet.extend(target.octets());
    packet
}

/// An IPv4 packet without options, with a valid header checksum.
pub(crate) fn ipv4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    put16(&mut packet, 2, (20 + payload.len()) as u16);
    let sum = Sum::default().with(&packet).checksum();
    put16(&mut packet, 10, sum);
    packet.extend(payload);
    packet
}

/// An IPv6 packet.
pub(crate) fn ipv6(source: Ipv6Addr, destination: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    put16(&mut packet, 4, payload.len() as u16);
    packet.extend(payload);
    packet
}

/// A TCP segment from port 1000 to 2000, with acknowledgment number 7 and a checksum of 0. Options are whole words.
pub(crate) fn tcp(flags: TcpFlags, sequence: u32, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    put16(&mut segment, 0, 1000);
    put16(&mut segment, 2, 2000);
    put32(&mut segment, 4, sequence);
    put32(&mut segment, 8, 7);
    segment[12] = ((5 + options.len() / 4) << 4) as u8;
    segment[13] = flags.0;
    put16(&mut segment, 14, 512);
    segment.extend(options);
    segment.extend(payload);
    segment
}

/// A UDP datagram with a checksum of 0.
pub(crate) fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; 8];
    put16(&mut datagram, 0, source);
    put16(&mut datagram, 2, destination);
    put16(&mut datagram, 4, (8 + payload.len()) as u16);
    datagram.extend(payload);
    datagram
}

/// A frame with a TCP segment over IPv4 or IPv6.
pub(crate) fn tcp_frame(v6: bool, tags: &[u16], segment: &[u8]) -> Vec<u8> {
    let (source, destination) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    if v6 {
        let packet = ipv6(Ipv6Addr::LOCALHOST, Ipv6Addr::from(0xfd00 << 112), protocol::TCP, segment);
        ethernet(destination, source, tags, ethertype::IPV6, &packet)
    } else {
        let packet = ipv4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 9, 8, 7), protocol::TCP, segment);
        ethernet(destination, source, tags, ethertype::IPV4, &packet)
    }
}
