//! ARP for IPv4 over Ethernet (RFC 826).

use super::{Error, Mac, array, ethertype, get16, get32, need};
use std::net::Ipv4Addr;

const HARDWARE: usize = 0;
const PROTOCOL: usize = 2;
const LENGTHS: usize = 4;
const OPERATION: usize = 6;
const SENDER_MAC: usize = 8;
const SENDER: usize = 14;
const TARGET: usize = 24;
const LEN: usize = 28;

/// An ARP packet.
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a>(&'a [u8]);

impl<'a> Arp<'a> {
    /// # Errors
    /// Fewer than 28 bytes, or not for Ethernet and IPv4.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Arp<'a>, Error> {
        need("ARP packet", bytes, LEN)?;
        let kind = (get16(bytes, HARDWARE), get16(bytes, PROTOCOL), get16(bytes, LENGTHS));
        if kind != (1, ethertype::IPV4, 0x0604) {
            let value = get32(bytes, HARDWARE);
            return Err(Error::Value { field: "ARP hardware and protocol", value, right: "Ethernet and IPv4" });
        }
        Ok(Arp(bytes))
    }

    /// 1 for a request, 2 for a reply.
    pub fn operation(&self) -> u16 {
        get16(self.0, OPERATION)
    }

    /// The sender's MAC address.
    pub fn sender_mac(&self) -> Mac {
        Mac(array(self.0, SENDER_MAC))
    }

    /// The sender's IP address; unspecified in a probe (RFC 5227, 1.1).
    pub fn sender(&self) -> Ipv4Addr {
        array(self.0, SENDER).into()
    }

    /// The target IP address.
    pub fn target(&self) -> Ipv4Addr {
        array(self.0, TARGET).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing;

    #[test]
    fn fields() {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let bytes = testing::arp(mac, Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let arp = Arp::new_checked(&bytes).unwrap();
        assert_eq!((arp.operation(), arp.sender_mac()), (1, mac));
        assert_eq!((arp.sender(), arp.target()), (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)));
    }

    #[test]
    fn other_kinds_are_refused() {
        let good = testing::arp(Mac::BROADCAST, Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST);
        assert!(matches!(Arp::new_checked(&good[..27]), Err(Error::Short { has: 27, needs: 28, .. })));
        for at in 0..6 {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(matches!(Arp::new_checked(&bad), Err(Error::Value { .. })), "{at}");
        }
    }
}
