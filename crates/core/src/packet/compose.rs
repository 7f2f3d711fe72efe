//! Writes TCP frames from their header fields, with complete checksums.

use super::checksum::{self, Sum};
use super::{TcpFlags, ethertype, ipv4, ipv6, protocol, put16, tcp};
use std::net::IpAddr;

/// Time to live, or hop limit (RFC 1700; the default of most systems).
const HOPS: u8 = 64;

/// A TCP segment to write.
#[derive(Clone, Copy, Debug)]
pub struct Compose<'a> {
    /// Ethernet addresses and VLAN tags, without the ethertype that follows.
    pub link: &'a [u8],
    /// Source address and port.
    pub source: (IpAddr, u16),
    /// Destination address and port; the address has the source's family.
    pub destination: (IpAddr, u16),
    /// The sequence number.
    pub sequence: u32,
    /// The acknowledgment number.
    pub acknowledgment: u32,
    /// The control bits.
    pub flags: TcpFlags,
    /// The window, unscaled.
    pub window: u16,
    /// Timestamp value and echo reply, if the connection has timestamps.
    pub timestamps: Option<(u32, u32)>,
}

impl Compose<'_> {
    /// Replaces the contents of `out` by the frame. `payload` appends the payload; with headers it must be below 64
    /// KiB.
    pub fn write(&self, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
        out.clear();
        out.extend_from_slice(self.link);
        let network = match (self.source.0, self.destination.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                out.extend_from_slice(&ethertype::IPV4.to_be_bytes());
                let network = out.len();
                // DF is set, so the identification is meaningless (RFC 6864, 4.1).
                out.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, protocol::TCP, 0, 0]);
                out.extend_from_slice(&source.octets());
                out.extend_from_slice(&destination.octets());
                network
            }
            (source, destination) => {
                out.extend_from_slice(&ethertype::IPV6.to_be_bytes());
                let network = out.len();
                out.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol::TCP, HOPS]);
                out.extend_from_slice(&wide(source));
                out.extend_from_slice(&wide(destination));
                network
            }
        };
        let transport = out.len();
        self.header(out);
        payload(out);

        let (ip, segment) = out[network..].split_at_mut(transport - network);
        let addresses = if ip[0] >> 4 == 4 {
            put16(ip, ipv4::TOTAL_LEN, (ip.len() + segment.len()) as u16);
            let sum = Sum::default().with(ip).checksum();
            put16(ip, ipv4::CHECKSUM, sum);
            &ip[ipv4::ADDRESSES]
        } else {
            put16(ip, ipv6::PAYLOAD_LEN, segment.len() as u16);
            &ip[ipv6::ADDRESSES]
        };
        let sum = checksum::pseudo_header(addresses, protocol::TCP, segment.len()).with(segment).checksum();
        put16(segment, tcp::CHECKSUM, sum);
    }

    /// Appends the TCP header with a checksum of 0.
    fn header(&self, out: &mut Vec<u8>) {
        let words: u8 = if self.timestamps.is_some() { 8 } else { 5 };
        out.extend_from_slice(&self.source.1.to_be_bytes());
        out.extend_from_slice(&self.destination.1.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.acknowledgment.to_be_bytes());
        out.extend_from_slice(&[words << 4, self.flags.0]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        if let Some((value, echo)) = self.timestamps {
            // Two no-operations first, as RFC 7323, appendix A advises.
            out.extend_from_slice(&[1, 1, 8, 10]);
            out.extend_from_slice(&value.to_be_bytes());
            out.extend_from_slice(&echo.to_be_bytes());
        }
    }
}

/// An address in 16 bytes; an IPv4 address is mapped as in RFC 4291, 2.5.5.2.
fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Ethernet, Ip, Tcp};

    #[test]
    fn a_written_frame_parses_and_verifies() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for timestamps in [None, Some((7, 8))] {
                let segment = Compose {
                    link: &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 9],
                    source: (source.parse().unwrap(), 80),
                    destination: (destination.parse().unwrap(), 4000),
                    sequence: 0xffff_fffe,
                    acknowledgment: 3,
                    flags: TcpFlags::ACK,
                    window: 99,
                    timestamps,
                };
                let mut out = vec![1, 2, 3];
                segment.write(&mut out, |out| out.extend_from_slice(b"odd"));
                assert_eq!(checksum::verify(&out), Ok(true));
                let frame = Ethernet::new_checked(&out).unwrap();
                assert_eq!(frame.vlan(), 9);
                let ip = Ip::of(&frame).unwrap().unwrap();
                assert_eq!((ip.source(), ip.destination()), (segment.source.0, segment.destination.0));
                let tcp = Tcp::new_checked(ip.upper().unwrap().payload).unwrap();
                assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.payload()), (80, 4000, &b"odd"[..]));
                assert_eq!((tcp.sequence(), tcp.acknowledgment(), tcp.window()), (0xffff_fffe, 3, 99));
                assert_eq!(tcp.options().unwrap().timestamps, timestamps);
            }
        }
    }
}
